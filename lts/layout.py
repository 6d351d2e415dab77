"""From states to `PartitionSpec`s: what one node's choice does to its arrays."""

from collections.abc import Sequence

import numpy as np
from jax.sharding import PartitionSpec

from lts.assignment import States
from lts.graph import NONE, Node
from lts.mesh import MeshAxis


def state_numbers(node: Node, states: States) -> np.ndarray:
    """States by number: 0 for None, `i + 1` for the node's factor `i`; `[axes]`.

    Raises:
      ValueError: if the node has no factor of that name.
    """
    known = {factor.name: i + 1 for i, factor in enumerate(node.factors)}
    numbers = []
    for name in states:
        if name is not None and name not in known:
            raise ValueError(
                f"{node.name!r} has no factor {name!r} to shard; it has "
                f"{', '.join(known) or 'none'}. Was the plan made for another function?"
            )
        numbers.append(NONE if name is None else known[name])
    return np.array(numbers, np.int64)


def resolved(
    numbers: np.ndarray, node: Node, factors: Sequence[int | None]
) -> np.ndarray:
    """States as one array of an op has them, `[axes]`.

    A state of two factors at once becomes that of the one that the array has a dim of.
    """
    numbers = numbers.copy()
    for i, factor in enumerate(node.factors):
        for part in factor.both or ():
            if part in factors:
                numbers[numbers == i + 1] = part + 1
    return numbers


def spec_of(
    factors: Sequence[int | None], numbers: np.ndarray, axes: Sequence[MeshAxis]
) -> PartitionSpec:
    """Spec of an array.

    Args:
      factors: per dim, the factor of the node that lies on it, or None.
      numbers: states of the node, `[axes]`.
      axes: the mesh, outermost first; several on one dim stay in this order.
    """
    entries: list[str | tuple[str, ...] | None] = []
    for factor in factors:
        names = tuple(
            axis.name
            for axis, state in zip(axes, numbers, strict=True)
            if factor is not None and state == factor + 1 and axis.size > 1
        )
        entries.append(names[0] if len(names) == 1 else names or None)
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


def result_spec(
    factors: Sequence[int | None],
    node: Node,
    numbers: np.ndarray,
    value_factors: Sequence[int | None],
    value_numbers: np.ndarray,
    axes: Sequence[MeshAxis],
) -> PartitionSpec:
    """Spec that an op's result takes first, before any reshard to its value's layout.

    Axes that leave partial sums go where the value wants them, so that the compiler may
    reduce and scatter at once.
    """
    reductions = [i + 1 for i, f in enumerate(node.factors) if f.reduction]
    numbers = resolved(numbers, node, factors)
    merged = np.zeros(len(numbers), np.int64)  # dim + 1 of the array
    place = {f + 1: i + 1 for i, f in enumerate(factors) if f is not None}
    wanted = {f + 1: i + 1 for i, f in enumerate(value_factors) if f is not None}
    for axis, state in enumerate(numbers):
        if state in reductions:
            merged[axis] = wanted.get(int(value_numbers[axis]), 0)
        else:
            merged[axis] = place.get(int(state), 0)
    return spec_of(range(len(factors)), merged, axes)
