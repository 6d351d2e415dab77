"""A node under all degrees, choices and batches: the ground of all its prices.

Everything is vectorised over these three, on the host in float64.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lts.graph import Array, Factor, Node, coverage
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

    @property
    def split(self) -> np.ndarray:
        """Devices that share the node's work; int `[degrees, choices]`."""
        return np.where(self.states > 0, self.sizes[:, None], 1).prod(-1)

    def local_bytes(self, array: Array, factors: tuple[int | None, ...]) -> np.ndarray:
        """Bytes of one device's part; `[degrees, choices, batches]`."""
        nbytes = array.nbytes * self.scale(array.batch_power)[:, None]
        return nbytes * self.shares(factors)[..., None]

    def shares(self, factors: Sequence[int | None]) -> np.ndarray:
        """Part of an array that one device has; `[degrees, choices]`."""
        ways = np.ones(self.ways.shape[:2])
        for factor in factors:
            if factor is not None:
                ways = ways * self.ways[:, :, factor]
        return 1 / ways

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
    on = coverage(node.factors)[states][None]
    ways = np.where(on, sizes[:, None, :, None], 1).prod(2)
    return Sharding(
        states=states,
        ways=ways,
        sizes=sizes,
        inside=inside,
        batches=batches,
        traced_batch=traced_batch,
    )


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
