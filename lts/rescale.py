"""A traced graph at another batch than it was traced at: sizes, not structure."""

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from lts.graph import Array, Factor, Node, Operand, OpGraph

Dims = Sequence[int | None]


def at_batch(graph: OpGraph, batch: int, traced_batch: int) -> OpGraph:
    """The graph with every size that grows with the batch at `batch`."""
    if batch == traced_batch:
        return graph
    ratio = Fraction(batch, traced_batch)
    edges = tuple(
        replace(edge, array=_scaled(edge.array, ratio, _batched(graph, ends)))
        for edge in graph.edges
        for ends in [
            ((edge.source, edge.source_factors), (edge.target, edge.target_factors))
        ]
    )
    nodes = tuple(_node(node, graph, ratio) for node in graph.nodes)
    return replace(graph, nodes=nodes, edges=edges)


def _node(node: Node, graph: OpGraph, ratio: Fraction) -> Node:
    def array(array: Array, dims: Dims) -> Array:
        return _scaled(array, ratio, _batched(graph, [(node.index, dims)]))

    def operand(operand: Operand) -> Operand:
        return replace(operand, array=array(operand.array, operand.factors))

    return replace(
        node,
        factors=tuple(_factor(factor, ratio) for factor in node.factors),
        operands=tuple(map(operand, node.operands)),
        results=tuple(map(operand, node.results)),
        reductions=tuple(
            replace(own, array=array(own.array, own.factors)) for own in node.reductions
        ),
        array=None if node.array is None else array(node.array, node.array_factors),
    )


def _factor(factor: Factor, ratio: Fraction) -> Factor:
    return replace(factor, size=int(factor.size * ratio)) if factor.batched else factor


def _batched(graph: OpGraph, ends: Sequence[tuple[int, Dims]]) -> list[int]:
    """Dims of an array that grow with the batch, by the factors that lie on them."""
    found = set()
    for node, dims in ends:
        factors = graph.nodes[node].factors
        found |= {
            dim for dim, i in enumerate(dims) if i is not None and factors[i].batched
        }
    return sorted(found)


def _scaled(array: Array, ratio: Fraction, dims: Sequence[int]) -> Array:
    """An array at another batch; its first dim grows where no factor says which."""
    if not array.batch_power:
        return array
    if not dims:
        sizes = enumerate(array.shape)
        dims = [i for i, n in sizes if n % ratio.denominator == 0 and n > 1][:1]
    shape = list(array.shape)
    for dim in dims[:1]:
        shape[dim] = math.floor(shape[dim] * ratio)
    return replace(array, shape=tuple(shape))
