"""Reading config.json: what is accepted, and one clear line for what is not."""

import pytest

from lts.models import DecoderConfig, kv_bytes_per_token, read_config
from lts.models.rope import LinearRope, Llama3Rope

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 128256,
}
QWEN3 = LLAMA | {
    "model_type": "qwen3",
    "head_dim": 128,
    "max_window_layers": 36,
    "sliding_window": None,
    "use_sliding_window": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def message_of(fields) -> str:
    with pytest.raises(ValueError) as caught:
        read_config(fields, "m")
    text = str(caught.value)
    assert "\n" not in text and text.startswith("config of 'm'")
    return text


def test_a_llama_config_is_read_whole():
    config = read_config(LLAMA | {"rope_scaling": LLAMA3}, "m")
    assert config == DecoderConfig(
        name="m",
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        rope_theta=500000.0,
        rope_scaling=Llama3Rope(
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=8192.0,
        ),
        dtype="bfloat16",
    )
    assert config.queries_per_kv_head == 4


def test_what_a_model_type_implies():
    qwen3 = read_config(QWEN3 | {"head_dim": 64}, "m")
    assert qwen3.qk_norm and qwen3.head_dim == 64 and not qwen3.qkv_bias
    # Qwen2 files give a window's size beside the switch that turns it off.
    fields = LLAMA | {
        "model_type": "qwen2",
        "sliding_window": 131072,
        "use_sliding_window": False,
        "layer_types": ["full_attention"] * 32,
    }
    qwen2 = read_config(fields, "m")
    assert qwen2.qkv_bias and not qwen2.out_bias and not qwen2.qk_norm
    biased = read_config(LLAMA | {"attention_bias": True}, "m")
    assert biased.qkv_bias and biased.out_bias
    mistral = read_config(
        LLAMA | {"model_type": "mistral", "sliding_window": None}, "m"
    )
    assert not (mistral.qkv_bias or mistral.out_bias or mistral.qk_norm)


def test_first_llama_files_have_a_kv_head_per_query_head():
    fields = {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}
    assert read_config(fields, "m").num_key_value_heads == 32
    missing = message_of(fields | {"model_type": "mistral"})
    assert "field 'num_key_value_heads' is missing" in missing


def test_newer_files_keep_rotary_settings_and_dtype_elsewhere():
    older = read_config(LLAMA | {"rope_scaling": LLAMA3, "torch_dtype": "float16"}, "m")
    gone = ("rope_scaling", "rope_theta", "torch_dtype")
    fields = {k: v for k, v in LLAMA.items() if k not in gone}
    fields["rope_parameters"] = LLAMA3 | {"rope_theta": 500000.0}
    assert read_config(fields | {"dtype": "float16"}, "m") == older
    assert read_config(fields, "m").dtype == "bfloat16"


def test_linear_and_default_rotary_scaling_are_read():
    linear = LLAMA | {"rope_scaling": {"type": "linear", "factor": 2}}
    assert read_config(linear, "m").rope_scaling == LinearRope(factor=2.0)
    default = LLAMA | {"rope_scaling": {"rope_type": "default"}}
    assert read_config(default, "m").rope_scaling is None


def test_kv_bytes_count_keys_and_values_of_all_layers():
    config = read_config(LLAMA, "m")
    assert kv_bytes_per_token(config, "bfloat16") == 2 * 32 * 8 * 128 * 2 == 131072
    assert kv_bytes_per_token(config) == 131072
    assert kv_bytes_per_token(config, "float8_e4m3fn") == 65536


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
    "field",
    ["hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"],
)
@pytest.mark.parametrize("value", [True, 32.0, "32", [32]])
def test_a_non_integer_size_is_named(field, value):
    for fields in (LLAMA, QWEN3):
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
            "num_attention_heads (32) must be a multiple of num_key_value_heads (5)",
        ),
        ({"head_dim": 127}, "head_dim must be even for rotary embedding, got 127"),
        ({"hidden_size": 4100}, "hidden_size (4100) is not a multiple of"),
        ({"rms_norm_eps": "tiny"}, "'rms_norm_eps' must be a positive number"),
        ({"rope_theta": 0}, "'rope_theta' must be a positive number, got 0"),
        ({"torch_dtype": "int8"}, "dtype must be one of bfloat16, float16, float32"),
        ({"tie_word_embeddings": 1}, "'tie_word_embeddings' must be true or false"),
        ({"rope_scaling": 4}, "rope scaling must be an object"),
        ({"rope_scaling": {"type": "linear"}}, "field 'factor' is missing"),
        (
            {"rope_scaling": LLAMA3 | {"factor": "8"}},
            "field 'factor' must be a positive number, got '8'",
        ),
        (
            {"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}},
            "high_freq_factor 1.0 must exceed low_freq_factor 1.0",
        ),
    ],
)
def test_a_bad_value_is_named(change, expected):
    assert expected in message_of(LLAMA | change)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"num_experts": 8}, "mixture of experts (num_experts: 8)"),
        ({"n_routed_experts": 256}, "mixture of experts (n_routed_experts: 256)"),
        ({"num_local_experts": 8}, "mixture of experts (num_local_experts: 8)"),
        ({"moe_intermediate_size": 768}, "mixture of experts"),
        ({"kv_lora_rank": 512}, "latent attention (MLA) (kv_lora_rank: 512)"),
        (
            {"quantization_config": {"quant_method": "fp8"}},
            "quantized weights (quantization_config)",
        ),
        (
            {"use_sliding_window": True, "sliding_window": 4096},
            "sliding-window attention (use_sliding_window: True)",
        ),
        ({"sliding_window": 4096}, "sliding-window attention (sliding_window: 4096)"),
        (
            {"layer_types": ["full_attention", "sliding_attention"]},
            "layers other than full attention (layer_types: sliding_attention)",
        ),
        (
            {"layer_types": ["linear_attention", "full_attention"]},
            "layers other than full attention (layer_types: linear_attention)",
        ),
        ({"linear_num_key_heads": 16}, "linear attention"),
        ({"text_config": {"hidden_size": 8}}, "a nested text model (text_config)"),
        ({"vision_config": {"depth": 8}}, "a vision or audio tower (vision_config)"),
        ({"block_configs": [{"ffn": {}}]}, "blocks that differ by layer"),
        ({"hidden_act": "gelu"}, "an activation other than silu (hidden_act: gelu)"),
        ({"num_nextn_predict_layers": 1}, "multi-token prediction layers"),
        ({"num_mtp_modules": 3}, "multi-token prediction layers (num_mtp_modules: 3)"),
        ({"mlp_bias": True}, "biases in the MLP (mlp_bias: True)"),
        ({"index_topk": 2048}, "sparse attention (index_topk: 2048)"),
        ({"attention_chunk_size": 8192}, "chunked attention"),
        ({"attn_logit_softcapping": 50.0}, "capped logits"),
        ({"partial_rotary_factor": 0.5}, "partial rotary embedding"),
        ({"use_qk_norm": True}, "query and key norms outside qwen3"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope scaling 'yarn'"),
        ({"rope_scaling": {"type": "dynamic"}}, "rope scaling 'dynamic'"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            "rope scaling per layer type (full_attention)",
        ),
    ],
)
def test_a_feature_that_changes_the_cost_is_refused_by_name(change, expected):
    text = message_of(LLAMA | change)
    assert expected in text and "not supported" in text


def test_all_lacking_features_stand_in_one_line():
    text = message_of(
        LLAMA | {"model_type": "deepseek_v3", "n_routed_experts": 256, "q_lora_rank": 8}
    )
    assert "mixture of experts" in text and "latent attention" in text


def test_features_that_are_switched_off_are_accepted():
    off = {
        "num_experts": 0,
        "num_local_experts": None,
        "quantization_config": None,
        "num_nextn_predict_layers": 0,
        "partial_rotary_factor": 1.0,
        "mlp_only_layers": [],
    }
    assert read_config(LLAMA | off, "m") == read_config(LLAMA, "m")


def test_other_model_types_are_refused_with_the_accepted_ones():
    text = message_of(LLAMA | {"model_type": "gemma3_text"})
    assert "'gemma3_text'" in text and "llama, mistral, qwen2, qwen3" in text
