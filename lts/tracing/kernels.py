"""Elementwise work of values: which follow equations run as one fused loop.

Compilers fuse chains of elementwise operations, so only what a chain reads from outside
and what others read from it travels through memory.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

from lts.graph import Array, Kernel
from lts.tracing.build import Draft
from lts.tracing.flatten import Equation, Tensor
from lts.tracing.follow import FOLLOW, is_reduction
from lts.tracing.groups import UnionFind

SILENT = frozenset(
    """convert_element_type copy copy_p layout_constraint name sharding_constraint
    stop_gradient""".split()
)
"""Elementwise primitives that always melt into a neighbouring kernel."""


class Places(Protocol):
    """Where tensors stand in the graph."""

    def node_of(self, tensor: Tensor) -> int | None:
        """Index of the value that a tensor belongs to, or None."""
        ...

    def factors_of(self, tensor: Tensor) -> tuple[int | None, ...]:
        """Per dim of a tensor, the factor of its value, or None."""
        ...

    def array(self, tensor: Tensor) -> Array:
        """The extent of a tensor."""
        ...

    def loaded_from(self, tensor: Tensor) -> Tensor | None:
        """The weight or cache that elementwise work alone makes a tensor of."""
        ...


def find_kernels(draft: Draft, places: Places) -> dict[int, list[Kernel]]:
    """Kernels by value: connected follow equations of one region, and cache updates."""
    found: dict[int, list[Kernel]] = defaultdict(list)
    for equations, tensors in _fused(draft):
        placed = [(t, n) for t in tensors if (n := places.node_of(t)) is not None]
        if placed and any(_computes(eq) for eq in equations):
            node, main = _main_value(placed)
            largest = max(main, key=lambda t: (math.prod(t.shape), t.index))
            if places.loaded_from(largest) is not None:
                continue  # a weight, scaled as the op that reads it loads it
            found[node].append(_kernel(main, equations[0].trips, places))
    for eq in draft.updates:
        update, out = eq.ins[1], eq.outs[0]
        node = places.node_of(out)
        if node is not None:  # the update is read and written in the layout found there
            dims = zip(update.shape, out.shape, places.factors_of(out), strict=True)
            on_dims = tuple(factor if n == m else None for n, m, factor in dims)
            arrays = ((places.array(update), on_dims),) * 2
            found[node].append(Kernel(arrays=arrays, trips=eq.trips, in_place=True))
    return found


def _fused(draft: Draft) -> list[tuple[list[Equation], list[Tensor]]]:
    """Follow equations that run together, with the arrays they read and write."""
    follows = [eq for eq in draft.follows if eq.primitive != "link"]
    owner = {out.index: i for i, eq in enumerate(follows) for out in eq.outs}
    parts = UnionFind()
    for i, eq in enumerate(follows):
        for tensor in eq.ins:
            writer = owner.get(tensor.index)
            # A loop reads what was computed outside it again on every trip.
            if writer is not None and follows[writer].trips == eq.trips:
                parts.union(i, writer)
    inside = {id(eq) for eq in follows}
    exposed = {tensor.index for tensor in draft.program.results}
    for eq in draft.program.equations:
        if id(eq) not in inside:
            exposed.update(tensor.index for tensor in eq.ins)

    def is_outside(tensor: Tensor, reader: int) -> bool:
        writer = owner.get(tensor.index)
        return writer is None or parts.find(writer) != parts.find(reader)

    by_part: dict[int, list[Equation]] = defaultdict(list)
    arrays: dict[int, dict[int, Tensor]] = defaultdict(dict)
    for i, eq in enumerate(follows):
        part = parts.find(i)
        by_part[part].append(eq)
        for tensor in eq.ins:
            if is_outside(tensor, i):
                arrays[part][tensor.index] = tensor
                exposed.add(tensor.index)
    for part, equations in by_part.items():
        for eq in equations:
            for tensor in eq.outs:
                if tensor.index in exposed:
                    arrays[part][tensor.index] = tensor
    return [(by_part[part], list(arrays[part].values())) for part in by_part]


def _main_value(placed: Sequence[tuple[Tensor, int]]) -> tuple[int, list[Tensor]]:
    """The value with most bytes of a kernel; small arrays of others are dropped."""
    nbytes: dict[int, float] = defaultdict(float)
    for tensor, node in placed:
        nbytes[node] += tensor.itemsize * math.prod(tensor.shape)
    main = max(nbytes, key=lambda node: (nbytes[node], -node))
    return main, [tensor for tensor, node in placed if node == main]


def _kernel(tensors: Sequence[Tensor], trips: int, places: Places) -> Kernel:
    return Kernel(
        arrays=tuple((places.array(t), places.factors_of(t)) for t in tensors),
        trips=trips,
    )


def _computes(eq: Equation) -> bool:
    if eq.primitive in SILENT:
        return False
    return is_reduction(eq.primitive) or FOLLOW[eq.primitive](eq).computes
