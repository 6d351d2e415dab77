"""Megatron's static rule: the layout that an engineer would choose by hand.

Tensor parallelism over the node (all GPUs if fewer), the least pipeline stages whose
weights leave 20% of the memory for the KV cache (nodes first), data parallelism for
the rest. Inside a group of ops the tensor axes shard the index that the group's ops
share (heads, feed-forward, vocabulary): first products by columns, second by rows. A
plain function names neither weights nor batch: any argument counts as a weight, and
axes across nodes shard nothing.

Source: Megatron-LM, arXiv 1909.08053, section 3, and arXiv 2104.04473, section 5.
"""

from collections import Counter
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from lts.cost.tables import CostTables
from lts.evaluate.base import Scores
from lts.evaluate.tables import TableEvaluator
from lts.graph import NodeKind
from lts.space import Space

KV_SHARE = 0.2


@dataclass(frozen=True, eq=False, kw_only=True)
class Megatron:
    """One candidate, asked once; its state is whether it was."""

    picks: np.ndarray
    batch: int = 1
    name: str = "megatron"

    def init(self, key: jax.Array) -> bool:
        """Nothing is random."""
        return False

    def ask(self, state: bool) -> tuple[jax.Array, bool]:
        """The candidate, then nothing."""
        count = 0 if state else 1
        return jnp.asarray(self.picks[:, None][:, :count]), True

    def tell(self, state: bool, picks: jax.Array, scores: Scores) -> bool:
        """Nothing is learnt."""
        return state


def megatron(evaluator: TableEvaluator, budget: int) -> Megatron:
    """The static rule for the evaluator's space.

    Raises:
      ValueError: if no group of ops reads anything that the rule could shard.
    """
    return Megatron(picks=megatron_picks(evaluator.tables))


def megatron_picks(tables: CostTables) -> np.ndarray:
    """The candidate of the static rule; host int32 `[genes]`."""
    space = tables.space
    labels = [tensor_labels(space, group) for group in range(len(space.groups))]
    if not any(labels):
        raise ValueError(
            "the Megatron rule shards what operations and their weights share, and "
            "no operation of this program has such an index; choose another method"
        )
    found = [_candidate(tables, d, labels) for d in _by_preference(tables)]
    limit = (1 - KV_SHARE) * tables.cluster.usable_bytes
    for picks in found:
        if _weight_bytes(tables, picks) <= limit:
            return picks
    return found[-1]


def _by_preference(tables: CostTables) -> list[int]:
    """Degrees with the whole node inside a stage, fewest stages first.

    If no degrees are so (a given mesh), all of them.
    """
    space, node = tables.space, tables.cluster.gpus_per_node
    inside = [
        int(np.prod([axis.size for axis in d.axes if axis.inside] or [1]))
        for d in space.degrees
    ]
    whole = [d for d, size in enumerate(inside) if size == node]
    order = whole or range(len(inside))
    return sorted(order, key=lambda d: (space.degrees[d].stages, -inside[d], d))


def tensor_labels(space: Space, group: int) -> list[int]:
    """Labels that tensor parallelism may shard in a group, best first.

    Not those of the residual stream, and only those of some parameter (argument, if
    there are no parameters); best is the one that most ops of the group have, and
    among these the one on most parameters.
    """
    hub = set().union(*(graph.hub_labels for graph in space.graphs.values()))
    kinds = {variable.kind for variable in space.variables}
    weight = NodeKind.PARAMETER if NodeKind.PARAMETER in kinds else NodeKind.INPUT
    on_weights: Counter[int] = Counter()
    for variable in space.variables:
        if variable.kind is weight and group in variable.groups:
            on_weights.update({factor.label for factor in variable.factors})
    on_ops: Counter[int] = Counter()
    for graph in space.graphs.values():
        for op in graph.groups[group][1]:
            factors = graph.nodes[op].factors
            on_ops.update({f.label for f in factors if not f.batched})
    candidates = [
        label
        for label in space.role_labels[group]
        if on_weights[label] and on_ops[label] and label not in hub
    ]
    return sorted(candidates, key=lambda x: (-on_ops[x], -on_weights[x]))


def _units(space: Space, group: int) -> dict[int, int]:
    """The ways that a label can be sharded in every op of a group must divide this."""
    units: dict[int, int] = {}
    for graph in space.graphs.values():
        for op in graph.groups[group][1]:
            for factor in graph.nodes[op].factors:
                have = units.get(factor.label, 0)
                units[factor.label] = int(np.gcd(have, factor.units))
    return units


def _batch_label(space: Space, group: int) -> int | None:
    for graph in space.graphs.values():
        for op in graph.groups[group][1]:
            for factor in graph.nodes[op].factors:
                if factor.batched:
                    return factor.label
    return None


def _candidate(tables: CostTables, index: int, labels: list[list[int]]) -> np.ndarray:
    space = tables.space
    picks = np.zeros(space.num_genes, np.int32)
    picks[0] = index
    axes = space.degrees[index].axes
    for group, own in enumerate(labels):
        units, batch = _units(space, group), _batch_label(space, group)
        ways = dict.fromkeys(own, 1)
        for axis in reversed(range(len(axes))):  # from the innermost, as repairs do
            size = axes[axis].size
            if size == 1:
                continue
            if axes[axis].inside:
                fits = [x for x in own if units[x] % (ways[x] * size) == 0]
                label = fits[0] if fits else None
                if label is not None:
                    ways[label] *= size
            else:
                label = batch
            if label is not None:
                place = space.first_role + group * space.num_axes + axis
                picks[place] = 1 + space.role_labels[group].index(label)
    return picks


def _weight_bytes(tables: CostTables, picks: np.ndarray) -> float:
    """Weights on one GPU, bytes; of a plain function all that it holds."""
    choices = tables.space.choices(picks)
    degrees, stages = int(picks[0]), tables.space.degrees[int(picks[0])].stages

    def held(tables_of) -> list[float]:
        return [float(table[degrees, choices[v]]) for v, table in tables_of.items()]

    outer = held(tables.outer_bytes) or [0.0]
    ends = max(outer) if stages > 1 else sum(outer)
    plain = 0.0 if tables.cache_bytes else sum(held(tables.held_bytes))
    return sum(held(tables.looped_bytes)) / stages + ends + plain
