"""Published config.json files, without the fields that say nothing about the model.

Source of the files in `configs/`: the models' repositories, as shipped in
aiconfigurator-core 0.12.0 (Apache-2.0).
"""

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest

from lts.models import cache_bytes, kv_bytes_per_token, load, names, read_config
from lts.models.architecture import (
    DenseFfn,
    ExpertFfn,
    GroupedAttention,
    LatentAttention,
    Layer,
    Quantization,
    Rope,
    Routing,
)
from lts.models.totals import active_params, num_params

CONFIGS = Path(__file__).parent / "configs"
FILES = {path.stem for path in CONFIGS.glob("*.json")}
FP8 = Quantization(dtype="float8_e4m3fn", block=(128, 128))
INT4 = Quantization(
    dtype="int4", block=(32, 1), scale_dtype="bfloat16", scope="experts"
)
TOWER = "a vision tower stands beside the text model; only the text model is planned"
MTP = "1 multi-token-prediction module is not run: speculative decoding is off"
MTP3 = "3 multi-token-prediction modules are not run: speculative decoding is off"

# Parameters in all and at work on one token, KV cache bytes per token, form of the
# weights, notes. Totals are to the unit those that transformers 5.24 counts, but
# Nemotron's, which it does not have: its bfloat16 weights are 99.74 GB.
LOADED = {
    "meta-llama-3.1-8b": (8030261248, 8030261248, 131072, None, ()),
    "meta-llama-3.1-70b": (70553706496, 70553706496, 327680, None, ()),
    "meta-llama-3.1-405b": (405853388800, 405853388800, 516096, None, ()),
    "qwen3-8b": (8190735360, 8190735360, 147456, None, ()),
    "qwen3-32b": (32762123264, 32762123264, 262144, None, ()),
    "qwen3-32b-fp8": (32762123264, 32762123264, 262144, FP8, ()),
    "qwen3-30b-a3b": (30532122624, 3353032704, 98304, None, ()),
    "qwen3-235b-a22b": (235093634560, 22190763520, 192512, None, ()),
    "qwen3-235b-a22b-fp8": (235093634560, 22190763520, 192512, FP8, ()),
    "qwen3-coder-480b-a35b-instruct": (480154875392, 35474765312, 253952, None, ()),
    "mixtral-8x7b-v0.1": (46702792704, 12879925248, 131072, None, ()),
    "mixtral-8x22b-v0.1": (140620634112, 39152031744, 229376, None, ()),
    "deepseek-v3": (671026419200, 37552297472, 70272, FP8, (MTP,)),
    "deepseek-r1": (671026419200, 37552297472, 70272, FP8, (MTP,)),
    "kimi-k2-instruct": (1026408232448, 32861500928, 70272, FP8, ()),
    "kimi-k2.5": (1026408232448, 32861500928, 70272, INT4, (TOWER,)),
    "minimax-m2.5": (228689764864, 11030553088, 253952, FP8, (MTP3,)),
    "llama-4-scout-17b-16e-instruct": (
        107769861120,
        17172894720,
        196608,
        None,
        (TOWER,),
    ),
    "llama-4-maverick-17b-128e-instruct": (
        400711848960,
        17184691200,
        196608,
        None,
        (TOWER,),
    ),
    "llama-3_3-nemotron-super-49b-v1": (49867145216, 49867145216, 200704, None, ()),
}
REFUSED = {
    "deepseek-v3.2": "sparse attention (index_topk: 2048)",
    "glm-5": "sparse attention (index_topk: 2048)",
    "glm-5.2": "sparse attention (index_topk: 2048)",
    "qwen3.5-397b-a17b": "linear attention or state-space layers (linear_conv_kernel",
}
# Published totals, for files whose models are also what the file says: in 1e9.
PUBLISHED = {
    "meta-llama-3.1-8b": 8.03,
    "meta-llama-3.1-70b": 70.6,
    "meta-llama-3.1-405b": 405,
    "qwen3-8b": 8.2,
    "qwen3-32b": 32.8,
    "qwen3-30b-a3b": 30.5,
    "qwen3-235b-a22b": 235,
    "qwen3-coder-480b-a35b-instruct": 480,
    "mixtral-8x7b-v0.1": 46.7,
    "mixtral-8x22b-v0.1": 141,
    "deepseek-v3": 671,
    "kimi-k2-instruct": 1026.4,
    "minimax-m2.5": 230,
    "llama-4-maverick-17b-128e-instruct": 400,
    "llama-3_3-nemotron-super-49b-v1": 49.87,
}
# The zoo's copy of a file.
ZOO = {
    "llama-3.1-8b": "meta-llama-3.1-8b",
    "llama-3.1-70b": "meta-llama-3.1-70b",
    "llama-3.1-405b": "meta-llama-3.1-405b",
    "qwen3-8b": "qwen3-8b",
    "qwen3-32b": "qwen3-32b",
    "qwen3-235b-a22b": "qwen3-235b-a22b",
    "mixtral-8x7b": "mixtral-8x7b-v0.1",
    "mixtral-8x22b": "mixtral-8x22b-v0.1",
    "deepseek-v3": "deepseek-v3",
    "kimi-k2": "kimi-k2-instruct",
}


def config_of(file: str):
    fields = json.loads((CONFIGS / f"{file}.json").read_text(encoding="utf-8"))
    return read_config(fields, file)


def test_every_file_is_loaded_or_refused():
    assert FILES == LOADED.keys() | REFUSED.keys()
    assert len(REFUSED) <= 4


@pytest.mark.parametrize("file", LOADED)
def test_a_published_file_gives_its_totals(file):
    config = config_of(file)
    total, active, kv_bytes, quantization, notes = LOADED[file]
    assert num_params(config) == total
    assert active_params(config) == active
    assert kv_bytes_per_token(config) == kv_bytes
    assert config.quantization == quantization
    assert config.notes == notes
    assert config.dtype == "bfloat16"


@pytest.mark.parametrize("file", REFUSED)
def test_a_published_file_is_refused_by_the_feature_s_name(file):
    with pytest.raises(ValueError) as caught:
        config_of(file)
    text = str(caught.value)
    assert REFUSED[file] in text and "is not supported" in text and "\n" not in text


@pytest.mark.parametrize("file", PUBLISHED)
def test_totals_are_within_1_percent_of_the_published_ones(file):
    assert num_params(config_of(file)) / 1e9 == pytest.approx(PUBLISHED[file], rel=0.01)


def test_the_zoo_is_made_of_the_published_files():
    for name, file in ZOO.items():
        assert load(name).config == replace(config_of(file), name=name)
    assert set(names()) == ZOO.keys() | {"moe-1.6t", "switch-c-2048"}


def test_the_zoo_s_own_models_have_1_6_trillion_parameters():
    moe, switch = load("moe-1.6t").config, load("switch-c-2048").config
    assert num_params(moe) == 1613390234112 == pytest.approx(1.6e12, rel=0.01)
    # Switch-C is published with 1571e9 (arXiv 2101.03961, table 9).
    assert num_params(switch) == 1571120172960 == pytest.approx(1.571e12, rel=1e-3)
    assert active_params(moe) == 52102513152 and active_params(switch) == 1539526560
    assert moe.quantization == FP8 and switch.quantization is None
    assert kv_bytes_per_token(moe) == 88 * 2 * 8 * 128 * 2
    assert kv_bytes_per_token(switch) == 30 * 2 * 32 * 64 * 2


@pytest.mark.parametrize("name", names())
def test_closed_forms_agree_with_the_arrays_of_every_zoo_model(name):
    model = load(name)
    assert num_params(model.config) == model.num_params


def test_deepseek_v3_is_read_whole():
    config = config_of("deepseek-v3")
    first, last = config.layers[0], config.layers[-1]
    attention = LatentAttention(
        num_heads=128,
        query_rank=1536,
        kv_rank=512,
        nope_dim=128,
        value_dim=128,
        rope=first.attention.rope,
    )
    experts = ExpertFfn(
        num_experts=256,
        top_k=8,
        size=2048,
        shared_size=2048,
        routing=Routing(
            scores="sigmoid", biased=True, groups=8, top_groups=4, scale=2.5
        ),
    )
    assert first == Layer(attention=attention, ffn=DenseFfn(size=18432))
    assert last == Layer(attention=attention, ffn=experts)
    assert [segment.repeats for segment in config.segments] == [3, 58]
    # 0.1 ln 40 + 1, squared (modeling_deepseek.py, softmax_scale).
    assert attention.rope.attention_scale == pytest.approx(1.8738542, rel=1e-6)


def test_llama_4_alternates_as_published():
    scout = config_of("llama-4-scout-17b-16e-instruct")
    (segment,) = scout.segments
    assert segment.repeats == 12 and len(segment.unit) == 4
    turned, bare = segment.unit[0].attention, segment.unit[3].attention
    assert turned.chunked and turned.window == 8192 and turned.qk_norm == "unit"
    assert bare.rope is None and bare.window is None
    assert bare.query_scaling == (8192.0, 0.1)
    # Three layers of four keep no more than a chunk.
    assert cache_bytes(scout, 65536) == 196608 * (8192 * 3 + 65536) // 4
    maverick = config_of("llama-4-maverick-17b-128e-instruct")
    (segment,) = maverick.segments
    sizes = [type(layer.ffn) for layer in segment.unit]
    assert segment.repeats == 12 and sizes == [DenseFfn, ExpertFfn] * 2
    assert segment.unit[0].attention.qk_norm == "none"


def test_minimax_turns_half_of_each_head():
    (segment,) = config_of("minimax-m2.5").segments
    assert segment.unit[0].attention == GroupedAttention(
        num_heads=48,
        num_kv_heads=8,
        head_dim=128,
        rope=Rope(size=64, theta=5000000),
        qk_norm="layer",
    )


def test_nemotron_has_attention_in_49_of_80_layers():
    config = config_of("llama-3_3-nemotron-super-49b-v1")
    attentions = [layer.attention for layer in config.layers]
    assert len(attentions) == 80 and attentions.count(None) == 31
    sizes = {layer.ffn.size for layer in config.layers}
    assert sizes == {2816, 5632, 7168, 14336, 17920, 28672}


def places(value, path=()):
    """Paths of every field of a parsed file, and of the first entry of every list."""
    steps = value.items() if isinstance(value, dict) else enumerate(value[:1])
    for step, inner in steps:
        yield (*path, step)
        if isinstance(inner, dict | list):
            yield from places(inner, (*path, step))


@pytest.mark.parametrize(
    "file", ["kimi-k2.5", "minimax-m2.5", "llama-4-scout-17b-16e-instruct"]
)
def test_any_bad_value_is_accepted_or_refused_in_one_line(file):
    fields = json.loads((CONFIGS / f"{file}.json").read_text(encoding="utf-8"))
    for *path, last in places(fields):
        for bad in (None, True, -1, 3.5, float("inf"), "x", ["x"], {"a": {"b": 1}}):
            changed = copy.deepcopy(fields)
            inner = changed
            for step in path:
                inner = inner[step]
            inner[last] = bad
            try:
                read_config(changed, "m")
            except ValueError as error:
                text = str(error)
                assert text.startswith("config of 'm': ") and "\n" not in text
