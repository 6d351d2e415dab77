"""Which features of a config.json the dense decoders do not have.

A feature that changes what a step costs must never be dropped silently: the search
would then price another model. Fields are recognised by their words, since families
spell the same feature differently (`num_experts`, `n_routed_experts`).
"""

from collections.abc import Mapping
from typing import Any

# Feature -> words of a field name (split at underscores) that announce it.
_WORDS = {
    "mixture of experts": {"expert", "experts", "moe"},
    "multi-token prediction layers": {"mtp", "nextn"},
    "quantized weights": {"quantization"},
    "linear attention or state-space layers": {"linear", "mamba", "ssm"},
    "a vision or audio tower": {"vision", "audio"},
    "capped logits": {"softcapping"},
}
# Feature -> whole field names.
_FIELDS = {
    "latent attention (MLA)": {"kv_lora_rank", "q_lora_rank", "use_mla"},
    "a nested text model": {"text_config"},
    "blocks that differ by layer": {"block_configs"},
    "biases in the MLP": {"mlp_bias"},
    "sparse attention": {"index_topk"},
    "chunked attention": {"attention_chunk_size"},
}
_ROPE_FIELDS = ("rope_scaling", "rope_parameters")


def unsupported_features(fields: Mapping[str, Any]) -> list[str]:
    """Names what a config asks for and the dense decoders lack.

    Args:
      fields: the parsed config.json. A field that is null, false, zero or empty is off.

    Returns:
      One phrase for each feature, with the field that announces it; empty if all of
      the model can be built.
    """
    found: dict[str, str] = {}
    for name, value in fields.items():
        if not value:
            continue
        words = set(name.split("_"))
        for feature, announced in _WORDS.items():
            if words & announced:
                found.setdefault(feature, _shown(name, value))
        for feature, names in _FIELDS.items():
            if name in names:
                found.setdefault(feature, _shown(name, value))
    found.update(_attention_features(fields))
    activation = fields.get("hidden_act", "silu")
    if activation != "silu":
        found["an activation other than silu"] = _shown("hidden_act", activation)
    return [f"{feature} ({field})" for feature, field in found.items()]


def _attention_features(fields: Mapping[str, Any]) -> dict[str, str]:
    """Windows, mixed layer types, partial rotary, and norms that a type lacks."""
    found = {}
    # Qwen files keep a window's size beside a switch that turns it off.
    switch, window = fields.get("use_sliding_window"), fields.get("sliding_window")
    if switch or (window and switch is not False):
        name = "use_sliding_window" if switch else "sliding_window"
        found["sliding-window attention"] = _shown(name, fields[name])
    kinds = fields.get("layer_types") or ()
    others = sorted({str(kind) for kind in kinds} - {"full_attention"})
    if others:
        found["layers other than full attention"] = f"layer_types: {', '.join(others)}"
    for holder in (fields, *(fields.get(name) for name in _ROPE_FIELDS)):
        share = holder.get("partial_rotary_factor") if isinstance(holder, dict) else 1
        if share not in (None, 1):
            found["partial rotary embedding"] = _shown("partial_rotary_factor", share)
    if fields.get("use_qk_norm") and fields.get("model_type") != "qwen3":
        found["query and key norms outside qwen3"] = "use_qk_norm: True"
    return found


def _shown(name: str, value: Any) -> str:
    scalar = isinstance(value, bool | int | float | str)
    return f"{name}: {value}" if scalar else name
