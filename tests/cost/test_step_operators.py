"""The work of one rank in a step, counted by kernels that return their work."""

import numpy as np
import pytest

from lts.cost.served import ServedModel, served_model
from lts.cost.served_step import CLASSES, Layout, Precision, Step, per_rank
from lts.cost.step_operators import rank_step
from lts.models import load


class Counting:
    """Kernels whose time is their number of multiply-adds, or bytes."""

    def gemm(self, m, n, k, form):
        return m * n * k * np.ones(())

    def prefill_attention(
        self, batch, length, heads, kv_heads, head_dim, window, cache
    ):
        return batch * length**2 / 2 * heads * head_dim

    def decode_attention(
        self, batch, context, heads, kv_heads, head_dim, window, cache
    ):
        return batch * context * heads * head_dim

    def latent_attention(self, phase, batch, length, heads, cache):
        work = batch * length * heads
        return work * length / 2 if phase == "prefill" else work

    def experts(
        self, tokens, hidden, size, top_k, experts, tensor_ways, expert_ways, form
    ):
        return tokens * top_k * 3 * hidden * size / (tensor_ways * expert_ways)

    def collective(self, kind, nbytes, inside, across, custom):
        gpus = inside * across
        sent = nbytes * (gpus - 1) / gpus * (2 if kind == "all_reduce" else 1)
        return sent * (100 if across > 1 else 1)

    def pass_on(self, nbytes, across):
        return nbytes * (10 if across else 1)

    def elementwise(self, nbytes):
        return nbytes * np.ones(())


def model(name: str) -> ServedModel:
    return served_model(load(name).config)


def step_of(name: str, layout: Layout, **step) -> dict[str, np.ndarray]:
    return rank_step(model(name), layout, Precision(), Counting(), Step(**step))


def test_products_of_a_token_are_the_parameters_at_work() -> None:
    found = step_of("llama-3.1-8b", Layout(), sequences=1.0, context=1.0)
    products = found["gemm"] + found["lm_head"]
    assert products == pytest.approx(8.03e9 - 128256 * 4096, rel=1e-3)
    found = step_of("mixtral-8x7b", Layout(), sequences=1.0, context=1.0)
    products = found["gemm"] + found["moe"] + found["lm_head"]
    assert products == pytest.approx(12.9e9 - 32000 * 4096, rel=2e-3)


def test_tensor_parallel_ranks_share_products_and_sum_twice_a_layer() -> None:
    one = step_of("llama-3.1-8b", Layout(), sequences=4.0, context=100.0)
    four = step_of("llama-3.1-8b", Layout(tp=4), sequences=4.0, context=100.0)
    assert four["gemm"] == one["gemm"] / 4
    assert four["attention"] == one["attention"] / 4
    assert one["all_reduce"] == 0
    assert four["all_reduce"] == 32 * 2 * (4 * 4096 * 2) * 2 * 3 / 4


def test_prompts_and_sequences_share_products_but_not_attention() -> None:
    both = step_of(
        "llama-3.1-8b", Layout(), sequences=4.0, context=100.0, prompts=2.0,
        prompt_len=50.0,
    )  # fmt: skip
    decode = step_of("llama-3.1-8b", Layout(), sequences=4.0, context=100.0)
    prompts = step_of("llama-3.1-8b", Layout(), prompts=2.0, prompt_len=50.0)
    assert both["gemm"] == pytest.approx(decode["gemm"] * 104 / 4)
    assert both["attention"] == decode["attention"] + prompts["attention"]
    assert prompts["attention"] == 32 * 2 * 50**2 / 2 * 32 * 128
    # logits of the last token of a prompt only
    assert both["lm_head"] == pytest.approx(decode["lm_head"] * 6 / 4)


def test_replicas_gather_around_experts_and_some_idle() -> None:
    layout = Layout(dp=8, ep=8)
    full = step_of("mixtral-8x7b", layout, sequences=16.0, context=10.0)
    assert full["all_reduce"] == 0
    assert full["dispatch"] == 32 * 2 * 16 * 4096 * 2 * 7 / 8
    few = step_of("mixtral-8x7b", layout, sequences=2.0, context=10.0)
    one = step_of("mixtral-8x7b", layout, sequences=1.0, context=10.0)
    assert few["gemm"] == one["gemm"]
    assert few["moe"] == 2 * one["moe"]


def test_replicas_on_several_nodes_exchange_across_and_sum_inside() -> None:
    found = step_of("mixtral-8x7b", Layout(tp=8, dp=2), sequences=2.0, context=10.0)
    assert found["dispatch"] == 32 * 2 * 100 * (2 * 4096 * 2) / 2
    assert found["all_reduce"] == 32 * 2 * (1 * 4096 * 2) * 2 * 7 / 8
    assert Layout(tp=8, dp=2).group(2, 8) == (1, 2)
    assert Layout(tp=2, dp=4).group(4, 2) == (4, 1)
    assert Layout(tp=16).group(16, 1) == (8, 2)


def test_experts_under_tensor_parallel_attention_need_no_gather() -> None:
    tensor = step_of("mixtral-8x7b", Layout(tp=8), sequences=16.0, context=10.0)
    expert = step_of("mixtral-8x7b", Layout(tp=8, ep=8), sequences=16.0, context=10.0)
    assert expert["dispatch"] == 0
    assert expert["all_reduce"] == tensor["all_reduce"] > 0


def test_stages_hand_over_across_nodes_where_a_server_is_larger() -> None:
    near = step_of("llama-3.1-8b", Layout(tp=2, pp=4), sequences=1.0, context=1.0)
    one = step_of("llama-3.1-8b", Layout(tp=2), sequences=1.0, context=1.0)
    sent = near["all_reduce"] - one["all_reduce"]
    assert sent == 3 * 4096 * 2
    far = step_of("llama-3.1-8b", Layout(tp=8, pp=2), sequences=1.0, context=1.0)
    one = step_of("llama-3.1-8b", Layout(tp=8), sequences=1.0, context=1.0)
    assert far["all_reduce"] - one["all_reduce"] == pytest.approx(10 * 4096 * 2)


def test_a_window_does_not_change_what_is_counted_by_class() -> None:
    found = step_of("deepseek-v3", Layout(tp=8), sequences=4.0, context=100.0)
    assert set(found) == set(CLASSES)
    assert found["attention"] == 61 * 4 * 100 * 128 / 8


def test_batches_broadcast() -> None:
    batch = np.array([1.0, 2.0, 64.0])
    found = step_of("mixtral-8x7b", Layout(tp=2), sequences=batch, context=100.0)
    for name in CLASSES:
        assert np.broadcast_shapes(found[name].shape, (3,)) == (3,)
        single = step_of("mixtral-8x7b", Layout(tp=2), sequences=64.0, context=100.0)
        assert np.broadcast_to(found[name], 3)[2] == pytest.approx(single[name])


def test_a_rank_has_at_least_one_of_fewer_sequences_than_replicas() -> None:
    assert per_rank(np.array([0.0, 0.5, 3.0, 8.0, 20.0]), 8).tolist() == [
        0.0, 0.5, 1.0, 1.0, 2.5,
    ]  # fmt: skip
