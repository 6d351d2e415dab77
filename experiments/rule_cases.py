"""Arguments for public functions of jax that generic arguments do not fit.

`CASES` calls a function on abstract arrays, `NOT_TRACED` says why a name is left out.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Case = tuple[Any, ...]
"""How to call the function, then its abstract arrays."""


def spec(*shape: int, dtype: Any = "float32") -> jax.ShapeDtypeStruct:
    """An abstract array."""
    return jax.ShapeDtypeStruct(shape, dtype)


X, SQUARE, V, S = spec(8, 16), spec(8, 8), spec(8), spec()
BATCH = spec(4, 8, 8)
IDS, COUNT = spec(8, dtype="int32"), spec(dtype="int32")
MASK = spec(8, 16, dtype="bool")
COMPLEX = spec(8, 16, dtype="complex64")
KEY = jax.eval_shape(lambda: jax.random.key(0))
IMAGE, KERNEL = spec(2, 4, 8, 8), spec(4, 4, 3, 3)
E4M3, E8M0 = "float8_e4m3fn", "float8_e8m0fnu"

GATHER = lax.GatherDimensionNumbers(
    offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,)
)
SCATTER = lax.ScatterDimensionNumbers(
    update_window_dims=(1,),
    inserted_window_dims=(0,),
    scatter_dims_to_operand_dims=(0,),
)
RAGGED = lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((1,), (1,)), ((), ())),
    lhs_ragged_dimensions=[0],
    rhs_group_dimensions=[0],
)
DOT = (((1,), (0,)), ((), ()))
SCATTERED: tuple[Any, ...] = (X, spec(3, 1, dtype="int32"), spec(3, 16))


def _scatter(f: Callable, *arrays: Any) -> Any:
    return f(*arrays, SCATTER)


def _add(a: Any, b: Any) -> Any:
    return a + b


def _windows(f: Callable, x: Any) -> Any:
    """Every primitive that windows and their gradients bind."""

    def maximum(y: Any) -> Any:
        return f(y, -jnp.inf, lax.max, (1, 2), (1, 2), "VALID")

    ways = ((0.0, lax.add), (jnp.inf, lax.min), (0.0, lambda a, b: a + b * b))
    found = [f(x, start, of, (1, 2), (1, 2), "VALID") for start, of in ways]
    gradients = jax.grad(lambda y: maximum(y).sum())(x), jax.jvp(maximum, (x,), (x,))
    return [*found, *gradients]


CASES: dict[str, Case] = {
    "jax.lax.after_all": (lambda f: f(lax.create_token()),),
    "jax.lax.argmax": (lambda f, x: f(x, 0, np.int32), X),
    "jax.lax.argmin": (lambda f, x: f(x, 0, np.int32), X),
    "jax.lax.associative_scan": (lambda f, x: f(_add, x), X),
    "jax.lax.bitcast_convert_type": (lambda f, x: f(x, "uint8"), X),
    "jax.lax.broadcast_in_dim": (lambda f, x: f(x, (2, 8, 16), (1, 2)), X),
    "jax.lax.composite": (lambda f, x: f(jnp.sin, "my.sin")(x), X),
    "jax.lax.cond": (lambda f, c, x: f(c > 0, jnp.sin, jnp.cos, x), S, X),
    "jax.lax.conv": (lambda f, x, k: f(x, k, (1, 1), "SAME"), IMAGE, KERNEL),
    "jax.lax.conv_general_dilated": (
        lambda f, x, k: f(x, k, (1, 1), "SAME"),
        IMAGE,
        KERNEL,
    ),
    "jax.lax.conv_general_dilated_local": (
        lambda f, x, k: f(x, k, (1, 1), "SAME", (3, 3)),
        IMAGE,
        spec(4, 36, 8, 8),
    ),
    "jax.lax.conv_general_dilated_patches": (
        lambda f, x: f(x, (3, 3), (1, 1), "SAME"),
        IMAGE,
    ),
    "jax.lax.conv_transpose": (
        lambda f, x, k: f(x, k, (2, 2), "SAME"),
        spec(2, 8, 8, 4),
        spec(3, 3, 4, 4),
    ),
    "jax.lax.conv_with_general_padding": (
        lambda f, x, k: f(x, k, (1, 1), "SAME", None, None),
        IMAGE,
        KERNEL,
    ),
    "jax.lax.custom_linear_solve": (
        lambda f, b: f(lambda x: 2.0 * x, b, lambda _, b: b / 2.0),
        V,
    ),
    "jax.lax.custom_root": (
        lambda f, x: f(
            lambda y: y - 2.0, x, lambda g, y: y, lambda g, y: y / g(jnp.ones_like(y))
        ),
        S,
    ),
    "jax.lax.dot_general": (lambda f, a, b: f(a, b, DOT), X, spec(16, 8)),
    "jax.lax.dynamic_slice": (lambda f, x, i: f(x, (i, i), (4, 16)), X, COUNT),
    "jax.lax.dynamic_slice_in_dim": (lambda f, x, i: f(x, i, 4), X, COUNT),
    "jax.lax.dynamic_update_index_in_dim": (
        lambda f, x, y, i: f(x, y, i, 0),
        X,
        spec(16),
        COUNT,
    ),
    "jax.lax.dynamic_update_slice": (
        lambda f, x, y, i: f(x, y, (i, i)),
        X,
        spec(2, 16),
        COUNT,
    ),
    "jax.lax.dynamic_update_slice_in_dim": (
        lambda f, x, y, i: f(x, y, i, 0),
        X,
        spec(2, 16),
        COUNT,
    ),
    "jax.lax.empty": (lambda f: f((8, 16), "float32"),),
    "jax.lax.fft": (lambda f, x: f(x, "FFT", (16,)), COMPLEX),
    "jax.lax.fori_loop": (lambda f, x: f(0, 3, lambda i, y: y * 2.0, x), X),
    "jax.lax.full": (lambda f: f((8, 16), 0.0),),
    "jax.lax.gather": (
        lambda f, x, i: f(x, i, GATHER, (1, 16)),
        X,
        spec(3, 1, dtype="int32"),
    ),
    "jax.lax.index_take": (lambda f, x, i: f(x, (i,), (0,)), X, IDS),
    "jax.lax.iota": (lambda f: f("int32", 8),),
    "jax.lax.map": (lambda f, x: f(jnp.sin, x), X),
    "jax.lax.pad": (lambda f, x: f(x, 0.0, ((0, 0, 0), (1, 1, 0))), X),
    "jax.lax.platform_dependent": (
        lambda f, x: f(x, cpu=jnp.sin, default=jnp.cos),
        X,
    ),
    "jax.lax.ragged_dot": (
        lambda f, x, w, n: f(x, w, n),
        X,
        spec(4, 16, 8),
        spec(4, dtype="int32"),
    ),
    "jax.lax.ragged_dot_general": (
        lambda f, x, w, n: f(x, w, n, RAGGED),
        X,
        spec(4, 16, 8),
        spec(4, dtype="int32"),
    ),
    "jax.lax.reduce": (lambda f, x: f(x, 0.0, lambda a, b: a + b * b, (1,)), X),
    "jax.lax.reduce_and": (lambda f, x: f(x, (1,)), MASK),
    "jax.lax.reduce_or": (lambda f, x: f(x, (1,)), MASK),
    "jax.lax.reduce_precision": (lambda f, x: f(x, 5, 10), X),
    "jax.lax.reduce_window": (_windows, X),
    "jax.lax.reduce_xor": (lambda f, x: f(x, (1,)), MASK),
    "jax.lax.rng_bit_generator": (
        lambda f, k: f(k, (8, 16)),
        spec(4, dtype="uint32"),
    ),
    "jax.lax.rng_uniform": (lambda f, a, b: f(a, b, (8, 16)), S, S),
    "jax.lax.scan": (lambda f, x: f(lambda c, y: (c + y, c), x[0], x), X),
    "jax.lax.scatter": (_scatter, *SCATTERED),
    "jax.lax.scatter_add": (_scatter, *SCATTERED),
    "jax.lax.scatter_apply": (
        lambda f, x, i: f(x, i, jnp.sin, SCATTER, update_shape=(3, 16)),
        *SCATTERED[:2],
    ),
    "jax.lax.scatter_max": (_scatter, *SCATTERED),
    "jax.lax.scatter_min": (_scatter, *SCATTERED),
    "jax.lax.scatter_mul": (_scatter, *SCATTERED),
    "jax.lax.scatter_sub": (_scatter, *SCATTERED),
    "jax.lax.select": (lambda f, m, x: f(m, x, x), MASK, X),
    "jax.lax.slice": (lambda f, x: f(x, (0, 2), (8, 6)), X),
    "jax.lax.slice_in_dim": (lambda f, x: f(x, 0, 4), X),
    "jax.lax.split": (lambda f, x: f(x, (4, 12), 1), X),
    "jax.lax.squeeze": (lambda f, x: f(x, (0,)), spec(1, 16)),
    "jax.lax.switch": (
        lambda f, i, x: f(i, (jnp.sin, jnp.cos, jnp.tan), x),
        COUNT,
        X,
    ),
    "jax.lax.while_loop": (
        lambda f, x: f(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2), (0, x)),
        X,
    ),
    "jax.lax.with_sharding_constraint": (
        lambda f, x: f(x, jax.sharding.SingleDeviceSharding(jax.devices()[0])),
        X,
    ),
    "jax.lax.linalg.lu_pivots_to_permutation": (
        lambda f, p: f(p, 8),
        spec(4, 8, dtype="int32"),
    ),
    "jax.lax.linalg.ormqr": (lambda f, a, t, c: f(a, t, c), BATCH, spec(4, 8), BATCH),
    "jax.lax.linalg.tridiagonal_solve": (
        lambda f, d, b: f(d, d, d, b),
        V,
        spec(8, 3),
    ),
    "jax.numpy.apply_along_axis": (lambda f, x: f(jnp.cumsum, 1, x), X),
    "jax.numpy.apply_over_axes": (
        lambda f, x: f(lambda y, axis: jnp.sum(y, axis, keepdims=True), x, (0,)),
        X,
    ),
    "jax.numpy.argwhere": (lambda f, x: f(x, size=4), X),
    "jax.numpy.bincount": (lambda f, i: f(i, length=8), IDS),
    "jax.numpy.choose": (
        lambda f, i, x: f(i, [x, x], mode="clip"),
        IDS,
        V,
    ),
    "jax.numpy.compress": (lambda f, x: f(jnp.ones(8, bool), x, axis=0, size=4), X),
    "jax.numpy.cross": (lambda f, a, b: f(a, b), spec(8, 3), spec(8, 3)),
    "jax.numpy.dsplit": (lambda f, x: f(x, 2), spec(2, 4, 8)),
    "jax.numpy.extract": (lambda f, m, x: f(m, x, size=4), MASK, X),
    "jax.numpy.fill_diagonal": (lambda f, x: f(x, 1.0, inplace=False), SQUARE),
    "jax.numpy.flatnonzero": (lambda f, x: f(x, size=4), X),
    "jax.numpy.fromfunction": (lambda f: f(_add, (8, 16)),),
    "jax.numpy.frompyfunc": (lambda f, x: f(_add, 2, 1)(x, x), X),
    "jax.numpy.full": (lambda f: f((8, 16), 0.0),),
    "jax.numpy.insert": (lambda f, x: f(x, 1, 0.0, 0), X),
    "jax.numpy.intersect1d": (lambda f, a, b: f(a, b, size=4), V, V),
    "jax.numpy.mask_indices": (lambda f: f(8, jnp.triu, size=36),),
    "jax.numpy.moveaxis": (lambda f, x: f(x, 0, 1), X),
    "jax.numpy.nonzero": (lambda f, x: f(x, size=4), X),
    "jax.numpy.place": (lambda f, x, m, v: f(x, m, v, inplace=False), X, MASK, V),
    "jax.numpy.polyfit": (lambda f, x, y: f(x, y, 2), V, V),
    "jax.numpy.put": (lambda f, x, i, v: f(x, i, v, inplace=False), X, IDS, V),
    "jax.numpy.put_along_axis": (
        lambda f, x, i, v: f(x, i, v, 1, inplace=False),
        X,
        spec(8, 3, dtype="int32"),
        spec(8, 3),
    ),
    "jax.numpy.ravel_multi_index": (
        lambda f, i: f((i, i), (8, 16), mode="clip"),
        IDS,
    ),
    "jax.numpy.setdiff1d": (lambda f, a, b: f(a, b, size=4), V, V),
    "jax.numpy.setxor1d": (lambda f, a, b: f(a, b, size=4), V, V),
    "jax.numpy.swapaxes": (lambda f, x: f(x, 0, 1), X),
    "jax.numpy.union1d": (lambda f, a, b: f(a, b, size=4), V, V),
    "jax.numpy.unique": (lambda f, x: f(x, size=4), X),
    "jax.numpy.unique_all": (lambda f, x: f(x, size=4), X),
    "jax.numpy.unique_counts": (lambda f, x: f(x, size=4), X),
    "jax.numpy.unique_inverse": (lambda f, x: f(x, size=4), X),
    "jax.numpy.unique_values": (lambda f, x: f(x, size=4), X),
    "jax.numpy.unpackbits": (lambda f, x: f(x), spec(8, 16, dtype="uint8")),
    "jax.numpy.vectorize": (lambda f, x: f(_add)(x, x), X),
    "jax.numpy.linalg.matrix_power": (lambda f, x: f(x, 3), SQUARE),
    "jax.numpy.linalg.cross": (lambda f, a, b: f(a, b), spec(8, 3), spec(8, 3)),
    "jax.nn.scaled_dot_general": (
        lambda f, a, b: f(a, b, (((2,), (2,)), ((0,), (0,)))),
        spec(2, 32, 64),
        spec(2, 32, 64),
    ),
    "jax.nn.scaled_matmul": (
        lambda f, a, b, s, t: f(a, b, s, t),
        spec(2, 32, 64, dtype=E4M3),
        spec(2, 32, 64, dtype=E4M3),
        spec(2, 32, 2, dtype=E8M0),
        spec(2, 32, 2, dtype=E8M0),
    ),
    "jax.nn.dot_product_attention": (
        lambda f, q: f(q, q, q, is_causal=True),
        spec(2, 8, 4, 16),
    ),
    "jax.scipy.special.bessel_jn": (lambda f, x: f(x, v=3), V),
    "jax.scipy.special.sph_harm_y": (
        lambda f, n, t: f(n, n, t, t, n_max=4),
        IDS,
        V,
    ),
    "jax.random.ball": (lambda f, k: f(k, 3), KEY),
    "jax.random.key_data": (lambda f, k: f(k), KEY),
    "jax.random.multinomial": (lambda f, k, p: f(k, 5.0, p), KEY, V),
    "jax.random.orthogonal": (lambda f, k: f(k, 8), KEY),
    "jax.random.randint": (lambda f, k: f(k, (8,), 0, 9), KEY),
    "jax.random.triangular": (lambda f, k: f(k, 0.0, 0.5, 1.0), KEY),
    "jax.random.wrap_key_data": (lambda f, d: f(d), spec(2, dtype="uint32")),
    "jax.scipy.linalg.cho_solve": (lambda f, a, b: f((a, True), b), SQUARE, V),
    "jax.scipy.linalg.eigh_tridiagonal": (
        lambda f, d, e: f(d, e, eigvals_only=True),
        V,
        spec(7),
    ),
    "jax.scipy.linalg.funm": (lambda f, a: f(a, jnp.sin), SQUARE),
    "jax.scipy.linalg.hadamard": (lambda f: f(8),),
    "jax.scipy.linalg.leslie": (lambda f, a, b: f(a, b), V, spec(7)),
    "jax.scipy.linalg.lu_solve": (
        lambda f, a, p, b: f((a, p), b),
        SQUARE,
        IDS,
        V,
    ),
}

_COLLECTIVE = "a collective: it needs a mesh axis bound by shard_map, never entered"
_SHAPES = "computes with shapes or types, not with arrays"
_DATA = "reads or writes data outside, or needs values"

NOT_TRACED: dict[str, str] = {
    **dict.fromkeys(
        [
            f"jax.lax.{name}"
            for name in """all_gather all_gather_invariant all_gather_reduced
            all_gather_start all_gather_done all_to_all
            all_to_all_start all_to_all_done axis_index axis_size pbroadcast pcast pmax
            pmax_start pmax_done pmean pmin pmin_start ppermute ppermute_start
            ppermute_done precv preduced psend pshuffle psum psum_scatter
            psum_scatter_start psum_scatter_done psum_start psum_done pswapaxes
            pvary ragged_all_to_all reduced_vary_cast""".split()
        ],
        _COLLECTIVE,
    ),
    **dict.fromkeys(
        [
            f"jax.lax.{name}"
            for name in """ConvGeneralDilatedDimensionNumbers DotDimensionNumbers
            PrecisionLike broadcast_shapes conv_dimension_numbers
            conv_general_permutations conv_general_shape_tuple conv_shape_tuple
            conv_transpose_shape_tuple dtype padtype_to_pads
            reduce_window_shape_tuple""".split()
        ],
        _SHAPES,
    ),
    **dict.fromkeys(
        [
            f"jax.numpy.{name}"
            for name in """array_repr array_str einsum_path get_printoptions
            printoptions promote_types result_type
            set_printoptions""".split()
        ],
        _SHAPES,
    ),
    **dict.fromkeys(
        [
            f"jax.numpy.{name}"
            for name in """from_dlpack frombuffer fromfile fromiter fromstring load
            save savez trim_zeros""".split()
        ],
        _DATA,
    ),
    "jax.nn.get_scaled_dot_general_config": _SHAPES,
    "jax.random.key_dtype": _SHAPES,
    "jax.random.key_impl": _SHAPES,
}
