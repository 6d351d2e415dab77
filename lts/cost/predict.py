"""What the compiler should make of a plan: collectives, one row each, and scratch.

Collectives are the counterpart of `lts.hlo.list_collectives`: kind, axes, bytes of the
local result, and how often. Where a partitioner has to make a reduce-scatter itself,
XLA's CPU pipeline keeps an all-reduce and a slice, and is predicted to.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lts.cost import experts
from lts.cost.memory import lying
from lts.cost.reshards import GROWTH
from lts.cost.sharding import reduced_axes, shard
from lts.cost.tables import edge_states
from lts.graph import EXPERTS, Node, OpGraph
from lts.hops import Hop, entries_of
from lts.layout import array_hops, scatters_sums
from lts.mesh import Degrees, MeshAxis
from lts.scattered import PRODUCTS

SCATTERING = frozenset({EXPERTS, *PRODUCTS})
"""Ops whose applied form scatters its sums, on every target."""


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """One predicted collective: `nbytes` is its result on one device."""

    kind: str
    axes: tuple[str, ...]
    nbytes: int
    count: int
    reason: str


def predicted_collectives(
    graph: OpGraph,
    states: Sequence[np.ndarray],
    axes: Sequence[MeshAxis],
    *,
    scatters: bool,
) -> list[Predicted]:
    """Collectives of a graph under an assignment.

    Args:
      graph: traced at the shapes that are compiled.
      states: per node, `[axes]`.
      scatters: whether the target makes reduce-scatters.
    """
    sizes = np.array([axis.size for axis in axes])
    names = [axis.name for axis in axes]
    rows: list[Predicted] = []
    seen: set[tuple] = set()
    read = {edge.source for edge in graph.edges}
    for edge in graph.edges:
        end = graph.nodes[edge.target]
        if not (end.is_op or end.index in read or end.leaves or end.kernels):
            continue  # nothing reads this result: compilers drop it
        source = edge_states(edge, graph.nodes, states[edge.source], True)
        target = edge_states(edge, graph.nodes, states[edge.target], False)
        ends = [graph.nodes[i].name for i in (edge.source, edge.target)]
        primitive = graph.nodes[edge.source].primitive
        shape = [edge.array.shape[dim] for dim in edge.dims]
        own = (scatters or primitive in SCATTERING) and scatters_sums(
            primitive, shape, source, target, axes
        )
        way: tuple = (edge.source, edge.tensor)
        for hop in array_hops(source, target, shape, axes, scatters=own):
            way += hop.kind, *entries_of(hop.states, hop.order, names, len(shape))
            if way in seen:
                continue  # shared with another that goes the same way at first
            seen.add(way)
            over = tuple(itertools.compress(names, hop.axes))
            if hop.kind == "slice" or not over:
                continue
            _, given = _parts(hop, sizes)
            rows.append(
                Predicted(
                    kind=hop.kind,
                    axes=over,
                    nbytes=round(edge.array.nbytes * given),
                    count=edge.trips,
                    reason=" -> ".join(ends),
                )
            )
    for node in graph.values:
        rows += _reductions(node, states[node.index], axes, sizes)
    for node in graph.ops:
        if node.primitive == EXPERTS:
            rows += _exchanges(node, states[node.index], axes)
        rows += [
            Predicted(
                kind=found.kind,
                axes=found.axes,
                nbytes=round(found.result_bytes),
                count=found.trips * node.trips,
                reason=f"in {node.name}",
            )
            for found in node.exchanges
        ]
    return rows


def predicted_scratch_bytes(
    graph: OpGraph, states: Sequence[np.ndarray], degrees: Degrees
) -> float:
    """Most bytes that lie in memory at once under XLA, beside arguments and results.

    Args:
      graph: traced at the shapes that are compiled.
      states: per node, `[axes]`.
    """
    axes = degrees.axes
    found = lying(graph, 1, engine=False)
    once = np.ones((1, 1), np.int64)
    shardings = [
        shard(node, own[None], (degrees,), once, 1)
        for node, own in zip(graph.nodes, states, strict=True)
    ]
    parts = [shardings[n].shares(factors).item() for n, factors in found.shares]
    for edge in graph.edges:
        ends = (
            edge_states(edge, graph.nodes, states[i], i == edge.source)
            for i in (edge.source, edge.target)
        )
        op, shape = graph.nodes[edge.source], [edge.array.shape[d] for d in edge.dims]
        source, target = ends
        own = op.primitive in SCATTERING and scatters_sums(
            op.primitive, shape, source, target, axes
        )
        hops = array_hops(source, target, shape, axes, scatters=own)
        sizes = np.array([axis.size for axis in axes])
        taken_given = [_parts(hop, sizes) for hop in hops if hop.axes.any()]
        parts.append(max((pair[not op.is_op] for pair in taken_given), default=0.0))
    buffers = [
        0.0 if n < 0 else experts.buffer_bytes(graph.nodes[n], shardings[n]).item()
        for n in found.experts
    ]
    lies = found.bytes.sum(-1) @ np.array(parts) + buffers
    return float(lies.max(initial=0.0))


def _parts(hop: Hop, sizes: np.ndarray) -> tuple[float, float]:
    """Parts of a whole array that a device gives into a hop, and gets out."""
    taken = 1 / np.where(hop.held, sizes, 1).prod()
    return taken, taken * np.where(hop.axes, sizes, 1).prod() ** GROWTH[hop.kind]


def _exchanges(
    node: Node, states: np.ndarray, axes: Sequence[MeshAxis]
) -> list[Predicted]:
    """What a mixture of experts does itself: rows there and back, number of rounds."""
    on = experts.exchanging(node, states)
    names = tuple(a.name for a, o in zip(axes, on, strict=True) if o and a.size > 1)
    if not names:
        return []
    there, back = experts.exchanged_bytes(node, states, axes)
    found = (("all_to_all", there), ("all_to_all", back), ("all_reduce", 4))
    return [
        Predicted(
            kind=kind, axes=names, nbytes=nbytes, count=node.trips, reason=node.name
        )
        for kind, nbytes in found
    ]


def _reductions(
    node: Node, states: np.ndarray, axes: Sequence[MeshAxis], sizes: np.ndarray
) -> list[Predicted]:
    rows = []
    for reduction in node.reductions:
        taking = reduced_axes(reduction.reduced, states) & (sizes > 1)
        names = tuple(a.name for a, on in zip(axes, taking, strict=True) if on)
        if not names:
            continue
        ways = 1
        for factor in reduction.factors:
            if factor is not None:
                ways *= int(np.where(states == factor + 1, sizes, 1).prod())
        kind = "all_gather" if reduction.gathered else "all_reduce"
        whole = int(np.where(taking, sizes, 1).prod()) if reduction.gathered else 1
        rows += [
            Predicted(
                kind=kind,
                axes=names,
                nbytes=round(array.nbytes * whole / ways),
                count=reduction.trips,
                reason=f"reduction in {node.name}",
            )
            for array in reduction.gathered or (reduction.array,)
        ]
    return rows
