"""Which features of a config.json the decoders do not have.

A feature that changes what a step costs or computes must never be dropped silently: the
search would then price another model. Each family reads the fields that it knows; what
nothing has read is looked at here. Fields are recognised by their words, since families
spell the same feature differently (`num_experts`, `n_routed_experts`).
"""

from collections.abc import Mapping
from typing import Any

# Feature -> what announces it: a whole field name, a word of one (between underscores),
# or with "_" at the end the first word. No family has these.
_NOWHERE = {
    "sparse attention": {"index_topk", "indexer", "sparse_attention_config"},
    "linear attention or state-space layers": {
        *("linear_", "mamba", "mamba2", "ssm", "conv", "rwkv", "recurrent", "lru"),
        *("hybrid_override_pattern", "layers_block_type"),
    },
    "attention sinks": {"sink", "sinks"},
    "capped logits": {"softcapping", "softcap"},
    "gated attention": {"attn_output_gate", "attention_output_gate"},
    "clipped queries, keys and values": {"clip_qkv"},
    "scaled embeddings, residuals or logits": {
        *("multiplier", "scale_emb", "scale_depth", "dim_model_base"),
        *("logit_scale", "logits_scaling", "embedding_scale"),
    },
    "position biases": {"alibi", "relative"},
    "parallel attention and feed-forward": {"use_parallel_residual", "parallel_attn"},
    "an encoder": {"is_encoder_decoder", "encoder_layers", "add_cross_attention"},
    "activations other than silu": {"hidden_activation", "activation_function"},
    "clipped activations": {"swiglu_limit"},
    "hyper-connections": {"hc"},
}
# Some families have these, and their readers read such fields.
_ELSEWHERE = {
    "mixture of experts": {"expert", "experts", "moe"},
    "quantized weights": {"quantization", "compression"},
    "latent attention or low-rank projections": {"lora", "use_mla", "v_head_dim"},
    "sliding-window attention": {"sliding", "window"},
    "chunked attention": {"chunk", "chunked"},
    "blocks that differ by layer": {"block_configs", "layer_types", "attn_type_list"},
    "layers without rotary embedding": {"no_rope_layers", "nope_layer_interval"},
    "partial rotary embedding": {"rotary_dim", "rotary_pct", "partial_rotary_factor"},
    "norms of queries and keys": {"qk"},
    "biases": {"bias"},
}
# Words of what stands beside the decoder, and fields that only look like a feature.
_BESIDE = {"mtp", "nextn", "vision", "audio", "image", "video"}
_HARMLESS = {
    "max_window_layers",
    "output_router_logits",
    "moe_router_dtype",
    "router_bias_update_speed",
}
# With these words, a number is off at one and not at zero.
_OFF_AT_ONE = {"multiplier", "scale", "scaling", "pct", "factor"}
_MTP = ("num_mtp_modules", "num_nextn_predict_layers", "mtp_num_hidden_layers")

LACKING = {
    "gpt_oss": "attention sinks, biased and clipped experts",
    "gemma": "scaled embeddings and gelu",
    "gemma2": "norms after blocks and gelu",
    "gemma3": "norms after blocks and gelu",
    "gemma3_text": "norms after blocks and gelu",
    "cohere": "parallel blocks and layer norms",
    "cohere2": "parallel blocks and layer norms",
    "olmo2": "norms after blocks",
    "olmo3": "norms after blocks",
    "exaone4": "norms after blocks",
    "glm4": "norms after blocks",
    "mllama": "cross-attention layers",
}
"""What well-known types have that the decoders lack and no field announces."""


def unsupported_features(fields: Mapping[str, Any], *, known_type: bool) -> list[str]:
    """Names what fields ask for and the decoders lack.

    Args:
      fields: of a known type, those that its reader has not read; of another, all. One
        that is null, false, zero or empty is off.
      known_type: whether features that some family has count as lacking, too.

    Returns:
      One phrase for each feature, with the field that announces it; empty if all of
      the model can be built.
    """
    table = {**_NOWHERE, **_ELSEWHERE} if known_type else _NOWHERE
    found: dict[str, str] = {}
    for name, value in fields.items():
        words = name.split("_")
        words = {name, f"{words[0]}_", *words}
        if _is_off(name, value, words):
            continue
        for feature, announced in table.items():
            if words & announced:
                found.setdefault(feature, _shown(name, value))
    return [f"{feature} ({field})" for feature, field in found.items()]


def beside_notes(fields: Mapping[str, Any], *, nested: bool) -> list[str]:
    """Sentences on what stands beside the decoder and a step does not run.

    Args:
      fields: of the text model and of the object around it, if any.
      nested: whether there is one: such types have a vision tower, also where the file
        does not describe it.
    """
    objects = [name for name, value in fields.items() if isinstance(value, Mapping)]
    notes = []
    for kind, tower in (("vision", "a vision tower"), ("audio", "an audio tower")):
        described = any(kind in name.split("_") for name in objects)
        if described or (nested and kind == "vision"):
            notes.append(
                f"{tower} stands beside the text model; only the text model is planned"
            )
    number = next((fields[name] for name in _MTP if fields.get(name)), 0)
    if number:
        modules = "module is" if number == 1 else "modules are"
        notes.append(
            f"{number} multi-token-prediction {modules} not run: speculative decoding "
            f"is off"
        )
    return notes


def _is_off(name: str, value: Any, words: set[str]) -> bool:
    """Whether a field says no more than that something is absent."""
    if not value or name in _HARMLESS or words & _BESIDE:
        return True
    one = value == 1 and not isinstance(value, bool)
    return one and bool(words & _OFF_AT_ONE)


def _shown(name: str, value: Any) -> str:
    scalar = isinstance(value, bool | int | float | str)
    return f"{name}: {value}" if scalar else name
