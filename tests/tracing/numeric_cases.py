"""Cases of primitives that compute: elementwise, reductions, windows, linear algebra.

`primitive_cases` joins them with `shape_cases`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.random import threefry_2x32
from jax.scipy import special

from tests.tracing.shape_cases import Entry, f32, i32


def array(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


u32 = partial(array, jnp.uint32)
c64 = partial(array, jnp.complex64)
b1 = partial(array, jnp.bool_)

UNARY = """abs acos acosh asin asinh atan atanh bessel_i0e bessel_i1e cbrt ceil cos cosh
    digamma erf erf_inv erfc exp exp2 expm1 floor is_finite lgamma log log1p logistic
    neg round rsqrt sign sin sinh sqrt square tan tanh""".split()
BINARY = """add atan2 div eq ge gt igamma igamma_grad_a igammac le lt max min mul ne
    nextafter polygamma pow rem sub zeta""".split()
SERIES = {"igamma", "igammac", "igamma_grad_a", "regularized_incomplete_beta"}
"""Computed in loops that end when all elements have converged."""
INTEGER = "and or xor shift_left shift_right_arithmetic shift_right_logical".split()
SHIFTS = {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}


def elementwise() -> list[Entry]:
    """One array in, one out, of ranks 1 to 4 in turn."""
    shapes = ((8,), (8, 6), (1, 3, 8), (2, 3, 4, 5))
    found: list[Entry] = []
    for number, name in enumerate(UNARY):
        found.append((name, getattr(lax, name), (f32(*shapes[number % 4]),)))
    for number, name in enumerate(BINARY):
        # A series takes Shardy a second per dim.
        arg = f32(8) if name in SERIES else f32(*shapes[number % 4])
        found.append((name, getattr(lax, name), (arg, arg)))
    for name in INTEGER:
        function = getattr(lax, SHIFTS.get(name, name))
        found.append((name, function, (i32(8, 6), i32(8, 6))))
    for name, function in (
        ("not", lax.bitwise_not),
        ("clz", lax.clz),
        ("population_count", lax.population_count),
    ):
        found.append((name, function, (i32(8, 6),)))
    for name in ("log2", "one_minus_square"):
        if hasattr(lax, name):  # of newer versions
            found.append((name, getattr(lax, name), (f32(8, 6),)))
    found += [
        ("mulhi", lax.mulhi, (u32(8, 6), u32(8, 6))),
        ("conj", lax.conj, (c64(8, 6),)),
        ("real", lax.real, (c64(8, 6),)),
        ("imag", lax.imag, (c64(8, 6),)),
        ("complex", lax.complex, (f32(8, 6), f32(8, 6))),
        ("clamp", lax.clamp, (f32(), f32(8, 6), f32())),
        ("clamp", lax.clamp, (f32(8, 6), f32(8, 6), f32(8, 6))),
        ("select_n", lax.select_n, (b1(8, 6), f32(8, 6), f32(8, 6))),
        ("select_n", lax.select_n, (b1(), f32(8, 6), f32(8, 6))),
        ("integer_pow", partial(lax.integer_pow, y=3), (f32(8, 6),)),
        ("convert_element_type", lambda x: x.astype(jnp.bfloat16), (f32(8, 6),)),
        ("reduce_precision", partial(lax.reduce_precision, **HALF), (f32(8, 6),)),
        ("regularized_incomplete_beta", lax.betainc, (f32(8),) * 3),
        ("bitcast_convert_type", _bitcast(jnp.int32), (f32(8, 6),)),
        ("bitcast_convert_type", _bitcast(jnp.uint8), (f32(8, 6),)),
        ("bitcast_convert_type", _bitcast(jnp.int32), (array(jnp.int8, 8, 4),)),
        ("copy", jnp.copy, (f32(8, 6),)),
        ("optimization_barrier", lax.optimization_barrier, (f32(8, 6),)),
        ("erf_inv", special.erfinv, (f32(8, 6),)),
        ("add_any", jax.grad(lambda x: (x * jnp.sin(x)).sum()), (f32(8, 6),)),
    ]
    return found


HALF = {"exponent_bits": 5, "mantissa_bits": 10}


def _bitcast(dtype: Any) -> Callable[..., Any]:
    return partial(lax.bitcast_convert_type, new_dtype=dtype)


def reductions() -> list[Entry]:
    """Reductions and cumulative operations over each dim, over several."""
    found: list[Entry] = []
    over = (((8,), 0), ((8, 6), 1), ((2, 3, 8), (0, 2)), ((4, 1, 5), 1))
    for name, function in (
        ("reduce_sum", jnp.sum),
        ("reduce_max", jnp.max),
        ("reduce_min", jnp.min),
        ("reduce_prod", jnp.prod),
    ):
        for shape, axis in over:
            found.append((name, partial(function, axis=axis), (f32(*shape),)))
    found += [
        ("reduce_and", partial(jnp.all, axis=1), (b1(8, 6),)),
        ("reduce_or", partial(jnp.any, axis=0), (b1(8, 6),)),
        (
            "reduce_xor",
            partial(lax.reduce_xor, axes=(1,)),
            (i32(8, 6),),
        ),
        ("reduce", _joint_reduce((1,)), (f32(8, 6), f32(8, 6))),
        ("reduce", _joint_reduce((0, 2)), (f32(2, 3, 8), f32(2, 3, 8))),
    ]
    for name, function in (("argmax", jnp.argmax), ("argmin", jnp.argmin)):
        for shape, axis in (((8,), 0), ((8, 6), 0), ((2, 3, 8), 2)):
            found.append((name, partial(function, axis=axis), (f32(*shape),)))
    for name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"):
        for shape, axis in (((8,), 0), ((8, 6), 1), ((2, 3, 8), 0)):
            function = partial(getattr(lax, name), axis=axis)
            found.append((name, function, (f32(*shape),)))
    return found


def _joint_reduce(dims: tuple[int, ...]) -> Callable[..., Any]:
    def both(x: jax.Array, y: jax.Array) -> Any:
        def combine(a: Any, b: Any) -> Any:
            return a[0] + b[0], jnp.maximum(a[1], b[1])

        return lax.reduce((x, y), (jnp.float32(0), jnp.float32(0)), combine, dims)

    return both


def sorts() -> list[Entry]:
    found: list[Entry] = []
    for shape, dim in (((8,), 0), ((8, 6), 0), ((2, 3, 8), 2)):
        found.append(("sort", partial(lax.sort, dimension=dim), (f32(*shape),)))
    two = f32(8, 6), i32(8, 6)
    found.append(("sort", lambda *xs: lax.sort(xs, dimension=1), two))
    for shape, k in (((8,), 2), ((8, 6), 3), ((2, 3, 16), 16)):
        found.append(("top_k", partial(lax.top_k, k=k), (f32(*shape),)))
    for shape in ((16,), (8, 16)):
        function = partial(lax.approx_max_k, k=4)
        found.append(("approx_top_k", function, (f32(*shape),)))
    return found


def convolutions() -> list[Entry]:
    """1, 2 and 3 spatial dims, layouts, strides, dilation, both kinds of groups."""
    found: list[Entry] = []
    for lhs, rhs, numbers, options in (
        ((2, 3, 16), (8, 3, 5), ("NCH", "OIH", "NCH"), {}),
        ((4, 6, 8, 8), (16, 6, 3, 3), ("NCHW", "OIHW", "NCHW"), {}),
        ((4, 8, 8, 6), (3, 3, 6, 16), ("NHWC", "HWIO", "NHWC"), {}),
        ((4, 8, 8, 6), (1, 1, 6, 16), ("NHWC", "HWIO", "NHWC"), {}),
        (
            (4, 8, 8, 6),
            (2, 2, 6, 16),
            ("NHWC", "HWIO", "NHWC"),
            {"window_strides": (2, 2)},
        ),
        (
            (4, 8, 8, 6),
            (3, 3, 2, 12),
            ("NHWC", "HWIO", "NHWC"),
            {"feature_group_count": 3},
        ),
        (
            (4, 8, 8, 6),
            (3, 3, 1, 6),
            ("NHWC", "HWIO", "NHWC"),
            {"feature_group_count": 6},
        ),
        (
            (4, 8, 8, 6),
            (3, 3, 6, 12),
            ("NHWC", "HWIO", "NHWC"),
            {"batch_group_count": 2},
        ),
        ((2, 3, 4, 5, 6), (7, 3, 2, 2, 2), ("NCDHW", "OIDHW", "NCDHW"), {}),
        ((1, 8, 8), (8, 8, 3), ("NCH", "OIH", "NCH"), {"rhs_dilation": (2,)}),
    ):
        one: dict[str, Any] = {"window_strides": (1,) * (len(lhs) - 2)}
        function = partial(
            lax.conv_general_dilated,
            padding="SAME",
            dimension_numbers=numbers,
            **(one | options),
        )
        found.append(("conv_general_dilated", function, (f32(*lhs), f32(*rhs))))
    return found


def windows() -> list[Entry]:
    """Windowed reductions, and the derivative of max pooling."""
    found: list[Entry] = []
    for name, init, function in (
        ("reduce_window_sum", 0.0, lax.add),
        ("reduce_window_max", -jnp.inf, lax.max),
        ("reduce_window_min", jnp.inf, lax.min),
    ):
        for shape, dims, strides, padding in (
            ((8, 6), (2, 1), (1, 1), "SAME"),
            ((8, 6), (2, 1), (2, 1), "VALID"),
            ((2, 8, 8, 3), (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
        ):
            found.append(
                (name, _pool(init, function, dims, strides, padding), (f32(*shape),))
            )
    found.append(
        (
            "reduce_window",
            _pool(1.0, lambda a, b: a * b + a, (2, 1), (1, 1), "VALID"),
            (f32(8, 6),),
        )
    )
    pool = _pool(-jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    gradient = jax.grad(lambda x: pool(x).sum())
    found.append(("select_and_scatter_add", gradient, (f32(2, 8, 8, 3),)))
    tangent = partial(jax.jvp, pool)
    image = (f32(2, 8, 8, 3),)
    found.append(("select_and_gather_add", lambda x, t: tangent((x,), (t,)), image * 2))
    return found


def _pool(
    init: float,
    function: Callable[..., Any],
    dims: tuple[int, ...],
    strides: tuple[int, ...],
    padding: str,
) -> Callable[..., Any]:
    return lambda x: lax.reduce_window(x, init, function, dims, strides, padding)


def transforms() -> list[Entry]:
    return [
        ("fft", jnp.fft.fft, (c64(8),)),
        ("fft", jnp.fft.fft, (c64(4, 8),)),
        ("fft", jnp.fft.ifft2, (c64(3, 4, 8),)),
        ("fft", jnp.fft.rfft, (f32(6, 8),)),
        ("fft", jnp.fft.irfft, (c64(6, 5),)),
    ]


def linear_algebra() -> list[Entry]:
    """Factorisations and solves, with and without batch dims."""
    found: list[Entry] = []
    for shape in ((8, 8), (3, 8, 8)):
        symmetric = {"symmetrize_input": False}
        found.append(
            ("cholesky", partial(lax.linalg.cholesky, **symmetric), (f32(*shape),))
        )
        found.append(("lu", lax.linalg.lu, (f32(*shape),)))
        found.append(("eigh", partial(lax.linalg.eigh, **symmetric), (f32(*shape),)))
        found.append(("svd", lax.linalg.svd, (f32(*shape),)))
        found.append(
            ("qr", partial(lax.linalg.qr, full_matrices=False), (f32(*shape),))
        )
        found.append(("symmetric_product", _symmetric, (f32(*shape), f32(*shape))))
        found.append(("lu_pivots_to_permutation", _permutation, (i32(*shape[:-1]),)))
        found.append(
            (
                "householder_product",
                lax.linalg.householder_product,
                (f32(*shape), f32(*shape[:-1])),
            )
        )
        found.append(
            (
                "tridiagonal_solve",
                lax.linalg.tridiagonal_solve,
                (*(f32(*shape[:-1]),) * 3, f32(*shape[:-1], 5)),
            )
        )
    for left in (True, False):
        for batch in ((), (3,)):
            b = (8, 6) if left else (6, 8)
            found.append(
                (
                    "triangular_solve",
                    partial(lax.linalg.triangular_solve, left_side=left),
                    (f32(*batch, 8, 8), f32(*batch, *b)),
                )
            )
    return found


def _symmetric(a: jax.Array, c: jax.Array) -> Any:
    return lax.linalg.symmetric_product(a, c, alpha=2.0, beta=1.0)


def _permutation(pivots: jax.Array) -> Any:
    return lax.linalg.lu_pivots_to_permutation(pivots, permutation_size=12)


def randomness() -> list[Entry]:
    def raw(name: str, *rest: Any) -> Callable[..., Any]:
        return lambda seed: getattr(jax.random, name)(jax.random.key(seed), *rest)

    keys = array(jax.random.key(0).dtype, 8)
    return [
        ("random_bits", raw("bits", (8, 6)), (u32(),)),
        ("random_bits", jax.vmap(lambda k: jax.random.bits(k, (6,))), (keys,)),
        ("random_seed", jax.random.key, (u32(),)),
        ("random_seed", jax.vmap(jax.random.key), (u32(8),)),
        ("random_split", jax.vmap(lambda k: jax.random.split(k, 3)), (keys,)),
        ("random_fold_in", jax.vmap(jax.random.fold_in), (keys, u32(8))),
        ("random_unwrap", jax.random.key_data, (keys,)),
        ("random_wrap", jax.random.wrap_key_data, (u32(8, 2),)),
        ("random_gamma", jax.vmap(lambda k: jax.random.gamma(k, 2.0)), (keys,)),
        ("random_clone", jax.random.clone, (keys,)),
        ("rng_bit_generator", _bits, (u32(4),)),
        ("threefry2x32", threefry_2x32, (u32(2), u32(8, 6))),
    ]


def _bits(key: jax.Array) -> Any:
    return lax.rng_bit_generator(key, (8, 6))


def table() -> list[Entry]:
    """All entries of this file."""
    kinds = (
        elementwise,
        reductions,
        sorts,
        convolutions,
        windows,
        transforms,
        linear_algebra,
        randomness,
    )
    return [entry for kind in kinds for entry in kind()]
