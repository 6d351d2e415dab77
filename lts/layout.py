"""From states to `PartitionSpec`s: what one node's choice does to its arrays."""

from collections.abc import Sequence

import numpy as np
from jax.sharding import PartitionSpec

from lts.assignment import States
from lts.graph import NONE, Node
from lts.hops import Hop, entries_of, hops
from lts.mesh import MeshAxis

WHOLE = frozenset({"gather", "scatter-add", "scatter-sub"})
"""Ops whose sums are reduced whole, and sliced: XLA cannot partition a gather whose
partial sums scatter onto a dim that is sharded already (it fails after SPMD); updates
at indices sum in a form of their own."""


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


def spec_states(spec: PartitionSpec, axes: Sequence[MeshAxis]) -> np.ndarray:
    """The dim (from 1) that every axis shards, 0 for none; `[axes]`."""
    found = {
        name: dim + 1
        for dim, entry in enumerate(spec)
        for name in ((entry,) if isinstance(entry, str) else entry or ())
    }
    return np.array([found.get(axis.name, 0) for axis in axes], np.int64)


def array_hops(
    source: np.ndarray,
    target: np.ndarray,
    shape: Sequence[int],
    axes: Sequence[MeshAxis],
    *,
    scatters: bool = True,
) -> list[Hop]:
    """`lts.hops.hops` of one array on one mesh; arguments as `waypoints`."""
    sizes = np.array([axis.size for axis in axes])
    return hops(
        source,
        target,
        len(shape),
        sizes > 1,
        scatters=scatters,
        sizes=sizes,
        shape=shape,
    )


def waypoints(
    source: np.ndarray,
    target: np.ndarray,
    shape: Sequence[int],
    axes: Sequence[MeshAxis],
    *,
    scatters: bool = True,
) -> tuple[PartitionSpec, ...]:
    """Specs that lead an array from one layout to another, one collective each.

    Args:
      source, target: states as `lts.hops.hops` has them; `[axes]`.
      shape: of the array.
      scatters: as `lts.hops.hops` has it.

    Returns:
      First the source's own layout, partial sums reduced (and scattered where the
      target wants them: a compiler may then do both at once); last the target's.
    """
    sizes = np.array([axis.size for axis in axes])
    names, rank = [axis.name for axis in axes], len(shape)
    found = array_hops(source, target, shape, axes, scatters=scatters)
    start = np.where((source == rank + 1) | (sizes == 1), 0, source)
    specs = [_spec(start, np.arange(len(axes)), names, rank)]
    for hop in found:
        spec = _spec(hop.states, hop.order, names, rank)
        if hop.kind in ("reduce_scatter", "all_reduce"):
            specs = [spec]
        elif spec != specs[-1]:
            specs.append(spec)
    return tuple(specs)


def _spec(
    states: np.ndarray, order: np.ndarray, names: Sequence[str], rank: int
) -> PartitionSpec:
    entries = [
        along[0] if len(along) == 1 else along or None
        for along in entries_of(states, order, names, rank)
    ]
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


def op_ends(
    factors: Sequence[int | None],
    node: Node,
    numbers: np.ndarray,
    value_factors: Sequence[int | None],
    value_numbers: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """States of an op's result as the op leaves it, and as its value has it; `[axes]`.

    Args:
      factors: per dim, the factor of the op; `numbers` its states.
      value_factors: per dim, the factor of the value; `value_numbers` its states.
    """
    numbers = resolved(numbers, node, factors)
    place = {f + 1: i + 1 for i, f in enumerate(factors) if f is not None}
    place |= {
        i + 1: len(factors) + 1 for i, f in enumerate(node.factors) if f.reduction
    }
    wanted = {f + 1: i + 1 for i, f in enumerate(value_factors) if f is not None}
    source = [place.get(number, 0) for number in numbers.tolist()]
    target = [wanted.get(number, 0) for number in value_numbers.tolist()]
    return np.array(source), np.array(target)


def scatters_sums(
    primitive: str,
    shape: Sequence[int],
    source: np.ndarray,
    target: np.ndarray,
    axes: Sequence[MeshAxis],
) -> bool:
    """Whether partial sums of an op's result end scattered, not reduced whole.

    They do not where a part would be uneven: of 6 elements over two axes of 2, one of
    which leaves the dim afterwards.

    Args:
      shape: of the result.
      source, target: as `op_ends` gives them.
    """
    if primitive in WHOLE:
        return False
    sizes = np.array([axis.size for axis in axes])
    return all(
        shape[dim] % sizes[hop.states == dim + 1].prod() == 0
        for hop in array_hops(source, target, shape, axes)
        if hop.kind == "reduce_scatter"
        for dim in set((hop.states[hop.axes] - 1).tolist())
    )
