"""Weights of few bits, with a scale for each block of values.

The form of published fp8 and int4 checkpoints: values of few bits beside a smaller
array of scales, one for every block. Nothing here needs to know what a dimension means,
so that values and scales may be stacked over layers or split over a mesh alike.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike


class BlockScaled(NamedTuple):
    """An array as values of few bits times one scale per block.

    Attributes:
      values: `[n, m, ..]`.
      scale: of the same rank; dim `i` holds one scale per `values.shape[i] /
        scale.shape[i]` elements. A size of 1 is one scale for the whole dim.
    """

    values: jax.Array
    scale: jax.Array


def block_sizes(weight: BlockScaled) -> tuple[int, ...]:
    """Elements along each dim that share a scale.

    Raises:
      ValueError: if the scales do not divide the values, or differ in rank.
    """
    values, scale = weight.values.shape, weight.scale.shape
    if len(values) != len(scale) or any(
        not s or n % s for n, s in zip(values, scale, strict=True)
    ):
        raise ValueError(
            f"scale {scale} does not divide values {values} into equal blocks: give "
            f"every dim of the values a number of scales that divides it"
        )
    return tuple(n // s for n, s in zip(values, scale, strict=True))


def dequantized(weight: BlockScaled | jax.Array, dtype: DTypeLike) -> jax.Array:
    """The weight as one array in `dtype`; a plain array is only cast.

    Products are formed in float32 and rounded once.

    Raises:
      ValueError: if the scales do not divide the values into equal blocks.
    """
    if not isinstance(weight, BlockScaled):
        return weight.astype(dtype)
    sizes = block_sizes(weight)
    scale = weight.scale.astype(jnp.float32)
    values = _blocked(weight.values, sizes).astype(jnp.float32)
    product = values * lax.expand_dims(scale, _inner_dims(sizes))
    return product.astype(dtype).reshape(weight.values.shape)


def quantized(
    array: jax.Array,
    blocks: Sequence[int],
    dtype: DTypeLike,
    scale_dtype: DTypeLike = jnp.float32,
) -> BlockScaled:
    """Symmetric quantisation, block by block.

    A block's scale is its largest magnitude over the largest value of `dtype` (448 for
    float8_e4m3fn, 7 for int4); a block of zeros has scale 1.

    Args:
      array: `[n, m, ..]`, of any float type.
      blocks: elements along each dim that share a scale; each divides its dim.

    Raises:
      ValueError: if a block does not divide its dim, or their number is not the rank.

    >>> weight = quantized(jnp.array([1.0, -7.0, 0.0, 3.5]), (2,), "int4")
    >>> weight.values.tolist(), weight.scale.tolist()
    ([1, -7, 0, 7], [1.0, 0.5])
    """
    shape, sizes = array.shape, tuple(blocks)
    if len(shape) != len(sizes) or any(
        b < 1 or n % b for n, b in zip(shape, sizes, strict=True)
    ):
        raise ValueError(
            f"blocks {sizes} do not divide an array {shape}: give every dim a block "
            f"size that divides it"
        )
    info = jnp.finfo if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo
    limit = float(info(dtype).max)
    inner = _inner_dims(sizes)
    wide = _blocked(array.astype(jnp.float32), sizes)
    scale = (jnp.abs(wide).max(axis=inner) / limit).astype(scale_dtype)
    scale = jnp.where(scale > 0, scale, jnp.ones_like(scale))
    shares = wide / lax.expand_dims(scale.astype(jnp.float32), inner)
    if info is jnp.iinfo:
        shares = jnp.round(shares)
    # The scale was rounded, maybe down: what would pass the limit is put to it.
    values = jnp.clip(shares, -limit, limit).astype(dtype)
    return BlockScaled(values.reshape(shape), scale)


def _blocked(array: jax.Array, sizes: Sequence[int]) -> jax.Array:
    """Every dim with a block above 1 as two, blocks and elements of a block."""
    shape: list[int] = []
    for n, b in zip(array.shape, sizes, strict=True):
        shape += [n] if b == 1 else [n // b, b]
    return array.reshape(shape)


def _inner_dims(sizes: Sequence[int]) -> tuple[int, ...]:
    """Dims of a `_blocked` array that lie inside a block."""
    dims, place = [], 0
    for b in sizes:
        if b > 1:
            dims.append(place + 1)
        place += 1 if b == 1 else 2
    return tuple(dims)
