"""What a layer keeps of earlier tokens: shapes, writing and reading.

Time stands before the last dim (with time before heads, each step would transpose the
cache). A layer with a window keeps no more positions than it can see: position p lies
at p modulo their number. Indices are known not to be negative, and saying so keeps
selects out of the program.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lts.models.architecture import GroupedAttention, LatentAttention
from lts.models.weights import NamedShape

Cache = Any
"""Per segment of equal layers a dict of arrays [layers, b, .., t, k]."""


def cache_shapes(
    attention: GroupedAttention | LatentAttention | None, batch: int, length: int
) -> dict[str, NamedShape]:
    """Arrays of one layer's cache for `batch` requests of `length` positions.

    Keys and values are [b, g, t, k]; a latent is [b, t, r], with the keys [b, t, k]
    that all heads share beside it.
    """
    if attention is None:
        return {}
    if isinstance(attention, LatentAttention):
        sizes = {"latent": attention.kv_rank, "rope": attention.rope.size}
        return {
            name: NamedShape(
                shape=(batch, length, size), dims=("batch", "cache_time", name)
            )
            for name, size in sizes.items()
        }
    kept = min(length, attention.window or length)
    shape = (batch, attention.num_kv_heads, kept, attention.head_dim)
    return {
        name: NamedShape(shape=shape, dims=("batch", "kv_heads", "cache_time", last))
        for name, last in (("key", "head"), ("value", "value_head"))
    }


def write(
    cache: jax.Array,
    new: jax.Array,
    index: jax.Array | None,
    start: jax.Array | int,
    *,
    wraps: bool = False,
) -> jax.Array:
    """Puts `new` [b, .., s, k] at position `start`, in place where donated.

    Args:
      cache: [b, .., t, k], or [layers, b, .., t, k].
      index: [] the layer's place in a stacked cache; None for its own.
      wraps: position p lies at p modulo t. More than t new positions start at 0, and
        the last t of them are kept.
    """
    size, count, time = cache.shape[-2], new.shape[-2], new.ndim - 2
    new = new.astype(cache.dtype)
    if wraps and count > size:
        # Slot i holds the last position that is i modulo `size`. Looked up, not
        # sliced: slices would forbid sharding the new positions.
        slots = jnp.arange(size, dtype=jnp.int32)
        places = count - size + lax.rem(slots + (size - count % size), size)
        new, start = jnp.take(new, places, axis=time, mode="clip"), 0
    elif wraps:
        start = lax.rem(start, size)
    origin: list[Any] = [0] * new.ndim
    origin[time] = start
    if index is not None:
        new, origin = lax.expand_dims(new, (0,)), [index, *origin]
    return lax.dynamic_update_slice(cache, new, origin, allow_negative_indices=False)


def read(cache: jax.Array, index: jax.Array | None) -> jax.Array:
    """The layer's own [b, .., t, k]."""
    if index is None:
        return cache
    return lax.dynamic_index_in_dim(
        cache, index, axis=0, keepdims=False, allow_negative_indices=False
    )
