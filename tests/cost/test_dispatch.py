"""Closed forms of expert dispatch against counts of random routing and compiled HLO."""

from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from lts.cost.dispatch import all_to_all_bytes, expert_rows, experts_touched, rounds
from lts.hlo import list_collectives
from lts.models.capacity import destination_rows, even_rows, expert_capacity
from lts.models.dispatch import ExpertLayout, sharded_expert_ffn
from lts.models.experts import buckets, expert_ffn
from tests.after_spmd import compiled_with_dump


def random_routing(
    seed: int, tokens: tuple[int, ...], top_k: int, experts: int
) -> np.ndarray:
    """k different experts of each token, drawn evenly; `[*tokens, k]`."""
    order = np.random.default_rng(seed).random((*tokens, experts))
    return order.argpartition(top_k - 1, axis=-1)[..., :top_k]


def rows_by_destination(expert: np.ndarray, held: int, ways: int) -> np.ndarray:
    """Tokens of each sender with an expert on each device; `[senders, ways]`."""
    owner = expert // held  # [senders, tokens, k]
    return np.stack([(owner == w).any(-1).sum(-1) for w in range(ways)], axis=-1)


@pytest.mark.parametrize(
    ("tokens", "top_k", "experts", "ways"),
    [(2048, 8, 256, 64), (512, 8, 128, 8), (4096, 1, 2048, 64), (1024, 2, 8, 8)],
)
def test_rows_are_sent_once_to_each_device_that_holds_an_expert(
    tokens: int, top_k: int, experts: int, ways: int
) -> None:
    expert = random_routing(0, (2, tokens), top_k, experts)
    counted = rows_by_destination(expert, experts // ways, ways)
    # The closed form draws a token's experts one by one; that they differ spreads them
    # over some more devices (2 of 8 over 8 devices: 2 instead of 1.875).
    even = even_rows(tokens, top_k, ways)
    assert even * (1 - 1e-9) <= counted.mean() <= even * 1.07
    assert counted.max() <= destination_rows(tokens, top_k, ways)


@pytest.mark.parametrize(
    ("tokens", "top_k", "experts", "ways"),
    [(64, 8, 256, 64), (32, 8, 128, 16), (32, 2, 8, 8), (2048, 8, 256, 64)],
)
def test_even_routing_mostly_takes_one_round_of_exchange_and_of_products(
    tokens: int, top_k: int, experts: int, ways: int
) -> None:
    assert rounds(tokens, top_k, ways) == 1
    room = destination_rows(tokens, top_k, ways)
    share = expert_capacity(ways * tokens, top_k, experts)
    exchanges, products = [], []
    for seed in range(1 if tokens > 100 else 20):
        expert = random_routing(seed, (ways, tokens), top_k, experts)
        busiest = rows_by_destination(expert, experts // ways, ways).max()
        exchanges.append(np.ceil(busiest / room))
        products.append(np.ceil(np.bincount(expert.ravel()).max() / share))
    assert np.mean(exchanges) <= 1.25
    assert np.mean(products) <= 1.25


def test_a_skewed_destination_takes_as_many_rounds_as_its_rows_fill() -> None:
    tokens, ways = 1000, 8  # an even share of 125, room for 170
    skew = np.array([1.0, 1.36, 1.37, 2.0, 4.0, 8.0, 100.0])
    found = rounds(tokens, 1, ways, skew)
    assert found.tolist() == [1, 1, 2, 2, 3, 6, 6]  # no more than all 1000 tokens
    for times, number in zip(skew, found, strict=True):
        busiest = min(int(125 * times), tokens)
        others = 1 + np.arange(tokens - busiest) % (ways - 1)
        owner = np.r_[np.zeros(busiest), others].astype(np.int32)
        assert buckets(jnp.asarray(owner), ways).rounds(170) == number


@pytest.mark.parametrize(("pairs", "experts"), [(8, 256), (64, 64), (1000, 256)])
def test_experts_touched_are_those_that_random_pairs_fall_on(
    pairs: int, experts: int
) -> None:
    random = np.random.default_rng(0)
    for skew in (1, 2, 8):
        drawn = random.integers(0, experts // skew, (2000, pairs))
        counted = np.mean([len(np.unique(row)) for row in drawn])
        # 2000 draws: the mean is known to half a percent
        assert experts_touched(pairs, experts, skew) == pytest.approx(counted, rel=5e-3)


def test_experts_touched_are_bounded_by_pairs_and_experts() -> None:
    pairs = np.array([0.0, 0.5, 1.0, 3.0, 1e6])
    found = experts_touched(pairs, 64)
    assert (found <= np.minimum(pairs, 64)).all()
    assert found[[0, 2, 4]] == pytest.approx([0.0, 1.0, 64.0])
    assert (experts_touched(pairs, 64, 4.0) <= found).all()
    assert experts_touched(5.0, 64, 1000.0) == 1.0  # all on the busiest


def test_expert_rows_are_those_of_the_traced_products_times_the_rounds() -> None:
    tokens, top_k, experts, d, f = 96, 2, 8, 4, 6  # 24 rows an expert, room for 44
    x, weight = jnp.ones((tokens, d)), jnp.ones((tokens, top_k))
    up, down = jnp.ones((experts, d, f)), jnp.ones((experts, f, d))
    pairs = tokens * top_k
    for skew, times in ((1.0, 1), (1.8, 1), (2.0, 2), (4.0, 3)):
        busiest = int(24 * skew)  # pairs of expert 0
        others = 1 + np.arange(pairs - busiest) % (experts - 1)
        flat = np.r_[np.zeros(busiest), others].astype(np.int32)
        expert = jnp.asarray(flat.reshape(top_k, tokens).T)
        jaxpr = jax.make_jaxpr(expert_ffn)(x, weight, expert, None, up, down)
        assert f"f32[{experts},44,{f}] = dot_general" in str(jaxpr)
        assert buckets(expert.reshape(-1), experts).rounds(44) == times
        found = expert_rows(pairs, experts, skew, most=tokens)
        assert found == experts * 44 * times


def test_no_expert_has_room_for_more_rows_than_there_are() -> None:
    found = expert_rows(np.array([6, 64]), 2, most=np.array([3, 32]))
    assert found.tolist() == [6, 64]
    assert expert_rows(64.0, 2) == 2 * 55  # 32 and 4 standard deviations


def test_bytes_of_deepseek_v3_over_64_devices() -> None:
    # 64 tokens, top-8: 7.58 rows to each device, room for 19; d 7168 and 24 columns
    there, back = all_to_all_bytes(64, 8, 64, 64, 7168, 2)
    assert (there, back) == (64 * 19 * 7192 * 2, 64 * 19 * 7168 * 2)
    # 2048 tokens: 242.4 rows to each device, room for 305
    _, back = all_to_all_bytes(2048, 8, 64, 64, 7168, 2)
    assert back == 64 * 305 * 7168 * 2


def test_bytes_are_those_of_the_compiled_program() -> None:
    devices = np.array(jax.devices()[:8]).reshape(2, 4)
    mesh = Mesh(devices, ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    tokens, top_k, experts, d, f = 240, 2, 16, 8, 4
    half = jnp.bfloat16
    operands = (
        jax.ShapeDtypeStruct((tokens, d), half),
        jax.ShapeDtypeStruct((tokens, top_k), jnp.float32),
        jax.ShapeDtypeStruct((tokens, top_k), jnp.int32),
        None,
        jax.ShapeDtypeStruct((experts, d, f), half),
        jax.ShapeDtypeStruct((experts, f, d), half),
    )
    # y shards tokens and experts, x experts alone: 60 tokens a device
    layout = ExpertLayout((("y",),), ("x", "y"))
    run = partial(sharded_expert_ffn, mesh, layout)
    _, text = compiled_with_dump(jax.jit(run).lower(*operands))
    found = Counter(
        (c.kind, c.axes, c.nbytes) for c in list_collectives(text, dict(mesh.shape))
    )
    there, back = all_to_all_bytes(60, top_k, 4, 8, d, 2)
    assert back == 4 * 30 * d * 2  # 14.06 rows even, room for 30
    assert found == {
        ("all_to_all", ("y",), int(there)): 1,
        ("all_to_all", ("y",), int(back)): 1,
        ("all_reduce", ("y",), 4): 1,
        ("all_reduce", ("x",), 60 * d * 2): 1,
    }
