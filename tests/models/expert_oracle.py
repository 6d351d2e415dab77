"""Experts in float64, every one on every token, and tiny inputs for them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from lts.models.experts import Weight
from lts.models.quantized import dequantized, quantized

KINDS = ("gated", "ungated", "scaled")


class Experts(NamedTuple):
    """Weights of `expert_ffn`, maybe with a leading dim of layers."""

    gate: Weight | None
    up: Weight
    down: Weight


def random_experts(seed: int, shape: tuple[int, ...], kind: str) -> Experts:
    """Experts `[.., e, d, f]`; scaled ones are float8 in blocks of 4 by 4."""
    draw = np.random.default_rng(seed).normal
    *lead, d, f = shape

    def one(rows: int, columns: int) -> Weight:
        array = jnp.asarray(draw(size=(*lead, rows, columns)), jnp.float32)
        array /= rows**0.5
        if kind != "scaled":
            return array
        return quantized(array, (*(1 for _ in lead), 4, 4), "float8_e4m3fn")

    return Experts(None if kind == "ungated" else one(d, f), one(d, f), one(f, d))


def every_expert_on_every_token(
    x: ArrayLike, weight: ArrayLike, expert: ArrayLike, experts: Experts
) -> np.ndarray:
    """What `expert_ffn` should give, in float64."""

    def plain(array: Weight) -> np.ndarray:
        return np.asarray(dequantized(array, jnp.float32), np.float64)

    x, weight = np.asarray(x, np.float64), np.asarray(weight, np.float64)
    up, down = plain(experts.up), plain(experts.down)
    total = np.zeros_like(x)
    for number in range(len(up)):
        wide = x @ up[number]
        if experts.gate is None:
            wide = np.maximum(wide, 0.0)
        else:
            gated = x @ plain(experts.gate)[number]
            wide = gated / (1.0 + np.exp(-gated)) * wide
        share = np.where(np.asarray(expert) == number, weight, 0.0).sum(-1)
        total += wide @ down[number] * share[..., None]
    return total


def distinct_experts(seed: int, shape: tuple[int, ...], num_experts: int) -> jax.Array:
    """k different experts for each token, drawn evenly; `[*tokens, k]` int32."""
    *tokens, top_k = shape
    order = np.random.default_rng(seed).random((*tokens, num_experts)).argsort(-1)
    return jnp.asarray(order[..., :top_k], jnp.int32)


def relative_error(found: jax.Array, wanted: np.ndarray) -> float:
    """Largest difference over the largest value."""
    return float(
        np.abs(np.asarray(found, np.float64) - wanted).max() / np.abs(wanted).max()
    )
