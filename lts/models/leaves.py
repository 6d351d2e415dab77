"""What stands at the leaves of a parameter tree: shapes, names or drawn numbers.

A quantized weight is a `BlockScaled` pair at its leaf, any other one array.
"""

from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from lts.models.architecture import Quantization
from lts.models.config import DecoderConfig
from lts.models.parameters import LayerForm, build, count
from lts.models.quantized import BlockScaled, quantized
from lts.models.weights import Params, Weight, blocks


def abstract_leaf(
    weight: Weight, dtype: DTypeLike, quantization: Quantization | None
) -> Any:
    """Shape and dtype; `dtype` is that of plain weights."""
    extents = blocks(weight, quantization)
    if quantization is None or extents is None:
        return jax.ShapeDtypeStruct(weight.shape, dtype)
    scales = tuple(n // b for n, b in zip(weight.shape, extents, strict=True))
    pair: tuple[Any, Any] = (
        jax.ShapeDtypeStruct(weight.shape, jnp.dtype(quantization.dtype)),
        jax.ShapeDtypeStruct(scales, jnp.dtype(quantization.scale_dtype)),
    )
    return BlockScaled(*pair)


def named_leaf(weight: Weight, quantization: Quantization | None) -> Any:
    """The record itself, twice for values and scales."""
    pair: tuple[Any, Any] = (weight, weight)
    return weight if blocks(weight, quantization) is None else BlockScaled(*pair)


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def initial_params(
    config: DecoderConfig,
    form: LayerForm,
    dtype: Any,
    quantization: Quantization | None,
    key: jax.Array,
) -> Params:
    """Random parameters: matrices and biases normal / sqrt(fan in), norms one."""
    # One draw: compiling the generator for each array's shape takes seconds.
    drawn = jax.random.normal(key, (count(config),), jnp.float32)
    offset = 0

    def make(weight: Weight) -> jax.Array | BlockScaled:
        nonlocal offset
        start, offset = offset, offset + prod(weight.shape)
        if not weight.fan_in:
            return jnp.ones(weight.shape, dtype)
        values = drawn[start:offset].reshape(weight.shape) * weight.fan_in**-0.5
        extents = blocks(weight, quantization)
        if quantization is None or extents is None:
            return values.astype(dtype)
        return quantized(values, extents, quantization.dtype, quantization.scale_dtype)

    return build(config, form, make)
