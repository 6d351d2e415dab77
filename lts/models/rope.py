"""Rotary position embedding and the two ways of stretching it that the decoders have.

A head of size k is turned pairwise: element i of its first half with element i of its
second half, by the angle position x frequency[i]. `linear` and `llama3` scaling change
the frequencies only, so they cost nothing at run time.

Source: Su et al. 2021 (arXiv 2104.09864), eq. 34, with halves paired as in the Hugging
Face weights of Llama and Qwen; transformers `modeling_rope_utils.py` for scaling.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


@dataclass(frozen=True, kw_only=True)
class LinearRope:
    """Frequencies divided by one factor (position interpolation)."""

    factor: float

    def scale(self, frequencies: np.ndarray) -> np.ndarray:
        """Returns the scaled frequencies [k / 2], radians per position."""
        return frequencies / self.factor


@dataclass(frozen=True, kw_only=True)
class Llama3Rope:
    """Long wavelengths divided by a factor, short ones kept, a ramp in between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: float

    def scale(self, frequencies: np.ndarray) -> np.ndarray:
        """Returns the scaled frequencies [k / 2], radians per position."""
        turns = self.original_max_position_embeddings * frequencies / (2 * np.pi)
        ramp = self.high_freq_factor - self.low_freq_factor
        kept = np.clip((turns - self.low_freq_factor) / ramp, 0.0, 1.0)
        return frequencies * (kept + (1.0 - kept) / self.factor)


RopeScaling = LinearRope | Llama3Rope


def read_rope_scaling(fields: Mapping[str, Any]) -> RopeScaling | None:
    """Reads the `rope_scaling` (or newer `rope_parameters`) object of a config.json.

    Returns:
      None where the frequencies are used as they are.

    Raises:
      ValueError: in one line, for a missing or bad number, or a kind that is not one
        of `default`, `linear` and `llama3`.
    """
    nested = [name for name, value in fields.items() if isinstance(value, Mapping)]
    if nested:
        raise ValueError(
            f"rope scaling per layer type ({', '.join(nested)}) is not supported"
        )
    kind = fields.get("rope_type", fields.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return LinearRope(factor=_positive(fields, "factor"))
    if kind != "llama3":
        raise ValueError(
            f"rope scaling {kind!r} is not supported; have default, linear, llama3"
        )
    names = Llama3Rope.__dataclass_fields__
    scaling = Llama3Rope(**{name: _positive(fields, name) for name in names})
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        raise ValueError(
            f"rope scaling: high_freq_factor {scaling.high_freq_factor} must exceed "
            f"low_freq_factor {scaling.low_freq_factor}"
        )
    return scaling


def _positive(fields: Mapping[str, Any], name: str) -> float:
    if name not in fields:
        raise ValueError(f"rope scaling: field '{name}' is missing")
    value = fields[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(
            f"rope scaling: field '{name}' must be a positive number, got {value!r}"
        )
    return float(value)


def frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> np.ndarray:
    """Rotation per position of each pair, [head_dim / 2] float32, on the host."""
    plain = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    scaled = plain if scaling is None else scaling.scale(plain)
    return scaled.astype(np.float32)


def rotary(
    positions: jax.Array, frequencies: np.ndarray
) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines, each [positions, k / 2] float32."""
    steps = lax.expand_dims(positions.astype(jnp.float32), (1,))
    angles = steps * jnp.asarray(frequencies)[None, :]
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Turns `x` [..., positions, k] by the tables [positions, k / 2], in float32."""
    leading = tuple(range(x.ndim - 2))
    cos, sin = lax.expand_dims(cos, leading), lax.expand_dims(sin, leading)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)
