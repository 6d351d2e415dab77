"""Block scales: worked values, and the rounding error that a type allows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lts.models.quantized import BlockScaled, block_sizes, dequantized, quantized


def repeated(weight: BlockScaled) -> np.ndarray:
    """Values times scales, each scale written out for its block."""
    scale = np.asarray(weight.scale, np.float64)
    for dim, size in enumerate(block_sizes(weight)):
        scale = scale.repeat(size, dim)
    return np.asarray(weight.values, np.float64) * scale


@pytest.mark.parametrize(
    "scale_shape", [(3, 2, 2), (3, 1, 4), (1, 4, 1), (3, 4, 8), (1, 1, 1)]
)
def test_every_element_is_multiplied_by_the_scale_of_its_block(
    scale_shape: tuple[int, ...], key: jax.Array
) -> None:
    values = jax.random.randint(key, (3, 4, 8), -7, 8).astype(jnp.int4)
    scale = 2.0 ** jax.random.randint(key, scale_shape, -3, 4)
    weight = BlockScaled(values, scale)
    found = jax.jit(dequantized, static_argnums=1)(weight, "float32")
    assert found.dtype == jnp.float32
    np.testing.assert_array_equal(found, repeated(weight))


def test_a_plain_array_is_only_cast() -> None:
    found = dequantized(jnp.array([1.0, 1.00390625]), "bfloat16")
    assert found.dtype == jnp.bfloat16
    assert found.tolist() == [1.0, 1.0]


# Half a unit in the last place: 2^-4 of a value with 3 mantissa bits; 0.5 for int4.
@pytest.mark.parametrize(
    ("dtype", "limit", "relative", "absolute"),
    [("float8_e4m3fn", 448.0, 2.0**-4, 2.0**-10), ("int4", 7.0, 0.0, 0.5)],
)
def test_quantized_values_are_off_by_half_a_step_at_most(
    dtype: str, limit: float, relative: float, absolute: float, key: jax.Array
) -> None:
    array = jax.random.normal(key, (2, 8, 6))
    weight = jax.jit(quantized, static_argnums=(1, 2))(array, (1, 4, 3), dtype)
    assert weight.values.dtype == jnp.dtype(dtype)
    assert weight.scale.shape == (2, 2, 2)
    blocks = np.abs(array).reshape(2, 2, 4, 2, 3).max((2, 4))
    np.testing.assert_allclose(weight.scale, blocks / limit, rtol=1e-6)
    scale = np.asarray(weight.scale).repeat(4, 1).repeat(3, 2)
    error = np.abs(np.asarray(dequantized(weight, "float32")) - array)
    assert (error <= (np.abs(array) * relative + absolute * scale) * (1 + 1e-6)).all()


def test_a_scale_that_was_rounded_down_does_not_overflow_the_values() -> None:
    array = jnp.array([1.25 * 448, -20.0])
    weight = quantized(array, (2,), "float8_e4m3fn", "float8_e8m0fnu")
    assert weight.scale.astype(jnp.float32).tolist() == [1.0]  # powers of two only
    assert weight.values.astype(jnp.float32).tolist() == [448.0, -20.0]


def test_a_block_of_zeros_stays_zero() -> None:
    weight = quantized(jnp.zeros((4, 4)), (2, 4), "float8_e4m3fn")
    assert weight.scale.tolist() == [[1.0], [1.0]]
    assert not np.asarray(dequantized(weight, "bfloat16")).any()


def test_uneven_blocks_are_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"^blocks \(3,\) do not divide .*\(8,\).*$"):
        quantized(jnp.ones(8), (3,), "int4")
    for shape in ((3,), (2, 1)):
        uneven = BlockScaled(jnp.ones(8, jnp.int4), jnp.ones(shape))
        with pytest.raises(ValueError, match="does not divide values .*equal blocks"):
            dequantized(uneven, "float32")
