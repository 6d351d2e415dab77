"""Commonly used functions trace, or say which primitive has no rule."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special
import pytest
from jax import lax

import lts


def spec(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


X, IDS = spec(8, 16), spec(8, dtype="int32")
HEADS = spec(2, 8, 4, 16)

CASES: dict[str, tuple[Any, ...]] = {
    "where": (lambda x: jnp.where(x > 0, x, 0.0), X),
    "one_hot": (lambda i: jax.nn.one_hot(i, 32), IDS),
    "cumsum": (lambda x: jnp.cumsum(x, 1), X),
    "argmax": (lambda x: jnp.argmax(x, -1), X),
    "take_along_axis": (
        lambda x, i: jnp.take_along_axis(x, lax.expand_dims(i, (1,)), 1),
        X,
        IDS,
    ),
    "clip": (lambda x: jnp.clip(x, 0, 1), X),
    "var": (lambda x: jnp.var(x, -1), X),
    "std": (jnp.std, X),
    "softmax": (jax.nn.softmax, X),
    "log_softmax": (jax.nn.log_softmax, X),
    "logsumexp": (lambda x: jax.nn.logsumexp(x, -1), X),
    "einsum": (
        lambda a, b: jnp.einsum("bik,bkj->bij", a, b),
        spec(4, 8, 16),
        spec(4, 16, 8),
    ),
    "split": (lambda x: jnp.split(x, 4, 1), X),
    "stack": (lambda x: jnp.stack([x, x]), X),
    "pad": (lambda x: jnp.pad(x, ((0, 0), (1, 2))), X),
    "roll": (lambda x: jnp.roll(x, 3, 1), X),
    "tril": (jnp.tril, X),
    "sort": (jnp.sort, X),
    "argsort": (jnp.argsort, X),
    "top_k": (lambda x: lax.top_k(x, 4), X),
    "tile": (lambda x: jnp.tile(x, (2, 1)), X),
    "repeat": (lambda x: jnp.repeat(x, 2, 0), X),
    "outer": (jnp.outer, spec(8), spec(16)),
    "norm": (jnp.linalg.norm, X),
    "gelu": (jax.nn.gelu, X),
    "silu": (jax.nn.silu, X),
    "relu": (jax.nn.relu, X),
    "tanh_grad": (jax.grad(lambda x: jnp.sum(jnp.tanh(x))), X),
    "bitcast": (lambda x: lax.bitcast_convert_type(x, "int32"), X),
    "device_put": (jax.device_put, X),
    "nan_to_num": (jnp.nan_to_num, X),
    "median": (lambda x: jnp.median(x, -1), X),
    "bincount": (lambda i: jnp.bincount(i, length=8), IDS),
    "trace": (jnp.trace, spec(16, 16)),
    "diagonal": (jnp.diag, spec(16, 16)),
    "tensordot": (lambda a, b: jnp.tensordot(a, b, 1), X, spec(16, 4)),
    "vdot": (jnp.vdot, spec(8), spec(8)),
    "attention": (
        lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True),
        HEADS,
        HEADS,
        HEADS,
    ),
    "dynamic_slice": (
        lambda x, i: lax.dynamic_slice_in_dim(x, i, 4, 1),
        X,
        spec(dtype="int32"),
    ),
    "map": (lambda x: lax.map(jnp.sin, x), X),
    "convolve": (jnp.convolve, spec(16), spec(4)),
    "conv": (
        lambda x, k: lax.conv_general_dilated(x, k, (1, 1), "SAME"),
        spec(2, 4, 8, 8),
        spec(8, 4, 3, 3),
    ),
    "max_pool": (
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 2), "VALID"),
        X,
    ),
    "fft": (lambda x: jnp.abs(jnp.fft.fft(x)), X),
    "solve": (jnp.linalg.solve, spec(4, 8, 8), spec(4, 8, 2)),
    "inv": (jnp.linalg.inv, spec(4, 8, 8)),
    "eigh": (jnp.linalg.eigh, spec(4, 8, 8)),
    "svd": (jnp.linalg.svd, spec(4, 8, 8)),
    "pinv": (jnp.linalg.pinv, spec(8, 8)),
    "searchsorted": (jnp.searchsorted, spec(16), X),
    "nonzero": (lambda x: jnp.nonzero(x, size=4), X),
    "unstack": (lambda x: sum(lax.unstack(x, axis=0)), X),
    "betainc": (jax.scipy.special.betainc, X, X, X),
    "cumlogsumexp": (lambda x: lax.cumlogsumexp(x, 1), X),
    "fold_in": (
        lambda k, i: jax.vmap(lambda j: jax.random.normal(jax.random.fold_in(k, j)))(i),
        jax.random.key(0),
        IDS,
    ),
    "categorical": (lambda x, k: jax.random.categorical(k, x), X, jax.random.key(0)),
}


@pytest.mark.parametrize("name", CASES)
def test_it_traces_with_every_result_in_reach(name: str) -> None:
    function, *args = CASES[name]
    graph = lts.trace(function, *args)
    assert graph.nodes
    for edge in graph.edges:
        rank = len(edge.array.shape)
        assert len(edge.source_factors) == len(edge.target_factors) == rank
        ends = (edge.source, edge.source_factors), (edge.target, edge.target_factors)
        for node, factors in ends:
            for extent, factor in zip(edge.array.shape, factors, strict=True):
                if factor is not None:
                    assert extent % graph.nodes[node].factors[factor].units == 0


@pytest.mark.parametrize("name", CASES)
def test_factors_are_named_once_and_can_be_split(name: str) -> None:
    function, *args = CASES[name]
    for node in lts.trace(function, *args).nodes:
        names = [factor.name for factor in node.factors]
        assert len(set(names)) == len(names)
        assert all(f.size > 1 and f.size % f.units == 0 for f in node.factors)
        for leaf in node.leaves:
            on_dims = [f for f in leaf.factors if f is not None]
            assert len(set(on_dims)) == len(on_dims)
