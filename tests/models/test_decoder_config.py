"""The record of a decoder: what it accepts, what a cache needs, and JSON and back."""

import json
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from lts.models import (
    DecoderConfig,
    cache_bytes,
    config_from_dict,
    config_to_dict,
    dense_decoder,
    kv_bytes_per_token,
    load,
    names,
)
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
from lts.models.config import float_dtype
from lts.models.rope import LinearRope, Llama3Rope, YarnRope

GROUPED = GroupedAttention(num_heads=8, num_kv_heads=2, head_dim=16, rope=Rope(size=16))
LATENT = LatentAttention(
    num_heads=8,
    query_rank=24,
    kv_rank=32,
    nope_dim=16,
    value_dim=16,
    rope=Rope(
        size=8, scaling=YarnRope(factor=4.0, original_max_position_embeddings=64)
    ),
)
EXPERTS = ExpertFfn(num_experts=8, top_k=2, size=64, routing=Routing(groups=4))
DENSE = DenseFfn(size=128)


def config_of(*layers: Layer, **changes) -> DecoderConfig:
    fields = {
        "name": "m",
        "vocab_size": 32,
        "hidden_size": 64,
        "layers": layers,
        "max_position_embeddings": 128,
    }
    return DecoderConfig(**fields | changes)


def message_of(*layers: Layer, **changes) -> str:
    with pytest.raises(ValueError) as caught:
        config_of(*layers, **changes)
    text = str(caught.value)
    assert "\n" not in text and text.startswith("config of 'm'")
    return text


def test_a_dense_decoder_by_hand_is_equal_layers_of_grouped_attention():
    config = dense_decoder(
        name="m",
        vocab_size=32,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=128,
        rope_theta=5e5,
        rope_scaling=LinearRope(factor=2.0),
        qkv_bias=True,
        qk_norm=True,
    )
    rope = Rope(size=16, theta=5e5, scaling=LinearRope(factor=2.0))
    attention = replace(GROUPED, rope=rope, qkv_bias=True, qk_norm="head")
    assert config == config_of(*[Layer(attention=attention, ffn=DENSE)] * 3)
    assert config.num_hidden_layers == 3 and hash(config) == hash(replace(config))
    (segment,) = config.segments
    assert segment.depth == 3 and len(segment.unit) == 1


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"vocab_size": 0}, "field 'vocab_size' must be at least 1, got 0"),
        ({"hidden_size": 64.0}, "field 'hidden_size' must be an integer, got 64.0"),
        ({"rms_norm_eps": -1.0}, "field 'rms_norm_eps' must be a positive number"),
        ({"dtype": "int8"}, "dtype must be one of bfloat16, float16, float32"),
        (
            {"quantization": Quantization(dtype="int3", block=(1, 1))},
            "quantized weights must be float8_e4m3fn or int4, got 'int3'",
        ),
        (
            {"quantization": Quantization(dtype="int4", block=(0, 1))},
            "field 'block' must be at least 1, got 0",
        ),
    ],
)
def test_a_bad_value_of_a_decoder_is_named(change, expected):
    assert expected in message_of(Layer(attention=GROUPED, ffn=DENSE), **change)


def test_a_decoder_and_a_layer_cannot_be_empty():
    assert "there must be at least one layer" in message_of()
    empty = message_of(Layer(attention=None, ffn=None))
    assert "a layer needs attention or a feed-forward part" in empty


@pytest.mark.parametrize(
    ("attention", "expected"),
    [
        (
            replace(GROUPED, num_kv_heads=3),
            "query heads (8) must be a multiple of KV heads (3)",
        ),
        (
            replace(GROUPED, rope=Rope(size=15)),
            "must be even and at most the head size (16), got 15",
        ),
        (
            replace(GROUPED, rope=Rope(size=32)),
            "must be even and at most the head size (16), got 32",
        ),
        (
            replace(GROUPED, rope=Rope(size=16, theta=0.0)),
            "field 'rope_theta' must be a positive number, got 0.0",
        ),
        (replace(GROUPED, window=0), "field 'window' must be at least 1, got 0"),
        (replace(GROUPED, chunked=True), "chunked attention needs a window, got None"),
        (
            replace(GROUPED, qk_norm="heads"),
            "qk_norm must be one of none, head, layer, unit, got 'heads'",
        ),
        (
            replace(GROUPED, query_scaling=(8192.0, 0.0)),
            "field 'query_scaling' must be a positive number, got 0.0",
        ),
        (replace(LATENT, kv_rank=0), "field 'kv_rank' must be at least 1, got 0"),
        (replace(LATENT, query_rank=0), "field 'query_rank' must be at least 1"),
        (replace(LATENT, rope=Rope(size=7)), "must be even"),
    ],
)
def test_attention_that_does_not_fit_together_is_refused(attention, expected):
    assert expected in message_of(Layer(attention=attention, ffn=DENSE))


@pytest.mark.parametrize(
    ("ffn", "expected"),
    [
        (DenseFfn(size=0), "field 'size' must be at least 1, got 0"),
        (
            replace(EXPERTS, top_k=9),
            "experts per token (9) must be at most the number of experts (8)",
        ),
        (
            replace(EXPERTS, routing=Routing(groups=3)),
            "expert groups (3) must divide the experts (8)",
        ),
        (
            replace(EXPERTS, top_k=3, routing=Routing(groups=4)),
            "experts per token (3) must be at most those of the 1 chosen groups (2)",
        ),
        (
            replace(EXPERTS, top_k=1, routing=Routing(groups=8)),
            "a group's score sums 2 experts, but a group has 1",
        ),
        (
            replace(EXPERTS, routing=Routing(on_input=True)),
            "weights on the input need one expert per token, not 2",
        ),
        (
            replace(EXPERTS, shared_gated=True),
            "a gate of the shared expert needs a shared expert",
        ),
        (
            replace(EXPERTS, routing=Routing(scale=0.0)),
            "field 'scale' must be a positive number, got 0.0",
        ),
    ],
)
def test_experts_that_do_not_fit_together_are_refused(ffn, expected):
    assert expected in message_of(Layer(attention=GROUPED, ffn=ffn))


def test_kv_bytes_count_keys_and_values_or_the_latent_of_all_layers():
    grouped, latent = (
        Layer(attention=GROUPED, ffn=DENSE),
        Layer(attention=LATENT, ffn=DENSE),
    )
    bare = Layer(attention=None, ffn=DENSE)
    assert kv_bytes_per_token(config_of(grouped, bare, grouped)) == 2 * 2 * 2 * 16 * 2
    assert kv_bytes_per_token(config_of(latent)) == (32 + 8) * 2
    assert kv_bytes_per_token(config_of(latent), "float8_e4m3fn") == 40
    assert kv_bytes_per_token(load("deepseek-v3").config) == 61 * (512 + 64) * 2


def test_a_layer_with_a_window_caches_no_more_than_the_window():
    full = Layer(attention=GROUPED, ffn=DENSE)
    sliding = Layer(attention=replace(GROUPED, window=10), ffn=DENSE)
    config, row = config_of(sliding, full), 2 * 2 * 16 * 2
    assert kv_bytes_per_token(config) == 2 * row
    assert cache_bytes(config, 10) == 20 * row
    assert cache_bytes(config, 100) == (10 + 100) * row
    assert cache_bytes(config, 100, "float32") == 2 * (10 + 100) * row


def test_float_dtypes_are_given_by_name_or_are_the_config_s_own():
    config = config_of(Layer(attention=GROUPED, ffn=DENSE), dtype="float16")
    assert float_dtype(config, None) == np.dtype("float16")
    assert float_dtype(config, "float8_e4m3fn") == jnp.dtype("float8_e4m3fn")
    for bad in ("int8", "bf16", 4):
        with pytest.raises(ValueError, match="need a floating-point dtype"):
            float_dtype(config, bad)


def test_every_model_of_the_zoo_survives_json():
    for name in names():
        config = load(name).config
        text = json.dumps(config_to_dict(config))
        assert config_from_dict(json.loads(text)) == config
        assert len(text) < 3000, "equal layers stand once"


def test_every_record_survives_json():
    llama3 = Llama3Rope(
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=8192.0,
    )
    turned = Rope(size=8, scaling=llama3)
    scaled = replace(
        GROUPED, rope=turned, window=4, chunked=True, query_scaling=(8.0, 0.5)
    )
    linear = replace(GROUPED, rope=Rope(size=16, scaling=LinearRope(factor=2.0)))
    sparse = Layer(attention=scaled, ffn=EXPERTS)
    config = config_of(
        Layer(attention=linear, ffn=None),
        *[sparse, Layer(attention=None, ffn=DenseFfn(size=8, gated=False))] * 5,
        Layer(attention=LATENT, ffn=DENSE),
        quantization=Quantization(dtype="int4", block=(32, 1), scope="experts"),
        notes=("one", "two"),
    )
    data = json.loads(json.dumps(config_to_dict(config)))
    assert config_from_dict(data) == config and hash(config_from_dict(data))
    assert [segment["repeats"] for segment in data["layers"]] == [1, 5, 1]
    assert [segment["unit"] for segment in data["layers"]] == [[0], [1, 2], [3]]


@pytest.mark.parametrize(
    "change",
    [
        {"vocab_sise": 8},
        {"layer_kinds": []},
        {"layers": [{"unit": [0]}]},
        {"quantization": {"kind": "fp9"}},
        {"hidden_size": 0},
    ],
)
def test_data_that_is_no_decoder_config_is_refused_in_one_line(change):
    data = config_to_dict(config_of(Layer(attention=GROUPED, ffn=DENSE))) | change
    with pytest.raises(ValueError) as caught:
        config_from_dict(data)
    assert "config" in str(caught.value) and "\n" not in str(caught.value)
