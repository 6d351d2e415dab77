"""A mixture of experts as one named op, and the grouped form that computes it.

Every (token, expert) pair is computed, whatever the routing, with static shapes: pairs
are sorted by expert, and each expert takes up to `expert_capacity` of its own in a
round; what is left over takes part in the next round. Even routing needs one round.

`lts.models.dispatch` has the form for experts that are split over devices.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from lts.models.capacity import expert_capacity
from lts.models.quantized import BlockScaled, dequantized

Weight = jax.Array | BlockScaled


@jax.jit
def expert_ffn(
    x: jax.Array,
    weight: jax.Array,
    expert: jax.Array,
    gate: Weight | None,
    up: Weight,
    down: Weight,
) -> jax.Array:
    """Weighted sum of each token's experts: silu(x @ gate) * (x @ up) @ down.

    In a jaxpr it is one `jit` equation of this name. Its operands are the arrays in the
    order of the arguments, values before scales; `arguments` puts them together again.
    The number of rounds depends on the routing, so there is no reverse-mode derivative.

    Args:
      x: `[*tokens, d]`, one token dim or more.
      weight: `[*tokens, k]` of any float type; used in the type of `x`.
      expert: `[*tokens, k]` int32; a number outside `0..e - 1` stands for no expert.
      gate: `[e, d, f]`, or None for the ungated form relu(x @ up) @ down.
      up: `[e, d, f]`.
      down: `[e, f, d]`.

    Returns:
      `[*tokens, d]` in the type of `x`.

    Raises:
      ValueError: if only some of the weights are block-scaled.
    """
    weights = [w for w in (gate, up, down) if w is not None]
    if len({isinstance(w, BlockScaled) for w in weights}) > 1:
        raise ValueError(
            "expert_ffn got plain and block-scaled weights together: give gate, up and "
            "down in the same form"
        )
    top_k, experts = expert.shape[-1], num_experts(up)
    rows = x.reshape(-1, x.shape[-1])
    capacity = int(expert_capacity(len(rows), top_k, experts))
    return grouped_ffn(
        rows,
        weight.reshape(-1, top_k),
        expert.reshape(-1, top_k),
        gate,
        up,
        down,
        capacity=capacity,
    ).reshape(x.shape)


def arguments(
    operands: Sequence[jax.Array],
) -> tuple[jax.Array, jax.Array, jax.Array, Weight | None, Weight, Weight]:
    """The arguments of `expert_ffn` from the operands of its equation.

    Raises:
      ValueError: if there are not 5 (ungated), 6 (gated), 7 (ungated with scales) or 9
        (gated with scales) operands.
    """
    x, weight, expert, *rest = operands
    if len(rest) in (4, 6):
        pairs = zip(rest[::2], rest[1::2], strict=True)
        rest = [BlockScaled(values, scale) for values, scale in pairs]
    if len(operands) not in (5, 6, 7, 9):
        raise ValueError(
            f"expert_ffn has 5, 6, 7 or 9 operands, got {len(operands)}: pass those of "
            f"its own equation, in order"
        )
    gate, up, down = rest if len(rest) == 3 else (None, *rest)
    return x, weight, expert, gate, up, down


def num_experts(up: Weight) -> int:
    """Experts whose weights an array holds."""
    return (up.values if isinstance(up, BlockScaled) else up).shape[0]


class Buckets(NamedTuple):
    """Items sorted by the number of their bucket; some may be in no bucket.

    Attributes:
      order: `[items]` item numbers, bucket after bucket.
      start: `[buckets]` where each bucket starts in `order`.
      count: `[buckets]` items in each.
      rank: `[items]` place of an item in its bucket; anything for one in no bucket.
    """

    order: jax.Array
    start: jax.Array
    count: jax.Array
    rank: jax.Array

    def rounds(self, capacity: int) -> jax.Array:
        """Rounds until all are taken, up to `capacity` of each bucket in a round."""
        return (self.count.max() + (capacity - 1)) // capacity

    def items(self, number: jax.Array, capacity: int) -> tuple[jax.Array, jax.Array]:
        """Items of round `number`, `[buckets, capacity]`, and whether each is one."""
        place = number * capacity + jnp.arange(capacity, dtype=jnp.int32)
        place = lax.expand_dims(place, (0,))
        item = rows_at(self.order, lax.expand_dims(self.start, (1,)) + place)
        return item, place < lax.expand_dims(self.count, (1,))


def buckets(number: jax.Array, num_buckets: int) -> Buckets:
    """Sorts items by bucket.

    Args:
      number: `[items]` int32, the bucket of each; none if outside `0..num_buckets - 1`.
    """
    inside = (number >= 0) & (number < num_buckets)
    number = jnp.where(inside, number, num_buckets)
    items = jnp.arange(number.size, dtype=jnp.int32)
    _, order = lax.sort_key_val(number, items)
    count = jnp.zeros(num_buckets, jnp.int32).at[number].add(1, mode="drop")
    start = jnp.cumsum(count) - count
    place = jnp.zeros_like(items).at[order].set(items, unique_indices=True)
    return Buckets(order, start, count, place - rows_at(start, number))


def grouped_ffn(
    x: jax.Array,
    weight: jax.Array,
    expert: jax.Array,
    gate: Weight | None,
    up: Weight,
    down: Weight,
    *,
    capacity: int,
) -> jax.Array:
    """What `expert_ffn` computes, on one device, for the experts that it holds.

    Args:
      x: `[t, d]`.
      weight, expert: `[t, k]`; numbers outside `0..e - 1` are other devices' experts.
      gate, up, down: as for `expert_ffn`.
      capacity: rows that an expert takes in a round; any number above 0 is right.

    Returns:
      `[t, d]`.
    """
    experts, top_k = num_experts(up), expert.shape[1]
    sorted_pairs = buckets(expert.reshape(-1), experts)
    rank = sorted_pairs.rank.reshape(expert.shape)
    held = (expert >= 0) & (expert < experts)
    row = expert * capacity + rank % capacity

    def one_round(number: jax.Array, total: jax.Array) -> jax.Array:
        pair, _ = sorted_pairs.items(number, capacity)
        # Places that no pair fills hold some other token: what comes out is not read.
        out = _ffn(rows_at(x, pair // top_k), gate, up, down)
        now = held & (rank // capacity == number)
        out = out.reshape(-1, x.shape[1])
        return total + summed_rows(out, jnp.where(now, row, -1), weight)

    rounds = sorted_pairs.rounds(capacity)
    return lax.fori_loop(0, rounds, one_round, jnp.zeros_like(x))


def summed_rows(
    rows: jax.Array, place: jax.Array, weight: jax.Array | None = None
) -> jax.Array:
    """Sum of up to k rows for each token, each times its weight, in float32.

    Slot by slot, so that no array of `[t, k, d]` is made.

    Args:
      rows: `[r, d]`.
      place: `[t, k]`, a row's number, or -1 for no row.
      weight: `[t, k]`; None for ones.

    Returns:
      `[t, d]` in the type of `rows`.
    """
    total = jnp.zeros((len(place), rows.shape[1]), jnp.float32)
    for slot in range(place.shape[1]):
        own = place[:, slot]
        row = rows_at(rows, own).astype(jnp.float32)
        if weight is not None:
            share = weight[:, slot].astype(rows.dtype).astype(jnp.float32)
            row *= lax.expand_dims(share, (1,))
        total += jnp.where(lax.expand_dims(own >= 0, (1,)), row, 0.0)
    return total.astype(rows.dtype)


def _ffn(x: jax.Array, gate: Weight | None, up: Weight, down: Weight) -> jax.Array:
    """Each expert on its own rows: `[e, c, d]` to `[e, c, d]`."""
    wide = jnp.einsum("ecd,edf->ecf", x, dequantized(up, x.dtype))
    if gate is None:
        wide = jax.nn.relu(wide)
    else:
        gated = jnp.einsum("ecd,edf->ecf", x, dequantized(gate, x.dtype))
        wide = jax.nn.silu(gated) * wide
    return jnp.einsum("ecf,efd->ecd", wide, dequantized(down, x.dtype))


def rows_at(array: jax.Array, number: jax.Array) -> jax.Array:
    """`array[number]`; numbers that pass an end take the row there."""
    return jnp.take(array, number, axis=0, mode="clip")
