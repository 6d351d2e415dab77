"""Operations that all parts of a layer share, in the activations' dtype.

Each contraction is one `dot_general`. Weights may be plain or block-scaled.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from lts.models.quantized import BlockScaled, dequantized


def product(pattern: str, x: jax.Array, weight: jax.Array | BlockScaled) -> jax.Array:
    """One contraction with a weight, in the dtype of `x`."""
    return jnp.einsum(pattern, x, dequantized(weight, x.dtype))


def float32_product(pattern: str, x: jax.Array, y: jax.Array) -> jax.Array:
    """One contraction, summed and kept in float32."""
    return jnp.einsum(pattern, x, y, preferred_element_type=jnp.float32)


def over_tokens(array: jax.Array, dtype: DTypeLike) -> jax.Array:
    """An array [heads.., k] made to fit [b, heads.., s, k]."""
    return lax.expand_dims(array.astype(dtype), (0, array.ndim))


def rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    """`x` [.., n] over its root mean square, in float32, times `scale` [n]."""
    wide, inverse = _inverse_rms(x, eps, (-1,))
    scale = lax.expand_dims(scale.astype(x.dtype), tuple(range(x.ndim - 1)))
    return (wide * inverse).astype(x.dtype) * scale


def unit_rms(x: jax.Array, eps: float, axes: tuple[int, ...] = (-1,)) -> jax.Array:
    """`x` over its root mean square along `axes`, in float32."""
    wide, inverse = _inverse_rms(x, eps, axes)
    return (wide * inverse).astype(x.dtype)


def _inverse_rms(
    x: jax.Array, eps: float, axes: tuple[int, ...]
) -> tuple[jax.Array, jax.Array]:
    wide = x.astype(jnp.float32)
    square = jnp.mean(wide * wide, axis=axes, keepdims=True)
    return wide, lax.rsqrt(square + eps)
