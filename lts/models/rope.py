"""Rotary position embedding and the ways of stretching it that the decoders have.

A head of size k is turned pairwise: element i of its first half with element i of its
second half, by the angle position x frequency[i]. Scaling changes the frequencies, and
`yarn` also the scale of the scores, so it costs nothing at run time. (Weights that pair
neighbours, as DeepSeek's and Llama 4's, differ by an order of rows only.)

Source: Su et al. 2021 (arXiv 2104.09864), eq. 34, with halves paired as in the Hugging
Face weights of Llama and Qwen; transformers `modeling_rope_utils.py` for scaling; Peng
et al. 2023 (arXiv 2309.00071) for YaRN.
"""

from dataclasses import dataclass
from math import ceil, floor, log, pi

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


@dataclass(frozen=True, kw_only=True)
class LinearRope:
    """Frequencies divided by one factor (position interpolation)."""

    factor: float

    def scale(self, frequencies: np.ndarray, theta: float) -> np.ndarray:
        """Returns the scaled frequencies [k / 2], radians per position."""
        return frequencies / self.factor


@dataclass(frozen=True, kw_only=True)
class Llama3Rope:
    """Long wavelengths divided by a factor, short ones kept, a ramp in between.

    Where both bounds are one (Llama 4 Scout) there is a step instead of a ramp.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: float

    def scale(self, frequencies: np.ndarray, theta: float) -> np.ndarray:
        """Returns the scaled frequencies [k / 2], radians per position."""
        turns = self.original_max_position_embeddings * frequencies / (2 * np.pi)
        ramp = self.high_freq_factor - self.low_freq_factor
        if ramp:
            kept = np.clip((turns - self.low_freq_factor) / ramp, 0.0, 1.0)
        else:
            kept = (turns >= self.low_freq_factor).astype(np.float64)
        return frequencies * (kept + (1.0 - kept) / self.factor)


@dataclass(frozen=True, kw_only=True)
class YarnRope:
    """Pairs that turn often are kept, those that turn little divided by a factor.

    Attributes:
      beta_fast, beta_slow: turns over the original context from which on a pair is
        kept, and up to which it is divided whole; a ramp over pairs in between.
      attention_scale: what scores are multiplied by, beside 1 / sqrt(head size).
    """

    factor: float
    original_max_position_embeddings: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_scale: float = 1.0

    def scale(self, frequencies: np.ndarray, theta: float) -> np.ndarray:
        """Returns the scaled frequencies [k / 2], radians per position."""
        pairs = len(frequencies)

        def place(turns: float) -> float:
            context = self.original_max_position_embeddings
            return pairs * log(context / (turns * 2 * pi)) / log(theta)

        low = max(floor(place(self.beta_fast)), 0)
        high = min(ceil(place(self.beta_slow)), 2 * pairs - 1)
        # Equal ends would divide by zero: the source widens them by this.
        width = high - low if high != low else 0.001
        divided = np.clip((np.arange(pairs) - low) / width, 0.0, 1.0)
        return frequencies * (1.0 - divided + divided / self.factor)


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    """YaRN's growth of queries and keys with the context's factor.

    Source: arXiv 2309.00071, eq. 22, with DeepSeek's `mscale` in front of the log.
    """
    return 1.0 if factor <= 1 else 0.1 * mscale * log(factor) + 1.0


RopeScaling = LinearRope | Llama3Rope | YarnRope


def frequencies(size: int, theta: float, scaling: RopeScaling | None) -> np.ndarray:
    """Rotation per position of each pair, [size / 2] float32, on the host."""
    plain = theta ** (-np.arange(0, size, 2, dtype=np.float64) / size)
    scaled = plain if scaling is None else scaling.scale(plain, theta)
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
