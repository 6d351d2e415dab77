"""Reading how a config.json says that weights are quantized, and which are."""

import pytest

from lts.models import read_config
from lts.models.architecture import Quantization
from tests.models.config_fields import DEEPSEEK, LLAMA, MOE, message_of

FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 64]}
INT4 = {
    "type": "int",
    "num_bits": 4,
    "strategy": "group",
    "group_size": 32,
    "symmetric": True,
}


def compressed(weights, *ignore, **more):
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    method = {"quant_method": "compressed-tensors", "config_groups": groups}
    return {"quantization_config": method | {"ignore": list(ignore)} | more}


def test_fp8_weights_have_a_scale_per_block_of_inputs_and_outputs():
    config = read_config(LLAMA | {"quantization_config": FP8}, "m")
    assert config.quantization == Quantization(
        dtype="float8_e4m3fn", block=(64, 128), scale_dtype="float32", scope="layers"
    )
    outside = ["lm_head", "model.layers.3.input_layernorm", "model.layers.3.mlp.gate"]
    skipping = FP8 | {"modules_to_not_convert": outside}
    assert read_config(MOE | {"quantization_config": skipping}, "m").quantization == (
        config.quantization
    )


def test_int4_weights_have_a_scale_per_group_of_inputs():
    whole = read_config(LLAMA | compressed(INT4, "lm_head"), "m")
    assert whole.quantization == Quantization(
        dtype="int4", block=(32, 1), scale_dtype="bfloat16", scope="layers"
    )
    ignore = (
        "lm_head",
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
    )
    experts = read_config(DEEPSEEK | compressed(INT4, *ignore), "m")
    assert experts.quantization is not None
    assert experts.quantization.scope == "experts"
    blocks = {"type": "float", "num_bits": 8, "strategy": "block"}
    blocks["block_structure"] = [128, 64]
    floats = read_config(LLAMA | compressed(blocks, "lm_head"), "m").quantization
    assert floats is not None and floats.block == (64, 128)
    assert floats.dtype == "float8_e4m3fn" and floats.scale_dtype == "bfloat16"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "'awq' is not"),
        ({"quantization_config": {"quant_algo": "NVFP4"}}, "'NVFP4' is not supported"),
        (
            {"quantization_config": FP8 | {"weight_block_size": None}},
            "need a scale per block of a matrix (weight_block_size: [128, 128])",
        ),
        (
            {"quantization_config": FP8 | {"fmt": "e5m2"}},
            "fmt: 'e5m2' is not supported",
        ),
        (
            {"quantization_config": FP8 | {"modules_to_not_convert": ["self_attn"]}},
            "quantization skips weights of attention ('self_attn')",
        ),
        (
            {
                "quantization_config": FP8
                | {"modules_to_not_convert": ["model.layers.7.mlp.down_proj"]}
            },
            "skips weights of dense layers ('model.layers.7.mlp.down_proj')",
        ),
        (
            {
                "quantization_config": FP8
                | {"modules_to_not_convert": ["model.layers.7.mixer.in_proj"]}
            },
            "skips 'model.layers.7.mixer.in_proj', which is no module that is known",
        ),
        (compressed(INT4 | {"symmetric": False}), "4 bits (int, by group) are not"),
        (
            compressed(INT4 | {"actorder": "group"}),
            "4-bit weights with actorder: 'group'",
        ),
        (
            compressed({"num_bits": 8, "type": "float", "strategy": "channel"}),
            "channel",
        ),
        (compressed(INT4, kv_cache_scheme={"num_bits": 8}), "quantized KV cache"),
        (compressed(INT4, config_groups={}), "compressed-tensors with 0 groups"),
    ],
)
def test_other_quantization_is_refused_with_a_way_out(change, expected):
    text = message_of(LLAMA | change)
    assert expected in text and ("dtype" in text or "only 'e4m3'" in text)


def test_modules_of_layers_that_do_not_run_may_be_skipped():
    skipping = {"modules_to_not_convert": ["model.layers.32.eh_proj", "vision_tower"]}
    config = read_config(LLAMA | {"quantization_config": FP8 | skipping}, "m")
    assert config.quantization is not None and config.quantization.scope == "layers"
