"""Bytes per GPU: weights, KV cache, activations.

Weights and caches are exact for the layouts given. The activation peak is an estimate:
what the widest op reads and writes, beside the residual stream. With pipeline stages,
parameters of the layer stack are split evenly; those outside it (embedding, head) stand
on the first or last stage, so the largest of them counts.
"""

import numpy as np

from lts.cost import experts
from lts.cost.sharding import Sharding
from lts.graph import EXPERTS, Node, NodeKind, OpGraph


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


def activation_bytes(node: Node, graph: OpGraph, sharding: Sharding) -> np.ndarray:
    """Bytes of activations that an op reads and writes at once.

    Returns:
      `[degrees, choices, batches]`.
    """
    total = np.zeros((*sharding.ways.shape[:2], sharding.batches.shape[1]))
    for operand in (*node.operands, *node.results):
        held = operand.value >= 0 and graph.nodes[operand.value].kind in (
            NodeKind.PARAMETER,
            NodeKind.CACHE,
        )
        if operand.streamed and not held:
            total = total + sharding.local_bytes(operand.array, operand.factors)
    if node.primitive == EXPERTS:
        total = total + experts.buffer_bytes(node, sharding)
    return total


def is_looped(node: Node, graph: OpGraph) -> bool:
    """Whether a value is used in a repeated region (the layer stack)."""
    return any(
        edge.trips > 1
        for edge in graph.edges
        if node.index in (edge.source, edge.target)
    )
