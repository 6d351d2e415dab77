"""Time of a node: the larger of arithmetic and memory traffic, plus a launch.

Everything is vectorised over degrees, the node's choices and the batch, and computed on
the host in float64. `Sharding` holds what all prices of one node need.
"""

from dataclasses import dataclass

import numpy as np

from lts.cost.collective import collective_cost
from lts.graph import Array, Factor, Node
from lts.hardware import Chip, Cluster
from lts.mesh import Degrees


@dataclass(frozen=True, eq=False, kw_only=True)
class Sharding:
    """A node under all degrees and choices.

    Attributes:
      states: of the node's own factors; int `[choices, axes]`.
      ways: shards of every factor; int `[degrees, choices, factors]`.
      sizes, inside: axis sizes and link levels; `[degrees, axes]`.
      batches: sequences in one call; int `[degrees, batches]`.
      traced_batch: the batch that the graph's sizes are at.
    """

    states: np.ndarray
    ways: np.ndarray
    sizes: np.ndarray
    inside: np.ndarray
    batches: np.ndarray
    traced_batch: int

    def local_bytes(self, array: Array, factors: tuple[int | None, ...]) -> np.ndarray:
        """Bytes of one device's part; `[degrees, choices, batches]`."""
        ways = np.ones(self.ways.shape[:2])
        for factor in factors:
            if factor is not None:
                ways = ways * self.ways[:, :, factor]
        return array.nbytes * self.scale(array.batch_power)[:, None] / ways[..., None]

    def scale(self, power: int) -> np.ndarray:
        """Batch over traced batch, to a power; `[degrees, batches]`."""
        return (self.batches / self.traced_batch) ** power

    def batch_legal(self, factors: tuple[Factor, ...]) -> np.ndarray:
        """Whether the ways divide the batch; bool `[degrees, choices, batches]`."""
        shape = (*self.ways.shape[:2], self.batches.shape[1])
        legal = np.ones(shape, bool)
        for i, factor in enumerate(factors):
            if factor.batched:
                ways = self.ways[:, :, i, None]
                units = factor.units * self.batches[:, None, :]
                legal &= (units % (self.traced_batch * ways) == 0) | (ways == 1)
        return legal


def shard(
    node: Node,
    states: np.ndarray,
    degrees: tuple[Degrees, ...],
    batches: np.ndarray,
    traced_batch: int,
) -> Sharding:
    """The `Sharding` of a node; `states` int `[choices, axes]` of its own factors."""
    sizes = np.array([[axis.size for axis in d.axes] for d in degrees], np.int64)
    inside = np.array([[axis.inside for axis in d.axes] for d in degrees], bool)
    on = states[None, :, :, None] == 1 + np.arange(len(node.factors))
    ways = np.where(on, sizes[:, None, :, None], 1).prod(2)
    return Sharding(
        states=states,
        ways=ways,
        sizes=sizes,
        inside=inside,
        batches=batches,
        traced_batch=traced_batch,
    )


def node_time_s(node: Node, sharding: Sharding, cluster: Cluster) -> np.ndarray:
    """Seconds of all trips of a node; inf where the batch does not divide.

    Returns:
      `[degrees, choices, batches]`.

    Source: Williams, Waterman, Patterson (2009), with achieved rates of `Chip`.
    """
    time = _op_time_s(node, sharding, cluster) if node.is_op else 0.0
    time = time + _kernel_time_s(node, sharding, cluster)
    time = time + _reduction_time_s(node, sharding, cluster)
    return np.where(sharding.batch_legal(node.factors), time, np.inf)


def _op_time_s(node: Node, sharding: Sharding, cluster: Cluster) -> np.ndarray:
    chip = cluster.chip
    bandwidth = chip.hbm_bandwidth_bytes_per_s * chip.hbm_efficiency
    moved = np.zeros((*sharding.ways.shape[:2], sharding.batches.shape[1]))
    for operand in (*node.operands, *node.results):
        if operand.streamed:
            moved = moved + sharding.local_bytes(operand.array, operand.factors)
    math_s = np.zeros(())
    if node.flops:
        arrays = [operand.array for operand in (*node.operands, *node.results)]
        power = max(array.batch_power for array in arrays)
        ways = sharding.ways.prod(-1)[..., None]
        flops = node.flops * sharding.scale(power)[:, None] / ways
        math_s = flops / (_peak(chip, node.dtype) * chip.matmul_efficiency)
    return (np.maximum(math_s, moved / bandwidth) + chip.op_launch_s) * node.trips


def _peak(chip: Chip, dtype: str) -> float:
    """FLOP/s in a dtype; without matrix units for it, those of the vector unit."""
    known = dict(chip.peak_flops_per_s)
    return chip.peak(dtype if dtype in known else "float32")


def _kernel_time_s(node: Node, sharding: Sharding, cluster: Cluster) -> np.ndarray:
    chip = cluster.chip
    bandwidth = chip.hbm_bandwidth_bytes_per_s * chip.hbm_efficiency
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
        fixed, per_byte = collective_cost("all_reduce", inside, across, cluster)
        nbytes = sharding.local_bytes(reduction.array, reduction.factors)
        time = fixed[..., None] + per_byte[..., None] * nbytes
        total = total + time * reduction.trips
    return total


def reduced_axes(reduced: tuple[int, ...], states: np.ndarray) -> np.ndarray:
    """Axes that shard one of the reduced factors; bool `[choices, axes]`."""
    return np.isin(states, [factor + 1 for factor in reduced])


def group_sizes(axes: np.ndarray, sharding: Sharding) -> tuple[np.ndarray, np.ndarray]:
    """GPUs inside and across nodes that `axes` span; `[degrees, choices]` each."""
    sizes, inside = sharding.sizes[:, None], sharding.inside[:, None]
    return (
        np.where(axes & inside, sizes, 1).prod(-1),
        np.where(axes & ~inside, sizes, 1).prod(-1),
    )
