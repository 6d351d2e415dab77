"""Time of a node: the larger of arithmetic and memory traffic, plus a launch."""

import numpy as np

from lts.cost import experts
from lts.cost.collective import collective_time_s
from lts.cost.sharding import Sharding, group_sizes, reduced_axes
from lts.graph import EXPERTS, Node
from lts.hardware import Cluster


def node_time_s(
    node: Node, sharding: Sharding, cluster: Cluster, skew: float = 1.0
) -> np.ndarray:
    """Seconds of all trips of a node; inf where the batch does not divide.

    Args:
      skew: of a mixture of experts, tokens of the busiest device over the mean.

    Returns:
      `[degrees, choices, batches]`.

    Source: Williams, Waterman, Patterson (2009), with achieved rates of `Chip`.
    """
    if node.primitive == EXPERTS:
        time = experts.expert_time_s(node, sharding, cluster, skew)
    else:
        time = _op_time_s(node, sharding, cluster) if node.is_op else 0.0
    time = time + _kernel_time_s(node, sharding, cluster)
    time = time + _reduction_time_s(node, sharding, cluster)
    time = time + _exchange_time_s(node, sharding, cluster)
    return np.where(sharding.batch_legal(node.factors), time, np.inf)


def _op_time_s(node: Node, sharding: Sharding, cluster: Cluster) -> np.ndarray:
    chip = cluster.chip
    bandwidth = chip.achieved_bytes_per_s
    moved = np.zeros((*sharding.ways.shape[:2], sharding.batches.shape[1]))
    for operand in (*node.operands, *node.results):
        if operand.streamed:
            local = sharding.local_bytes(operand.array, operand.factors)
            moved = moved + operand.passes * local
    math_s = np.zeros(())
    if node.flops:
        arrays = [operand.array for operand in (*node.operands, *node.results)]
        power = max(array.batch_power for array in arrays)
        flops = node.flops * sharding.scale(power)[:, None] / sharding.split[..., None]
        math_s = flops / chip.achieved_flops_per_s(node.dtype)
    return (np.maximum(math_s, moved / bandwidth) + chip.op_launch_s) * node.trips


def _kernel_time_s(node: Node, sharding: Sharding, cluster: Cluster) -> np.ndarray:
    chip = cluster.chip
    bandwidth = chip.achieved_bytes_per_s
    total = np.zeros(())
    for kernel in node.kernels:
        moved = sum(sharding.local_bytes(*array) for array in kernel.arrays)
        total = total + (moved / bandwidth + chip.op_launch_s) * kernel.trips
    return total


def _reduction_time_s(node: Node, sharding: Sharding, cluster: Cluster) -> np.ndarray:
    total = np.zeros(())
    for reduction in node.reductions:
        axes = reduced_axes(reduction.reduced, sharding.states)
        inside, across = group_sizes(axes, sharding)
        kind = "all_gather" if reduction.gathered else "all_reduce"
        group = inside[..., None], across[..., None]
        for array in reduction.gathered or (reduction.array,):
            nbytes = sharding.local_bytes(array, reduction.factors)
            time = collective_time_s(kind, nbytes, *group, cluster)
            total = total + time * reduction.trips
    return total


def _exchange_time_s(node: Node, sharding: Sharding, cluster: Cluster) -> np.ndarray:
    """Collectives that the program asks for, over the axes of its own mesh."""
    total = np.zeros(())
    for found in node.exchanges:
        axes = np.array([name in found.axes for name, *_ in node.fixed])
        inside, across = group_sizes(axes, sharding)
        nbytes = np.asarray(found.operand_bytes)
        time = collective_time_s(found.kind, nbytes, inside, across, cluster)
        total = total + time[..., None] * found.trips * node.trips
    return total
