"""Rules of ops that do more than multiply: which factors, which are whole, the flops.

Sizes differ inside a case, so that a factor is known by its size.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import lts
from lts.tracing.decide import rule_for
from lts.tracing.flatten import Equation, flatten
from lts.tracing.op_rule import OpRule


def spec(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def equation(primitive: str, function: Any, *args: Any) -> Equation:
    """The equation of that primitive in a function."""
    program = flatten(jax.make_jaxpr(function)(*args))
    return [eq for eq in program.equations if eq.primitive == primitive][0]


def rule(primitive: str, function: Any, *args: Any) -> OpRule:
    eq = equation(primitive, function, *args)
    found = rule_for(eq)
    assert found is not None, f"no rule for {primitive}"
    laid = found(eq)
    for tensor, dims in [
        *zip(eq.ins, laid.operands, strict=True),
        *zip(eq.outs, laid.results, strict=True),
    ]:
        assert len(dims) == len(tensor.shape)
        for extent, factor in zip(tensor.shape, dims, strict=True):
            assert factor is None or extent % laid.sizes[factor] == 0
    return laid


def free(laid: OpRule) -> dict[int, bool]:
    """By size, whether a factor that may be split is a reduction."""
    sums = laid.reductions()
    return {
        n: i in sums
        for i, n in enumerate(laid.sizes)
        if i not in laid.blocked and n > 1
    }


def conv(strides: Any = (1, 1), padding: Any = "SAME", **params: Any) -> Any:
    return lambda x, k: lax.conv_general_dilated(x, k, strides, padding, **params)


def windows(of: Any, start: float, padding: Any = "VALID") -> Any:
    return lambda x: lax.reduce_window(x, start, of, (1, 2, 1), (1, 2, 1), padding)


def pooled(x: jax.Array) -> jax.Array:
    return windows(lax.max, -jnp.inf)(x)


X = spec(4, 6, 10)
IMAGE, KERNEL = spec(2, 6, 9, 11), spec(10, 6, 3, 3)
NHWC = ("NHWC", "HWIO", "NHWC")
KEYS = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 4))
# taps that meet the image along 9 and 11 rows, 3 wide: all but one at either edge
TAPS = (3 * 9 - 2) * (3 * 11 - 2)

WINDOWED: dict[str, tuple[str, Any, tuple[Any, ...], dict[int, bool], float]] = {
    "convolution": (
        "conv_general_dilated",
        conv(),
        (IMAGE, KERNEL),
        {2: False, 6: True, 10: False},
        2.0 * 2 * 6 * 10 * TAPS,
    ),
    "convolution with channels last": (
        "conv_general_dilated",
        conv(dimension_numbers=NHWC),
        (spec(2, 9, 11, 6), spec(3, 3, 6, 10)),
        {2: False, 6: True, 10: False},
        2.0 * 2 * 6 * 10 * TAPS,
    ),
    "a window of one element": (
        "conv_general_dilated",
        conv(),
        (IMAGE, spec(10, 6, 1, 1)),
        {2: False, 6: True, 10: False, 9: False, 11: False},
        2.0 * 2 * 6 * 10 * 9 * 11,
    ),
    "a window of one element that skips": (
        "conv_general_dilated",
        conv(strides=(2, 1)),
        (IMAGE, spec(10, 6, 1, 1)),
        {2: False, 6: True, 10: False, 11: False},
        2.0 * 2 * 6 * 10 * 5 * 11,
    ),
    "one group per feature": (
        "conv_general_dilated",
        conv(feature_group_count=6),
        (IMAGE, spec(12, 1, 3, 3)),
        {2: False, 6: False},
        2.0 * 2 * 12 * TAPS,
    ),
    "groups of features": (
        "conv_general_dilated",
        conv(feature_group_count=3),
        (IMAGE, spec(15, 2, 3, 3)),
        {2: False, 3: False},
        2.0 * 2 * 15 * 2 * TAPS,
    ),
    "groups of the batch": (
        "conv_general_dilated",
        conv(batch_group_count=2),
        (IMAGE, KERNEL),
        {6: True},
        2.0 * 1 * 10 * 6 * TAPS,
    ),
    "holes between elements": (  # 5 elements at 0, 2, .., 8; windows of 2, no padding
        "conv_general_dilated",
        conv((1,), [(0, 0)], lhs_dilation=(2,)),
        (spec(2, 6, 5), spec(10, 6, 2)),
        {2: False, 6: True, 10: False},
        2.0 * 2 * 6 * 10 * 8,
    ),
    "largest of a window": (
        "reduce_window_max",
        pooled,
        (X,),
        {4: False, 10: False},
        0.0,
    ),
    "sum of a padded window": (
        "reduce_window_sum",
        windows(lax.add, 0.0, ((0, 0), (0, 0), (1, -1))),
        (X,),
        {4: False},
        0.0,
    ),
    "window of a function": (
        "reduce_window",
        windows(lambda a, b: a + b * b, 0.0),
        (X,),
        {4: False, 10: False},
        0.0,
    ),
    "gradient of a window": (
        "select_and_scatter_add",
        jax.grad(lambda x: pooled(x).sum()),
        (X,),
        {4: False, 10: False},
        0.0,
    ),
    "derivative of a window": (
        "select_and_gather_add",
        lambda x: jax.jvp(pooled, (x,), (x,)),
        (X,),
        {4: False, 10: False},
        0.0,
    ),
}

MIXING: dict[str, tuple[str, Any, tuple[Any, ...], dict[int, bool], float]] = {
    **{
        name: (
            name,
            lambda x, name=name: getattr(lax, name)(x, 1),
            (X,),
            {4: False, 10: False},
            0.0,
        )
        for name in "cumsum cumprod cummax cummin cumlogsumexp".split()
    },
    "approximate top": (
        "approx_top_k",
        lambda x: lax.approx_max_k(x, 3),
        (X,),
        {4: False, 6: False},
        0.0,
    ),
    "function of one's own": (
        "reduce",
        lambda x: lax.reduce((x, x), (0.0, 1.0), lambda a, b: a, (1,)),
        (X,),
        {4: False, 10: False},
        0.0,
    ),
    "complex transform": (
        "fft",
        lambda x: lax.fft(x, "FFT", (10,)),
        (spec(4, 6, 10, dtype="complex64"),),
        {4: False, 6: False},
        5.0 * 24 * 10 * math.log2(10),
    ),
    "real transform of two dims": (
        "fft",
        lambda x: jnp.fft.rfft2(x),
        (X,),
        {4: False},
        2.5 * 4 * 60 * math.log2(60),
    ),
    "real transform back": (
        "fft",
        lambda x: lax.fft(x, "IRFFT", (18,)),
        (spec(4, 6, 10, dtype="complex64"),),
        {4: False, 6: False},
        2.5 * 24 * 18 * math.log2(18),
    ),
}

L = lax.linalg
M = spec(4, 7, 5)
Q = spec(4, 6, 6)
ALGEBRA: dict[str, tuple[str, Any, tuple[Any, ...], dict[int, bool], float]] = {
    "cholesky": ("cholesky", L.cholesky, (Q,), {4: False}, 4 * 216 / 3),
    "lu": ("lu", L.lu, (Q,), {4: False}, 4 * 2 * 216 / 3),
    "lu of long matrices": ("lu", L.lu, (M,), {4: False}, 4 * (7 * 25 - 125 / 3)),
    "qr": (
        "qr",
        lambda x: L.qr(x, full_matrices=False),
        (M,),
        {4: False},
        4 * 2 * (2 * 7 * 25 - 2 * 125 / 3),  # factors, then the columns of Q
    ),
    "eigh": ("eigh", L.eigh, (Q,), {4: False}, 4 * 9 * 216),
    "eig": ("eig", L.eig, (Q,), {4: False}, 4 * 25 * 216),
    "svd": (
        "svd",
        L.svd,
        (M,),
        {4: False},
        4 * (4 * 49 * 5 + 8 * 7 * 25 + 9 * 125),
    ),
    "singular values": (
        "svd",
        lambda x: L.svd(x, compute_uv=False),
        (M,),
        {4: False},
        4 * (4 * 7 * 25 - 4 * 125 / 3),
    ),
    "schur": ("schur", L.schur, (spec(6, 6),), {}, 25 * 216),
    "hessenberg": ("hessenberg", L.hessenberg, (Q,), {4: False}, 4 * 10 * 216 / 3),
    "tridiagonal": ("tridiagonal", L.tridiagonal, (Q,), {4: False}, 4 * 4 * 216 / 3),
    "reflectors": (
        "householder_product",
        L.householder_product,
        (Q, spec(4, 6)),
        {4: False},
        4 * 4 * 216 / 3,
    ),
    "rank-one update": (
        "cholesky_update",
        L.cholesky_update,
        (spec(6, 6), spec(6)),
        {},
        4 * 36,
    ),
    "symmetric product": (
        "symmetric_product",
        L.symmetric_product,
        (M, spec(4, 7, 7)),
        {4: False},
        4 * 49 * 5,
    ),
    "columns of a triangular solve": (
        "triangular_solve",
        lambda a, b: L.triangular_solve(a, b, left_side=True),
        (Q, spec(4, 6, 10)),
        {4: False, 10: False},
        4 * 36 * 10,
    ),
    "rows of a triangular solve": (
        "triangular_solve",
        lambda a, b: L.triangular_solve(a, b),
        (Q, spec(4, 10, 6)),
        {4: False, 10: False},
        4 * 36 * 10,
    ),
    "columns of a tridiagonal solve": (
        "tridiagonal_solve",
        lambda d, b: L.tridiagonal_solve(d, d, d, b),
        (spec(4, 6), spec(4, 6, 10)),
        {4: False, 10: False},
        8 * 4 * 6 * 10,
    ),
    "pivots": (
        "lu_pivots_to_permutation",
        lambda p: L.lu_pivots_to_permutation(p, 6),
        (spec(4, 6, dtype="int32"),),
        {4: False},
        0.0,
    ),
}

RANDOM: dict[str, tuple[str, Any, tuple[Any, ...], dict[int, bool], float]] = {
    "bits": (
        "random_bits",
        jax.vmap(lambda k: jax.random.bits(k, (6,))),
        (KEYS,),
        {4: False},
        0.0,
    ),
    "split": (
        "random_split",
        jax.vmap(lambda k: jax.random.split(k, 3)),
        (KEYS,),
        {4: False},
        0.0,
    ),
    "fold in": (
        "random_fold_in",
        jax.vmap(jax.random.fold_in),
        (KEYS, spec(4, dtype="uint32")),
        {4: False},
        0.0,
    ),
    "unwrap": ("random_unwrap", jax.random.key_data, (KEYS,), {4: False}, 0.0),
    "wrap": (
        "random_wrap",
        jax.random.wrap_key_data,
        (spec(4, 2, dtype="uint32"),),
        {4: False},
        0.0,
    ),
    "seeds": (
        "random_seed",
        jax.vmap(jax.random.key),
        (spec(4, dtype="uint32"),),
        {4: False},
        0.0,
    ),
}

E4M3, E8M0 = "float8_e4m3fn", "float8_e8m0fnu"


def ragged(dims: Any, ragged_dim: int, groups: list[int]) -> Any:
    numbers = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=dims,
        lhs_ragged_dimensions=[ragged_dim],
        rhs_group_dimensions=groups,
    )
    return lambda x, w, n: lax.ragged_dot_general(x, w, n, numbers)


COUNTS = spec(3, dtype="int32")
PRODUCTS: dict[str, tuple[str, Any, tuple[Any, ...], dict[int, bool], float]] = {
    "runs of rows": (
        "ragged_dot_general",
        ragged((((1,), (1,)), ((), ())), 0, [0]),
        (spec(8, 5), spec(3, 5, 10), COUNTS),
        {8: False, 5: True, 10: False},
        2.0 * 8 * 5 * 10,
    ),
    "runs of a contracted dim": (
        "ragged_dot_general",
        ragged((((0,), (0,)), ((), ())), 0, []),
        (spec(8, 5), spec(8, 10), COUNTS),
        {5: False, 10: False},
        2.0 * 8 * 5 * 10,
    ),
    "runs of a batch dim": (
        "ragged_dot_general",
        ragged((((2,), (1,)), ((0,), (0,))), 0, []),
        (spec(8, 4, 5), spec(8, 5, 10), COUNTS),
        {4: False, 5: True, 10: False},
        2.0 * 8 * 4 * 5 * 10,
    ),
    "scaled product": (
        "scaled_matmul_wrapper",
        jax.nn.scaled_matmul,
        (
            spec(2, 6, 64, dtype=E4M3),
            spec(2, 10, 64, dtype=E4M3),
            spec(2, 6, 2, dtype=E8M0),
            spec(2, 10, 2, dtype=E8M0),
        ),
        {6: False, 10: False, 2: False},
        2.0 * 2 * 6 * 10 * 64,
    ),
    "product without scales": (
        "scaled_dot",
        lax.scaled_dot,
        (spec(6, 32), spec(32, 10)),
        {6: False, 10: False, 32: True},
        2.0 * 6 * 10 * 32,
    ),
}

CASES = {**WINDOWED, **MIXING, **ALGEBRA, **RANDOM, **PRODUCTS}


@pytest.mark.parametrize("name", CASES)
def test_factors_and_flops_of_a_rule(name: str) -> None:
    primitive, function, args, factors, flops = CASES[name]
    laid = rule(primitive, function, *args)
    assert free(laid) == factors
    assert laid.flops == pytest.approx(flops, rel=1e-12)


@pytest.mark.parametrize("name", [n for n in WINDOWED if "conv" in WINDOWED[n][0]])
def test_flops_of_a_convolution_are_those_that_xla_counts(name: str) -> None:
    primitive, function, args, _, _ = WINDOWED[name]
    counted = jax.jit(function).lower(*args).cost_analysis()
    assert rule(primitive, function, *args).flops == counted["flops"]


def test_groups_of_features_lie_outermost_on_both_arrays_and_the_result() -> None:
    args = (IMAGE, spec(15, 2, 3, 3))
    laid = rule("conv_general_dilated", conv(feature_group_count=3), *args)
    group = laid.operands[0][1]
    assert group == laid.operands[1][0] == laid.results[0][1]
    (op,) = lts.trace(conv(feature_group_count=3), *args).ops
    assert {f.size: f.units for f in op.factors} == {2: 2, 3: 3}


def test_a_running_sum_leaves_its_dim_free_around_it() -> None:
    def run(x: jax.Array, w: jax.Array) -> jax.Array:
        return (jnp.cumsum(x, 1) + x) @ w

    graph = lts.trace(run, spec(4, 6), spec(6, 10))
    sizes = {op.primitive: {f.size for f in op.factors} for op in graph.ops}
    assert sizes == {"cumsum": {4}, "dot_general": {4, 6, 10}}


def test_a_shift_by_padding_needs_its_dim_whole() -> None:
    def shift(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.pad(x, 0.0, ((0, 0, 0), (1, -1, 0))) @ w

    (op,) = lts.trace(shift, spec(4, 6), spec(6, 10)).ops
    assert {f.size for f in op.factors} == {4, 10}


def test_a_reshape_may_take_the_dims_in_another_order() -> None:
    def turn(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.reshape(x, (10, 4), dimensions=(1, 2, 0)) @ w

    graph = lts.trace(turn, spec(4, 10, 1), spec(4, 6))
    (op,) = graph.ops
    (x,) = [node for node in graph.nodes if any(a.path == "0" for a in node.leaves)]
    assert {f.size: f.reduction for f in op.factors} == {10: False, 4: True, 6: False}
    (edge,) = [e for e in graph.edges if e.source == x.index and e.target == op.index]
    sizes = [x.factors[f].size for f in edge.source_factors if f is not None]
    assert sizes == [10, 4]


@pytest.mark.parametrize(
    ("name", "dtype", "free_sizes"),
    [
        ("reduce_xor", "bool", {4}),
        ("reduce_and", "int32", {4}),
        ("reduce_or", "bool", {4, 6}),
        ("reduce_and", "bool", {4, 6}),
    ],
)
def test_bits_have_no_all_reduce(name: str, dtype: str, free_sizes: set[int]) -> None:
    graph = lts.trace(lambda x: getattr(lax, name)(x, (1,)), spec(4, 6, dtype=dtype))
    (value,) = [node for node in graph.nodes if node.leaves]
    assert {factor.size for factor in value.factors} == free_sizes


def test_unstacked_arrays_keep_the_other_dims() -> None:
    def first(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.unstack(x, axis=1)[0] @ w

    (op,) = lts.trace(first, spec(4, 3, 6), spec(6, 10)).ops
    assert {f.size for f in op.factors} == {4, 6, 10}


EDGES: dict[str, tuple[Any, ...]] = {
    "negative axis": (lambda x: lax.top_k(x, 2, axis=-1), X),
    "nothing to sort": (lambda x: jnp.sort(x, axis=0), spec(0, 4)),
    "nothing to transform": (jnp.fft.fft, spec(0, 4)),
    "one point": (jnp.fft.fft, spec(6, 1)),
    "nothing to multiply": (jnp.matmul, spec(0, 4), spec(4, 6)),
    "nothing to convolve": (conv(), spec(0, 6, 9, 11), KERNEL),
    "scalars": (lambda a, b: lax.clamp(0.0, a, b), spec(), spec()),
    "all dims of one": (jnp.cumsum, spec(1, 1)),
    "no matrices": (L.cholesky, spec(0, 6, 6)),
    "truths": (lambda x: jnp.sort(x, axis=0), spec(4, 6, dtype="bool")),
    "unsigned": (lambda x: lax.cummax(x, 1), spec(4, 6, dtype="uint8")),
    "complex": (L.lu, spec(4, 6, 6, dtype="complex64")),
    "half": (lambda x: lax.cumsum(x, 1), spec(4, 6, dtype="bfloat16")),
    "four bits": (lambda x: x.astype("int8"), spec(4, 6, dtype="int4")),
    "keys": (lambda k: jax.random.key_data(k[None]), KEYS),
    "empty reduction": (lambda x: lax.reduce(x, 0.0, lax.mul, (0,)), spec(0, 6)),
}


@pytest.mark.parametrize("name", EDGES)
def test_odd_shapes_and_types_are_traced(name: str) -> None:
    function, *args = EDGES[name]
    for node in lts.trace(function, *args).nodes:
        assert all(f.size > 1 and f.size % f.units == 0 for f in node.factors)
