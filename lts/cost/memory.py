"""Bytes per GPU: weights, KV cache, activations.

Weights and caches are exact for the layouts given. The activation peak is the most that
lies in memory at any moment of the program (`lts.tracing.lifetimes`). With pipeline
stages, parameters of the layer stack are split evenly; those outside it (embedding,
head) stand on the first or last stage, so the largest of them counts.
"""

from dataclasses import dataclass

import numpy as np

from lts.cost import experts
from lts.cost.sharding import Sharding
from lts.graph import EXPERTS, Array, Node, NodeKind, OpGraph


def leaf_bytes(node: Node, sharding: Sharding) -> np.ndarray:
    """Bytes of the arguments that a value holds; `[degrees, choices, batches]`."""
    total = np.zeros((*sharding.ways.shape[:2], sharding.batches.shape[1]))
    for leaf in node.leaves:
        if not leaf.is_output:
            total = total + sharding.local_bytes(leaf.array, leaf.factors)
    return total


def output_bytes(node: Node, sharding: Sharding) -> np.ndarray:
    """Bytes of results, but of donated state; `[degrees, choices, batches]`."""
    total = np.zeros((*sharding.ways.shape[:2], sharding.batches.shape[1]))
    if node.kind is NodeKind.CACHE:
        return total
    for leaf in (leaf for leaf in node.leaves if leaf.is_output):
        total = total + sharding.local_bytes(leaf.array, leaf.factors)
    return total


def expert_bytes(node: Node, sharding: Sharding) -> np.ndarray | None:
    """Buffers of a mixture of experts, `[degrees, choices, batches]`; else None."""
    return experts.buffer_bytes(node, sharding) if node.primitive == EXPERTS else None


@dataclass(frozen=True, eq=False, kw_only=True)
class Lying:
    """What lies in memory at every moment: bytes of whole arrays, by their layouts.

    On one device, each counts by its share: of arrays that a value holds
    `Sharding.shares` of their factors, of those of edges `Reshards.taken` where an op
    gives them, else `given`.

    Attributes:
      shares: the (node, factors) that arrays have, one column of `bytes` each.
      bytes: float `[moments, shares + edges, 2]`: fixed, and per sequence.
      from_op: per edge, whether an op gives its array.
      experts: per moment, the mixture of experts that runs then, or -1.
    """

    shares: tuple[tuple[int, tuple[int, ...]], ...]
    bytes: np.ndarray
    from_op: np.ndarray
    experts: np.ndarray


def lying(graph: OpGraph, traced_batch: int, *, engine: bool) -> Lying:
    """What lies in memory at every moment of a graph.

    Args:
      engine: whether an engine serves it: its kernels keep the scores of attention in
        registers, and read slices of stacked arrays where they lie; results lie beside
        what is computed. Else XLA runs it, and results are counted with arguments.
    """
    columns: dict[tuple[int, tuple[int, ...]], int] = {}
    kept = [
        not (held.is_copy or held.is_score) if engine else not held.is_result
        for held in graph.held
    ]
    scores = {held.node for held in graph.held if held.is_score}
    for held, own in zip(graph.held, kept, strict=True):
        if own:
            columns.setdefault((held.node, _sharded(held.factors)), len(columns))
    found = np.zeros((len(graph.moments), len(columns) + len(graph.edges), 2))
    for number, moment in enumerate(graph.moments):
        for i in moment.held:
            held = graph.held[i]
            if kept[i]:
                column = columns[held.node, _sharded(held.factors)]
                found[number, column] += _both(held.array, traced_batch)
        for i in moment.moved:
            edge = graph.edges[i]
            if not (engine and scores & {edge.source, edge.target}):
                found[number, len(columns) + i] += _both(edge.array, traced_batch)
    return Lying(
        shares=tuple(columns),
        bytes=found,
        from_op=np.array([graph.nodes[e.source].is_op for e in graph.edges], bool),
        experts=np.array(
            [-1 if m.experts is None else m.experts for m in graph.moments], np.int64
        ),
    )


def _sharded(factors: tuple[int | None, ...]) -> tuple[int, ...]:
    return tuple(sorted(factor for factor in factors if factor is not None))


def _both(array: Array, traced_batch: int) -> tuple[float, float]:
    """Bytes that the batch does not change, and bytes per sequence."""
    nbytes = array.nbytes
    return (0.0, nbytes / traced_batch) if array.batch_power else (nbytes, 0.0)


def is_looped(node: Node, graph: OpGraph) -> bool:
    """Whether a value is used in a repeated region (the layer stack)."""
    return any(
        edge.trips > 1
        for edge in graph.edges
        if node.index in (edge.source, edge.target)
    )
