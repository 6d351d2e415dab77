"""What the layers of one step share: positions, rotary tables, masks."""

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from lts.models.architecture import GroupedAttention, LatentAttention
from lts.models.config import DecoderConfig
from lts.models.rope import frequencies, rotary, rotate

Attention = GroupedAttention | LatentAttention


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What all layers of one kind of attention share.

    Attributes:
      tables: cosines and sines, each [s, rotary size / 2] float32; None without
        position embedding.
      visible: bool [1, .., s, t], of the rank of the scores.
      query_scale: float32 [1, .., s, 1] that queries are multiplied by, or None.
    """

    tables: tuple[jax.Array, jax.Array] | None
    visible: jax.Array
    query_scale: jax.Array | None

    def rotated(self, x: jax.Array) -> jax.Array:
        """`x` [.., s, k] with its first elements turned by the rotary tables."""
        if self.tables is None:
            return x
        size = 2 * self.tables[0].shape[-1]
        if size == x.shape[-1]:
            return rotate(x, *self.tables)
        turned = rotate(x[..., :size], *self.tables)
        return jnp.concatenate([turned, x[..., size:]], axis=-1)


@dataclass(frozen=True, kw_only=True)
class Step:
    """What all layers of one step share.

    Attributes:
      start: [] first new position.
      frames: by kind of attention.
      from_cache: attend over the cache (decode) or the new tokens (prefill).
    """

    config: DecoderConfig
    start: jax.Array | int
    frames: Mapping[Attention, Frame]
    from_cache: bool


def prepared(
    config: DecoderConfig,
    kept: Mapping[Attention, int],
    num_new: int,
    start: jax.Array | int,
    from_cache: bool,
) -> Step:
    """The shared part of a step of `num_new` tokens.

    Args:
      kept: positions in the cache, by kind of attention.
    """
    positions = start + jnp.arange(num_new, dtype=jnp.int32)
    frames = {
        attention: _frame(attention, positions, size if from_cache else None)
        for attention, size in kept.items()
    }
    return Step(config=config, start=start, frames=frames, from_cache=from_cache)


def _frame(attention: Attention, positions: jax.Array, kept: int | None) -> Frame:
    """`kept` cached positions are seen; None: the new ones."""
    num_seen = len(positions) if kept is None else kept
    seen = jnp.arange(num_seen, dtype=jnp.int32)
    tables = None
    if (rope := attention.rope) is not None:
        table = frequencies(rope.size, rope.theta, rope.scaling)
        tables = rotary(positions, table)
    rank = 5 if isinstance(attention, GroupedAttention) else 4
    seen = lax.expand_dims(seen, tuple(range(rank - 1)))
    own = lax.expand_dims(positions, (*range(rank - 2), rank - 1))
    visible = _visible(attention, own, seen, kept is not None)
    scale = _query_scale(attention, own)
    return Frame(tables=tables, visible=visible, query_scale=scale)


def _visible(
    attention: Attention, own: jax.Array, seen: jax.Array, from_cache: bool
) -> jax.Array:
    """Which of the places `seen` the positions `own` attend to."""
    window = attention.window if isinstance(attention, GroupedAttention) else None
    if window is None:
        return seen <= own
    chunked = isinstance(attention, GroupedAttention) and attention.chunked
    if from_cache:  # the window is as long as the cache: what was written is seen
        return seen <= (lax.rem(own, window) if chunked else own)
    if chunked:
        return (seen <= own) & (lax.div(seen, window) == lax.div(own, window))
    return (seen <= own) & (seen > own - window)


def _query_scale(attention: Attention, own: jax.Array) -> jax.Array | None:
    """What queries are multiplied by, float32 of the shape of `own`."""
    if isinstance(attention, LatentAttention) or attention.query_scaling is None:
        return None
    floor, scale = attention.query_scaling
    reached = jnp.floor((own + 1).astype(jnp.float32) / floor)
    return 1.0 + scale * jnp.log(reached + 1.0)
