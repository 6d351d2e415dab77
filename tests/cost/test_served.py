"""Sizes of served models: parameters as published, bytes per GPU."""

import pytest

from lts.cost.served import (
    CompressedAttention,
    Indexer,
    LinearAttention,
    ServedLayer,
    ServedModel,
    expert_values,
    matrices,
    served_model,
)
from lts.cost.served_memory import request_bytes, weight_bytes
from lts.cost.served_step import Layout, Precision
from lts.models import kv_bytes_per_token, load
from lts.models.architecture import DenseFfn


def num_values(model: ServedModel) -> int:
    """Of all matrices and the two vocabulary tables."""
    hidden = model.hidden_size
    layers = sum(
        layer.repeats
        * (
            expert_values(layer, hidden)
            + sum(i * o for p in matrices(layer, hidden).values() for i, o, _ in p)
        )
        for layer in model.layers
    )
    return layers + (1 if model.tied else 2) * model.vocab_size * hidden


@pytest.mark.parametrize(
    "name", ["llama-3.1-8b", "llama-3.1-405b", "mixtral-8x7b", "deepseek-v3", "kimi-k2"]
)
def test_matrices_hold_all_parameters_but_norms(name: str) -> None:
    decoder = load(name)
    assert num_values(served_model(decoder.config)) == pytest.approx(
        decoder.num_params, rel=1e-4
    )


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_dense_weights_and_caches_divide_over_tensor_parallel_ranks(tp: int) -> None:
    config = load("llama-3.1-70b").config
    model = served_model(config)
    weights = weight_bytes(model, Layout(tp=tp), Precision())
    assert weights == pytest.approx(2 * 70.55e9 / tp, rel=1e-3)
    cache = request_bytes(model, Layout(tp=tp), Precision(), 1000.0)
    assert cache == pytest.approx(1000 * kv_bytes_per_token(config) / tp)


def test_kv_heads_are_copied_beyond_their_number() -> None:
    model = served_model(load("llama-3.1-8b").config)  # 8 KV heads
    at_8 = request_bytes(model, Layout(tp=8), Precision(), 100.0)
    at_16 = request_bytes(model, Layout(tp=16), Precision(), 100.0)
    assert at_8 == at_16


def test_a_latent_is_copied_over_tensor_parallel_ranks_and_shared_by_context_ones() -> (
    None
):
    model = served_model(load("deepseek-v3").config)
    whole = request_bytes(model, Layout(), Precision(), 100.0)
    assert whole == pytest.approx(61 * 100 * 576 * 2)
    assert request_bytes(model, Layout(tp=8), Precision(), 100.0) == whole
    assert request_bytes(model, Layout(tp=8, cp=8), Precision(), 100.0) == whole / 8


def test_experts_lie_over_all_ranks_of_a_stage() -> None:
    model = served_model(load("mixtral-8x7b").config)
    tensor = weight_bytes(model, Layout(tp=8), Precision())
    expert = weight_bytes(model, Layout(tp=8, ep=8), Precision())
    assert tensor == expert
    data = weight_bytes(model, Layout(dp=8, ep=8), Precision())
    attention = 32 * (2 * 4096**2 + 2 * 4096 * 1024) * 2
    ends = 2 * 32000 * 4096 * 2
    assert data - tensor == pytest.approx(7 / 8 * (attention + ends), rel=1e-6)


def test_stages_divide_layers_and_part_the_ends() -> None:
    model = served_model(load("llama-3.1-8b").config)
    one, two = (weight_bytes(model, Layout(pp=n), Precision()) for n in (1, 2))
    table = 128256 * 4096 * 2
    assert two == pytest.approx((one - 2 * table) / 2 + table)


def test_4_bit_experts_take_a_quarter_and_their_scales() -> None:
    model = served_model(load("kimi-k2").config)
    full = weight_bytes(model, Layout(tp=8), Precision())
    short = weight_bytes(model, Layout(tp=8), Precision(experts="int4"))
    experts = sum(
        layer.repeats * expert_values(layer, model.hidden_size)
        for layer in model.layers
    )
    assert full - short == pytest.approx(experts * (2 - 0.5625) / 8)


def test_states_and_compressed_caches_do_not_grow_as_plain_ones() -> None:
    linear = LinearAttention(
        num_key_heads=4, num_value_heads=8, key_dim=16, value_dim=32
    )
    compressed = CompressedAttention(
        num_heads=4, head_dim=64, query_rank=32, output_rank=16, groups=2, window=10,
        ratio=4,
    )  # fmt: skip
    index = Indexer(num_heads=2, head_dim=8, top_k=16)
    layers = (
        ServedLayer(attention=linear, ffn=DenseFfn(size=1), repeats=3),
        ServedLayer(
            attention=compressed, ffn=DenseFfn(size=1), repeats=2, indexer=index
        ),
    )
    model = ServedModel(name="m", hidden_size=8, vocab_size=10, layers=layers)
    found = request_bytes(model, Layout(), Precision(), 100.0)
    states = 3 * 8 * 16 * 32 * 4
    caches = 2 * (10 * 64 * 2 + 100 / 4 * (64 * 2 + 8))
    assert found == states + caches
