"""Contractions that run as one fused attention, and what their masks hide."""

import jax
import jax.numpy as jnp
import pytest

from lts.models import load
from lts.problem import trace_problem, zoo_problem
from lts.tracing import trace
from lts.workload import Workload

B, H, S, T, K = 2, 4, 8, 32, 16


def spec(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "float32")


def marks(mask, *more, order: str = "bhst", queries: int = S, keys: int = S):
    """Marks of the contractions of an attention under a mask."""

    def attention(q, k, v, *more):
        scores = jnp.einsum(f"bhsk,bhtk->{order}", q, k)
        if mask is not None:
            scores = jnp.where(mask(*more), scores, -jnp.inf)
        shares = jax.nn.softmax(scores, axis=order.index("t"))
        return jnp.einsum(f"{order},bhtk->bhsk", shares, v)

    wide = spec(B, H, keys, K)
    graph = trace(attention, spec(B, H, queries, K), wide, wide, *more)
    found = [op.attention for op in graph.ops]
    assert len(found) == 2
    return found


def own() -> jax.Array:
    return jnp.arange(S)[:, None]


def seen() -> jax.Array:
    return jnp.arange(S)[None]


CAUSAL = {
    "keys up to": lambda: seen() <= own(),
    "queries from": lambda: own() >= seen(),
    "before": lambda: seen() < own(),
    "not after": lambda: ~(seen() > own()),
    "tril": lambda: jnp.tril(jnp.ones((S, S), bool)),
    "tril of floats": lambda: jnp.tril(jnp.ones((S, S))) == 1,
    "tril is not zero": lambda: jnp.tril(jnp.ones((S, S))) != 0,
    "with something else": lambda: (seen() <= own()) & (seen() != 5),
}
WINDOWS = {
    "a window": lambda: (seen() <= own()) & (seen() > own() - 3),
    "with its end": lambda: (seen() <= own()) & (own() - 2 <= seen()),
    "chunks of six": lambda: (seen() <= own()) & (seen() // 6 == own() // 6),
}


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("order", ["bhst", "hbst", "bsht"])
def test_a_causal_mask_is_seen_in_any_order_of_dims(name: str, order: str) -> None:
    def laid():
        full = CAUSAL[name]()
        places = [i for i, dim in enumerate(order) if dim not in "st"]
        return jnp.expand_dims(full, places)

    for mark in marks(laid, order=order):
        assert (mark.causal, mark.window) == (True, 0)
        assert (mark.queries, mark.keys, mark.head_dim) == (S, S, K)
        assert mark.share == 0.5


@pytest.mark.parametrize("name", WINDOWS)
def test_a_window_is_measured(name: str) -> None:
    for mark in marks(WINDOWS[name]):
        assert (mark.causal, mark.window) == (True, 3)


def test_a_bias_is_a_mask() -> None:
    def attention(q, k, v):
        bias = jnp.where(seen() <= own(), 0.0, -1e9)[None, None]
        shares = jax.nn.softmax(jnp.einsum("bhsk,bhtk->bhst", q, k) + bias)
        return jnp.einsum("bhst,bhtk->bhsk", shares, v)

    graph = trace(attention, *[spec(B, H, S, K)] * 3)
    assert all(op.attention.causal for op in graph.ops)


def test_what_is_hidden_may_be_named_instead() -> None:
    def attention(q, k, v):
        scores = jnp.einsum("bhsk,bhtk->bhst", q, k)
        scores = jnp.where(seen() > own(), -jnp.inf, scores)
        return jnp.einsum("bhst,bhtk->bhsk", jax.nn.softmax(scores), v)

    graph = trace(attention, *[spec(B, H, S, K)] * 3)
    assert all(op.attention.causal for op in graph.ops)


def test_a_mask_of_the_future_is_not_causal() -> None:
    for mark in marks(lambda: seen() >= own()):
        assert not mark.causal
    for mark in marks(lambda: seen() <= own() + 2):  # two keys further than itself
        assert mark.causal


def test_a_mask_that_is_an_argument_hides_nothing() -> None:
    given = jax.ShapeDtypeStruct((S, S), bool)
    for mark in marks(lambda m: m, given):
        assert (mark.causal, mark.window, mark.queries) == (False, 0, S)


def test_without_a_mask_queries_are_the_dim_as_long_as_the_keys() -> None:
    for mark in marks(None):
        assert (mark.queries, mark.keys, mark.causal) == (S, S, False)
    # one query per sequence: no dim is as long as the keys
    for mark in marks(None, queries=1, keys=T):
        assert (mark.queries, mark.keys, mark.query_factor) == (1, T, None)


def test_either_one_may_hold_is_no_causal_mask() -> None:
    for mark in marks(lambda: (seen() <= own()) | (seen() == 0)):
        assert not mark.causal


@pytest.mark.parametrize(
    ("name", "phase", "latent", "queries", "causal"),
    [
        ("llama-3.1-8b", "prefill", False, 24, True),
        ("llama-3.1-8b", "decode", False, 1, False),
        ("deepseek-v3", "prefill", True, 24, True),
        ("deepseek-v3", "decode", True, 1, False),
    ],
)
def test_decoders_have_one_attention_per_kind_of_layer(
    name: str, phase: str, latent: bool, queries: int, causal: bool
) -> None:
    workload = Workload(input_len=24, output_len=8)
    problem = zoo_problem(load(name), workload)
    graph = trace_problem(problem, (phase,), 4)[phase].graph
    found = [op.attention for op in graph.ops if op.attention is not None]
    assert {(m.latent, m.queries, m.causal) for m in found} == {
        (latent, queries, causal)
    }
    by_kernel: dict[int, float] = {}
    for op in graph.ops:
        if op.attention is not None:
            by_kernel[op.trips] = by_kernel.get(op.trips, 0.0) + op.attention.share
    layers = {op.trips for op in graph.ops if op.primitive == "dot_general"}
    assert all(total == pytest.approx(round(total)) for total in by_kernel.values())
    assert by_kernel and set(by_kernel) <= layers
