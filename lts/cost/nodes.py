"""Time of a node under every choice: calibrated operators, kernels, collectives."""

import numpy as np

from lts.cost.attended import attention_time_s
from lts.cost.collective import collective_time_s
from lts.cost.experts import expert_time_s
from lts.cost.fused_experts import fused_time_s
from lts.cost.pricing import Pricing
from lts.cost.products import product_time_s
from lts.cost.sharding import Sharding, group_sizes, reduced_axes
from lts.graph import EXPERTS, Node

_PRODUCT = "dot_general"


def node_time_s(node: Node, sharding: Sharding, pricing: Pricing) -> np.ndarray:
    """Seconds of all trips of a node; inf where the batch does not divide.

    Returns:
      `[degrees, choices, batches]`.
    """
    if node.primitive == EXPERTS:
        priced = fused_time_s if pricing.engine is not None else expert_time_s
        time = priced(node, sharding, pricing)
    else:
        time = _op_time_s(node, sharding, pricing) if node.is_op else 0.0
    time = time + _kernel_time_s(node, sharding, pricing)
    time = time + _reduction_time_s(node, sharding, pricing)
    time = time + _exchange_time_s(node, sharding, pricing)
    return np.where(sharding.batch_legal(node.factors), time, np.inf)


def _op_time_s(node: Node, sharding: Sharding, pricing: Pricing) -> np.ndarray:
    """Of an op without a model of its own: a roofline of arithmetic and traffic.

    Source: Williams, Waterman, Patterson (2009), with achieved rates of `Chip`.
    """
    if node.attention is not None:
        time = attention_time_s(node, sharding, pricing) * pricing.factor("attention")
        return time * node.trips
    chip = pricing.chip
    moved = np.zeros((*sharding.ways.shape[:2], sharding.batches.shape[1]))
    for operand in (*node.operands, *node.results):
        if operand.streamed:
            local = sharding.local_bytes(operand.array, operand.factors)
            moved = moved + operand.passes * local
    if node.primitive == _PRODUCT and node.flops and not node.fixed:
        time = product_time_s(node, sharding, pricing) * pricing.factor("gemm")
        # operands wider than the arithmetic are read as they are
        least = np.maximum(moved - chip.l2_bytes, 0.0) / chip.hbm_bandwidth_bytes_per_s
        return np.maximum(time, least) * node.trips
    math_s = np.zeros(())
    if node.flops:
        arrays = [operand.array for operand in (*node.operands, *node.results)]
        power = max(array.batch_power for array in arrays)
        flops = node.flops * sharding.scale(power)[:, None] / sharding.split[..., None]
        math_s = flops / chip.achieved_flops_per_s(node.dtype)
    busy = np.maximum(math_s, moved / chip.achieved_bytes_per_s)
    return (busy + pricing.launch_s) * node.trips


def _kernel_time_s(node: Node, sharding: Sharding, pricing: Pricing) -> np.ndarray:
    bandwidth = pricing.chip.achieved_bytes_per_s
    total = np.zeros(())
    for kernel in node.kernels:
        moved = sum(sharding.local_bytes(*array) for array in kernel.arrays)
        total = total + (moved / bandwidth + pricing.launch_s) * kernel.trips
    return total


def _reduction_time_s(node: Node, sharding: Sharding, pricing: Pricing) -> np.ndarray:
    total = np.zeros(())
    for reduction in node.reductions:
        axes = reduced_axes(reduction.reduced, sharding.states)
        inside, across = group_sizes(axes, sharding)
        kind = "all_gather" if reduction.gathered else "all_reduce"
        group = inside[..., None], across[..., None]
        for array in reduction.gathered or (reduction.array,):
            nbytes = sharding.local_bytes(array, reduction.factors)
            time = collective_time_s(kind, nbytes, *group, pricing)
            total = total + time * reduction.trips
    return total


def _exchange_time_s(node: Node, sharding: Sharding, pricing: Pricing) -> np.ndarray:
    """Collectives that the program asks for, over the axes of its own mesh."""
    total = np.zeros(())
    for found in node.exchanges:
        axes = np.array([name in found.axes for name, *_ in node.fixed])
        inside, across = group_sizes(axes, sharding)
        nbytes = np.asarray(found.operand_bytes)
        time = collective_time_s(found.kind, nbytes, inside, across, pricing)
        total = total + time[..., None] * found.trips * node.trips
    return total
