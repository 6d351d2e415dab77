"""The way from one layout of an array to another, as hops of one collective each.

A *state* says what a mesh axis does to an array: 0 nothing, `i + 1` shards dim `i`,
`rank + 1` leaves partial sums. Axes on one dim stand in mesh order, outermost first. On
the way, axis by axis:

| from | to | hop |
|---|---|---|
| partial | dim | reduce_scatter |
| partial | nothing | all_reduce |
| nothing | dim | a local slice |
| dim | another dim | all_to_all |
| dim | nothing | all_gather |

Reductions come first, then slices and then gathers, so that little travels. What would
leave uneven parts on the way waits until its dim has room. What is new on a dim lies
innermost, and only what lies innermost can leave: where the order is another one, a
collective_permute brings shards into place, before or after. A compiler that is led
along these hops does exactly them; left alone with both ends it falls back to
replicating the array, or permutes more.
"""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

KINDS = (
    "reduce_scatter",
    "all_reduce",
    "collective_permute",
    "all_to_all",
    "all_gather",
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Hop:
    """One hop, vectorised over leading dims; a slice has no kind.

    Attributes:
      kind: one of `KINDS`, or "slice".
      axes: which mesh axes take part; bool `[..., axes]`.
      held: axes that shard the local operand; bool `[..., axes]`.
      states, order: the layout afterwards: state of every axis, and its place among the
        axes of its dim (lower is further out); int `[..., axes]`.
    """

    kind: str
    axes: np.ndarray
    held: np.ndarray
    states: np.ndarray
    order: np.ndarray


class _Way:
    """The layout while hops are taken."""

    def __init__(
        self,
        source: np.ndarray,
        target: np.ndarray,
        rank: int,
        present: np.ndarray,
        sizes: np.ndarray | None,
        shape: Sequence[int] | None,
    ) -> None:
        source, target = np.broadcast_arrays(source, target)
        self.target = np.where(present, target, 0)
        start = np.where(present, source, 0)
        self.partial = start == rank + 1
        self.states = np.where(self.partial, 0, start)
        self.number = np.arange(start.shape[-1])
        self.order = np.broadcast_to(self.number, start.shape).copy()
        self.sizes, self.shape = sizes, shape
        self.hops: list[Hop] = []

    def take(self, kind: str, axes: np.ndarray, states: np.ndarray, order) -> None:
        """Go to a layout; nothing is recorded where no axis takes part anywhere."""
        held = self.states > 0
        self.states, self.order = states, order
        if axes.any():
            self.hops.append(
                Hop(kind=kind, axes=axes, held=held, states=states, order=order)
            )

    def added(self, kind: str, axes: np.ndarray) -> None:
        """Axes that come to lie innermost on the dims they are wanted on."""
        states = np.where(axes, self.target, self.states)
        last = self.order.max() + 1 if self.order.size else 0
        self.take(kind, axes, states, np.where(axes, last + self.number, self.order))

    def even(self, coming: np.ndarray, dim: int) -> np.ndarray:
        """Axes of those coming to a dim that leave parts of one size; `[..., axes]`."""
        if self.sizes is None or self.shape is None:
            return coming
        on = coming | (self.states == dim)
        ways = np.where(on, self.sizes, 1).prod(-1, keepdims=True)
        return coming & (self.shape[dim - 1] % ways == 0)

    def covered(self, leaving: np.ndarray) -> np.ndarray:
        """Whether an axis that stays lies inside one that leaves its dim; `[...]`."""
        pairs = self._pairs(
            leaving[..., :, None]
            & ~leaving[..., None, :]
            & (self.order[..., :, None] < self.order[..., None, :])
        )
        return np.any(pairs, axis=(-1, -2))

    def _pairs(self, found: np.ndarray) -> np.ndarray:
        """Pairs of axes that are on one dim, of those found."""
        same = self.states[..., :, None] == self.states[..., None, :]
        return found & same & (self.states > 0)[..., :, None]

    def sort(self, where: np.ndarray, leaving: np.ndarray) -> None:
        """Permute: what stays in mesh order, what leaves later, what leaves now."""
        size = len(self.number)
        later = (self.states > 0) & (self.states != self.target) & ~leaving
        wanted = self.number + size * later + 2 * size * leaving
        wanted = np.where(where[..., None], wanted, self.order)
        changed = self._inside(self.order) != self._inside(wanted)
        self.take("collective_permute", changed, self.states, wanted)

    def _inside(self, order: np.ndarray) -> np.ndarray:
        """Devices on the axes inside each axis of its dim, in an order; `[..., axes]`.

        Where they stay as many, the axis' part of a shard's number does, and no shard
        travels over it. Without sizes, which axes lie inside: the same but for an axis
        in the middle of two that trade places.
        """
        inside = self._pairs(order[..., :, None] < order[..., None, :])
        if self.sizes is None:
            return (inside << self.number).sum(-1)
        return np.where(inside, self.sizes, 1).prod(-1)


def hops(
    source: np.ndarray,
    target: np.ndarray,
    rank: int,
    present: np.ndarray,
    *,
    scatters: bool = True,
    sizes: np.ndarray | None = None,
    shape: Sequence[int] | None = None,
) -> list[Hop]:
    """Hops from one layout to another.

    Args:
      source, target: states, int `[..., axes]`, broadcast against each other.
      rank: dims of the array; a source state of `rank + 1` is a partial sum.
      present: axes of more than one device; bool `[axes]`.
      scatters: False to reduce partial sums whole, and slice afterwards.
      sizes: of the axes, `[axes]`; tells which of them a permute goes over. Without it
        a permute may name an axis too many.
      shape: of the array; with `sizes`, no parts on the way are uneven.
    """
    way = _Way(source, target, rank, present, sizes, shape)
    wanted = way.partial & (way.target > 0) & scatters
    for dim in range(rank):
        way.added("reduce_scatter", wanted & (way.target == dim + 1))
    way.take("all_reduce", way.partial & ~wanted, way.states, way.order)
    slices = (way.states == 0) & (way.target > 0)
    dims = range(1, rank + 1)
    early = [way.even(slices & (way.target == dim), dim) for dim in dims]
    way.added("slice", np.any(early, axis=0) if early else slices)
    for here, there in itertools.permutations(range(1, rank + 1), 2):
        this = way.even((way.states == here) & (way.target == there), there)
        way.sort(this.any(-1) & way.covered(this), this)
        way.added("all_to_all", this)
    for dim in dims:
        this = (way.states == dim) & (way.target != dim)
        way.sort(this.any(-1) & way.covered(this), this)
        way.take("all_gather", this, np.where(this, 0, way.states), way.order)
    way.added("slice", (way.states == 0) & (way.target > 0))
    way.sort(np.ones(way.states.shape[:-1], bool), way.states < 0)
    return way.hops


@dataclass(frozen=True, eq=False, kw_only=True)
class CodedHop:
    """One hop of many ways at once; sets of axes are bits, axis 0 the lowest.

    Attributes:
      kind: as in `Hop`.
      where: ways that have it, in the flat array `[source codes, target codes]`.
      axes, held: as in `Hop`, of these ways; uint8.
    """

    kind: str
    where: np.ndarray
    axes: np.ndarray
    held: np.ndarray


@functools.lru_cache(maxsize=64)
def coded_hops(rank: int, present: tuple[bool, ...]) -> tuple[CodedHop, ...]:
    """The hops between all layouts, coded with axis 0 as the lowest digit.

    There are `(rank + 2)^axes` sources, partial sums among them, and `(rank + 1)^axes`
    targets.
    """
    axes = len(present)
    found = hops(
        every_state(rank + 2, axes)[:, None],
        every_state(rank + 1, axes)[None],
        rank,
        np.array(present),
    )
    bits, coded = 1 << np.arange(axes), []
    for hop in found:
        taking = (hop.axes * bits).sum(-1).astype(np.uint8).ravel()
        held = (hop.held * bits).sum(-1).astype(np.uint8).ravel()
        where = np.flatnonzero(taking)
        coded.append(
            CodedHop(kind=hop.kind, where=where, axes=taking[where], held=held[where])
        )
    return tuple(coded)


def every_state(base: int, axes: int) -> np.ndarray:
    """All states of some axes, axis 0 as the lowest digit; int `[base^axes, axes]`."""
    return np.arange(base**axes)[:, None] // base ** np.arange(axes) % base


def entries_of(
    states: np.ndarray, order: np.ndarray, names: Sequence[str], rank: int
) -> list[tuple[str, ...]]:
    """Axis names on every dim, outermost first, of one layout (`[axes]` each)."""
    numbers = sorted(range(len(names)), key=lambda i: int(order[i]))
    return [
        tuple(names[i] for i in numbers if states[i] == dim + 1) for dim in range(rank)
    ]
