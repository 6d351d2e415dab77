"""Reading config.json: one clear line for what is missing, bad, or not supported."""

import pytest

from lts.models import read_config
from lts.models.reading import MODEL_TYPES
from lts.models.rope import LinearRope, Llama3Rope, YarnRope
from tests.models.config_fields import DEEPSEEK, LLAMA, MOE, QWEN3, message_of

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}


def rope_of(fields):
    attention = read_config(fields, "m").layers[0].attention
    assert attention is not None and attention.rope is not None
    return attention.rope


def test_newer_files_keep_rotary_settings_and_dtype_elsewhere():
    older = read_config(LLAMA | {"rope_scaling": LLAMA3, "torch_dtype": "float16"}, "m")
    gone = ("rope_scaling", "rope_theta", "torch_dtype")
    fields = {k: v for k, v in LLAMA.items() if k not in gone}
    fields["rope_parameters"] = LLAMA3 | {"rope_theta": 500000.0}
    assert read_config(fields | {"dtype": "float16"}, "m") == older
    assert read_config(fields, "m").dtype == "bfloat16"


def test_every_kind_of_rotary_scaling_is_read():
    linear = LLAMA | {"rope_scaling": {"type": "linear", "factor": 2}}
    assert rope_of(linear).scaling == LinearRope(factor=2.0)
    assert rope_of(LLAMA | {"rope_scaling": {"rope_type": "default"}}).scaling is None
    llama3 = rope_of(LLAMA | {"rope_scaling": LLAMA3})
    assert llama3.scaling == Llama3Rope(
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=8192.0,
    )
    assert llama3.size == 128 and llama3.theta == 500000.0
    assert llama3.attention_scale == 1.0


def test_yarn_scales_the_scores_as_each_family_does():
    grouped = rope_of(LLAMA | {"rope_scaling": YARN})
    # 0.1 ln 40 + 1 on queries and on keys.
    assert grouped.attention_scale == pytest.approx(1.3688879454113936**2)
    given = YARN | {"attention_factor": 0.9, "beta_fast": 16}
    explicit = rope_of(LLAMA | {"rope_scaling": given})
    assert explicit.attention_scale == pytest.approx(0.81)
    assert isinstance(explicit.scaling, YarnRope) and explicit.scaling.beta_fast == 16
    equal = YARN | {"mscale": 0.707, "mscale_all_dim": 0.707}
    assert rope_of(LLAMA | {"rope_scaling": equal}).attention_scale == 1.0
    latent = rope_of(DEEPSEEK | {"rope_scaling": equal})
    assert latent.attention_scale == pytest.approx(1.260803777405855**2)
    plain = message_of(DEEPSEEK | {"rope_scaling": YARN})
    assert "mscale 0 and mscale_all_dim 0" in plain and "must be equal" in plain


@pytest.mark.parametrize(
    "field",
    [
        "model_type",
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "max_position_embeddings",
        "head_dim",
        "num_key_value_heads",
    ],
)
def test_a_missing_field_is_named(field):
    fields = {k: v for k, v in QWEN3.items() if k != field}
    assert f"field '{field}' is missing" in message_of(fields)
    assert f"field '{field}' is missing" in message_of(fields | {field: None})


@pytest.mark.parametrize(
    "field", ["num_experts", "num_experts_per_tok", "moe_intermediate_size"]
)
def test_a_missing_field_of_experts_is_named(field):
    assert f"field '{field}' is missing" in message_of(MOE | {field: None})


@pytest.mark.parametrize(
    "field",
    ["hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"],
)
@pytest.mark.parametrize("value", [True, 32.0, "32", [32]])
def test_a_non_integer_size_is_named(field, value):
    for fields in (LLAMA, QWEN3, MOE):
        expected = f"field '{field}' must be an integer, got {value!r}"
        assert expected in message_of(fields | {field: value})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"hidden_size": 0}, "field 'hidden_size' must be at least 1, got 0"),
        ({"vocab_size": -5}, "field 'vocab_size' must be at least 1, got -5"),
        ({"num_attention_heads": 0}, "field 'num_attention_heads' must be at least 1"),
        (
            {"num_key_value_heads": 5},
            "query heads (32) must be a multiple of KV heads (5)",
        ),
        ({"head_dim": 127}, "must be even and at most the head size (127), got 127"),
        ({"hidden_size": 4100}, "hidden_size (4100) is not a multiple of"),
        ({"rms_norm_eps": "tiny"}, "'rms_norm_eps' must be a positive number"),
        ({"rope_theta": 0}, "'rope_theta' must be a positive number, got 0"),
        ({"torch_dtype": "int8"}, "dtype must be one of bfloat16, float16, float32"),
        ({"tie_word_embeddings": 1}, "'tie_word_embeddings' must be true or false"),
        ({"rope_scaling": 4}, "field 'rope_scaling' must be an object, got 4"),
        ({"rope_scaling": {"type": "linear"}}, "field 'factor' is missing"),
        (
            {"rope_scaling": LLAMA3 | {"factor": "8"}},
            "'rope scaling: factor' must be a positive number, got '8'",
        ),
        (
            {"rope_scaling": LLAMA3 | {"high_freq_factor": 0.5}},
            "high_freq_factor 0.5 must not be below low_freq_factor 1.0",
        ),
        ({"layer_types": ["full_attention"] * 3}, "has 3 entries for 32 layers"),
        ({"layer_types": "full_attention"}, "field 'layer_types' must be a list"),
    ],
)
def test_a_bad_value_is_named(change, expected):
    assert expected in message_of(LLAMA | change)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"num_experts": 8}, "mixture of experts (num_experts: 8)"),
        ({"n_routed_experts": 256}, "mixture of experts (n_routed_experts: 256)"),
        ({"moe_intermediate_size": 768}, "mixture of experts"),
        ({"kv_lora_rank": 512}, "latent attention or low-rank projections"),
        ({"use_sliding_window": True}, "sliding-window attention (use_sliding_window"),
        ({"sliding_window": 4096}, "sliding-window attention (sliding_window: 4096)"),
        (
            {"layer_types": ["full_attention", "sliding_attention"] * 16},
            "sliding-window layers (layer_types)",
        ),
        (
            {"layer_types": ["linear_attention", "full_attention"] * 16},
            "layers of linear_attention (layer_types)",
        ),
        ({"linear_num_key_heads": 16}, "linear attention or state-space layers"),
        ({"mamba_d_state": 16}, "linear attention or state-space layers"),
        ({"block_configs": [{"ffn": {}}]}, "blocks that differ by layer"),
        ({"hidden_act": "gelu"}, "hidden_act: 'gelu' is not supported, only 'silu' is"),
        ({"mlp_bias": True}, "biases (mlp_bias: True)"),
        ({"index_topk": 2048}, "sparse attention (index_topk: 2048)"),
        ({"attention_chunk_size": 8192}, "chunked attention"),
        ({"dual_chunk_attention_config": {"chunk_size": 8}}, "chunked attention"),
        ({"attn_logit_softcapping": 50.0}, "capped logits"),
        ({"attn_output_gate": True}, "gated attention"),
        ({"clip_qkv": 8.0}, "clipped queries, keys and values (clip_qkv: 8.0)"),
        ({"residual_multiplier": 0.22}, "scaled embeddings, residuals or logits"),
        ({"partial_rotary_factor": 0.5}, "partial rotary embedding"),
        ({"use_qk_norm": True}, "norms of queries and keys (use_qk_norm: True)"),
        ({"no_rope_layers": [1, 0]}, "layers without rotary embedding"),
        ({"is_encoder_decoder": True}, "an encoder (is_encoder_decoder: True)"),
        ({"alibi": True}, "position biases (alibi: True)"),
        ({"rope_scaling": {"type": "dynamic"}}, "rope scaling 'dynamic'"),
        ({"rope_scaling": {"type": "longrope"}}, "rope scaling 'longrope'"),
        (
            {"rope_scaling": YARN | {"llama_4_scaling_beta": 0.1}},
            "rope scaling 'yarn' has a field that is not supported: llama_4_scaling",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            "rope scaling per layer type (full_attention)",
        ),
        ({"text_config": {"hidden_size": 8}}, "with a text model of its own"),
    ],
)
def test_a_feature_that_changes_the_cost_is_refused_by_name(change, expected):
    text = message_of(LLAMA | change)
    assert expected in text and "not supported" in text


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (MOE | {"shared_expert_intermediate_size": 64}, "mixture of experts (shared_"),
        (MOE | {"use_qk_norm": False}, "use_qk_norm: False is not supported"),
        (MOE | {"hidden_act": "relu"}, "hidden_act: 'relu' is not supported"),
        (DEEPSEEK | {"attention_bias": True}, "biases (attention_bias: True)"),
        (DEEPSEEK | {"index_topk": 2048}, "sparse attention (index_topk: 2048)"),
        (DEEPSEEK | {"scoring_func": "softmax"}, "scoring_func: 'softmax' is not"),
        (DEEPSEEK | {"moe_layer_freq": 2}, "moe_layer_freq: 2 is not supported"),
        (DEEPSEEK | {"n_group": 3}, "expert groups (3) must divide the experts (64)"),
        (
            LLAMA | {"model_type": "qwen2_moe", "use_sliding_window": True},
            "use_sliding_window needs layer_types in qwen2_moe",
        ),
        (
            LLAMA | {"model_type": "phi3", "rope_scaling": YARN},
            "scaled rotary embedding is not supported in phi3",
        ),
    ],
)
def test_a_family_refuses_what_it_does_not_have(fields, expected):
    assert expected in message_of(fields)


def test_all_lacking_features_stand_in_one_line():
    text = message_of(LLAMA | {"num_experts": 8, "sliding_window": 8, "clip_qkv": 8})
    for feature in ("mixture of experts", "sliding-window", "clipped queries"):
        assert feature in text


def test_features_that_are_switched_off_are_accepted():
    off = {
        "num_experts": 0,
        "num_local_experts": None,
        "quantization_config": None,
        "num_nextn_predict_layers": 0,
        "partial_rotary_factor": 1.0,
        "embedding_multiplier": 1.0,
        "mlp_only_layers": [],
        "sliding_window": None,
        "layer_types": ["full_attention"] * 32,
        "chunk_size_feed_forward": 0,
        "max_window_layers": 28,
        "is_encoder_decoder": False,
    }
    assert read_config(LLAMA | off, "m") == read_config(LLAMA, "m")


def test_what_does_not_run_is_noted():
    fields = LLAMA | {"num_mtp_modules": 3, "use_mtp": True, "audio_config": {"d": 8}}
    assert read_config(fields, "m").notes == (
        "an audio tower stands beside the text model; only the text model is planned",
        "3 multi-token-prediction modules are not run: speculative decoding is off",
    )


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("gemma3_text", "norms after blocks and gelu"),
        ("gpt_oss", "attention sinks, biased and clipped experts"),
        ("mamba2", ""),
    ],
)
def test_other_model_types_are_refused_with_the_accepted_ones(model_type, reason):
    text = message_of(LLAMA | {"model_type": model_type})
    assert f"model_type '{model_type}' is not supported" in text and reason in text
    assert ", ".join(MODEL_TYPES) in text and "deepseek_v3" in MODEL_TYPES
