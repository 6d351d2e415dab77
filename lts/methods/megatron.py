"""Megatron's static rule: the layout that an engineer would choose by hand.

Tensor parallelism over the node (all GPUs if fewer), the least pipeline stages whose
weights leave 20% of the memory for the KV cache (nodes first), data parallelism for
the rest; experts are spread over that rest, and split by tensor inside the node. In a
group of ops the tensor axes shard the index that the group's ops share (heads,
feed-forward, vocabulary): first products by columns, second by rows. A plain function
names neither weights nor batch: any argument counts as a weight, and axes across nodes
shard nothing. Of a pool, whose instances have several sizes, every size has its layout.

Source: Megatron-LM, arXiv 1909.08053, section 3, and arXiv 2104.04473, section 5.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from lts.cost.breakdown import memory_parts
from lts.cost.tables import CostTables
from lts.degrees import tensor_labels, with_roles
from lts.evaluate.base import Scores
from lts.evaluate.tables import TableEvaluator
from lts.space import Space

KV_SHARE = 0.2


@dataclass(frozen=True, eq=False, kw_only=True)
class Megatron:
    """One candidate per size, asked for once; its state is whether they were."""

    picks: np.ndarray  # [genes, sizes]
    name: str = "megatron"

    @property
    def batch(self) -> int:
        """All candidates."""
        return self.picks.shape[1]

    def init(self, key: jax.Array) -> bool:
        """Nothing is random."""
        return False

    def ask(self, state: bool) -> tuple[jax.Array, bool]:
        """The candidates, then none."""
        return jnp.asarray(self.picks[:, :0] if state else self.picks), True

    def tell(self, state: bool, picks: jax.Array, scores: Scores) -> bool:
        """Nothing is learnt."""
        return state


def megatron(evaluator: TableEvaluator, budget: int) -> Megatron:
    """The static rule for the evaluator's space.

    Raises:
      ValueError: if no group of ops reads anything that the rule could shard.
    """
    sizes = sorted({degrees.num_gpus for degrees in evaluator.space.degrees})
    found = [megatron_picks(evaluator.tables, size) for size in sizes]
    return Megatron(picks=np.stack(found, axis=1))


def megatron_picks(tables: CostTables, num_gpus: int | None = None) -> np.ndarray:
    """The candidate of the static rule; host int32 `[genes]`.

    Args:
      num_gpus: of an instance; None where all degrees have equally many.
    """
    space = tables.space
    num_gpus = num_gpus or space.degrees[0].num_gpus
    if not any(tensor_labels(space, group) for group in range(len(space.groups))):
        raise ValueError(
            "the Megatron rule shards what operations and their weights share, and "
            "no operation of this program has such an index; choose another method"
        )
    found = [_candidate(space, number) for number in _by_preference(tables, num_gpus)]
    limit = (1 - KV_SHARE) * tables.cluster.usable_bytes
    for picks in found:
        if _held_bytes(tables, picks) <= limit:
            return picks
    return found[-1]


def _by_preference(tables: CostTables, num_gpus: int) -> list[int]:
    """Degrees with the whole node inside a stage, fewest stages first.

    If no degrees are so (a given mesh), all of them.
    """
    space, node = tables.space, min(tables.cluster.gpus_per_node, num_gpus)
    inside = [
        int(np.prod([axis.size for axis in d.axes if axis.inside] or [1]))
        for d in space.degrees
    ]
    own = [i for i, d in enumerate(space.degrees) if d.num_gpus == num_gpus]
    whole = [d for d in own if inside[d] == node]
    order = whole or own
    return sorted(order, key=lambda d: (space.degrees[d].stages, -inside[d], d))


def _candidate(space: Space, number: int) -> np.ndarray:
    axes = space.degrees[number].axes
    uses = ["tp" if axis.inside else "dp" for axis in axes]
    experts = ["tp" if axis.inside else "ep" for axis in axes]
    return with_roles(space, number, uses, experts)


def _held_bytes(tables: CostTables, picks: np.ndarray) -> float:
    """Weights on one GPU, bytes; of a plain function all that it holds."""
    parts = memory_parts(tables, picks)
    return parts["weights"] + (0.0 if tables.cache_bytes else parts["arguments"])
