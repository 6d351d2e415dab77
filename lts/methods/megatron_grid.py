"""The best layout that Megatron's flags can express: every combination is priced.

For every degrees and every mesh axis: attention splits by tensor or by data over it,
experts split with tokens (expert parallel by all-to-all), alone (by all-gather and
reduce-scatter), by their hidden index (expert tensor parallel) or not at all, whatever
attention does (folding); token-sharded norms on or off; attention's output projection
split by heads inside the node also where attention is not; the logits' matrix split
over the tensor axes, over all axes, or whole. Stages and batch come with the degrees
and the evaluation. The strongest peer that flags give.

Source: Megatron-LM, arXiv 2104.04473; expert folding: arXiv 2504.14960.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from lts.degrees import batch_labels, tensor_labels, with_roles
from lts.evaluate.base import Scores
from lts.evaluate.tables import TableEvaluator
from lts.expert_roles import expert_labels
from lts.graph import NodeKind
from lts.space import Space
from lts.tracing.labels import hub_value

CHUNK = 1024

USES = (
    ("tp", "tp"),
    ("dp", "dp"),
    ("dp", "ep"),
    ("tp", "ep"),
    ("dp", "sum"),
    ("tp", "sum"),
)
"""What attention and experts do with one axis; without experts the first two."""

HEADS = ("tp", "all", "whole")
"""How the matrix of the logits is split."""


@dataclass(frozen=True, eq=False, kw_only=True)
class MegatronGrid:
    """Candidates of the grid, asked for in order; the state is how many were."""

    picks: np.ndarray  # [genes, candidates]
    batch: int = CHUNK
    name: str = "megatron_grid"

    def init(self, key: jax.Array) -> int:
        """Nothing is random."""
        return 0

    def ask(self, state: int) -> tuple[jax.Array, int]:
        """The next candidates."""
        after = state + self.batch
        return jnp.asarray(self.picks[:, state:after]), after

    def tell(self, state: int, picks: jax.Array, scores: Scores) -> int:
        """Nothing is learnt."""
        return state


def megatron_grid(evaluator: TableEvaluator, budget: int) -> MegatronGrid:
    """The grid of the evaluator's space; the budget cuts its least usual end.

    Raises:
      ValueError: if no group of ops reads anything that the rules could shard.
    """
    space = evaluator.space
    if not any(tensor_labels(space, group) for group in range(len(space.groups))):
        raise ValueError(
            "the Megatron grid shards what operations and their weights share, and no "
            "operation of this program has such an index; choose another method"
        )
    found = {picks.tobytes(): picks for picks in itertools.islice(_grid(space), budget)}
    return MegatronGrid(picks=np.stack([*found.values()], axis=1))


def _grid(space: Space) -> Iterator[np.ndarray]:
    """Candidates, the usual switches first."""
    mixed = any(expert_labels(space, g) for g in range(len(space.groups)))
    uses = USES if mixed else USES[:2]
    switches = itertools.product((False, True), HEADS, (True, False))
    for out, head, norms in switches:
        for number, degrees in enumerate(space.degrees):
            sized = [i for i, axis in enumerate(degrees.axes) if axis.size > 1]
            for chosen in itertools.product(uses, repeat=len(sized)):
                attention = ["dp"] * len(degrees.axes)
                experts = ["dp"] * len(degrees.axes)
                for axis, (own, folded) in zip(sized, chosen, strict=True):
                    attention[axis], experts[axis] = own, folded
                picks = with_roles(space, number, attention, experts)
                _set_norms(space, picks, attention, norms)
                _set_head(space, picks, attention, head)
                if out:
                    _split_out(space, picks, attention)
                yield picks


def _override(space: Space, picks: np.ndarray, variable: int, axis: int, label) -> None:
    """Make one axis of a variable shard a label, or nothing (None)."""
    state = 0 if label is None else space.variables[variable].states_of(label)
    picks[space.first_override + variable * space.num_axes + axis] = state + 1


def _set_norms(
    space: Space, picks: np.ndarray, attention: list[str], sharded: bool
) -> None:
    """Tokens of the residual stream over the tensor axes too, or over data axes only.

    Over tensor axes by position where there are several (prefill), else by request.
    """
    batch = next(iter(sorted(batch_labels(space))), None)
    hubs = {
        (phase, hub.index)
        for phase, graph in space.graphs.items()
        if (hub := hub_value(graph)) is not None
    }
    for i, variable in enumerate(space.variables):
        if not hubs & set(variable.members):
            continue
        rows = [x for x in space.positions if variable.states_of(x)]
        for axis, use in enumerate(attention):
            tensor = (rows or [batch])[0] if sharded else None
            _override(space, picks, i, axis, batch if use == "dp" else tensor)


def _split_out(space: Space, picks: np.ndarray, attention: list[str]) -> None:
    """Output projections and their weights by heads over data axes inside the node."""
    axes = space.degrees[int(picks[0])].axes
    inner = [i for i, axis in enumerate(axes) if axis.inside and attention[i] == "dp"]
    number_of = {m: i for i, v in enumerate(space.variables) for m in v.members}
    caching = {
        group
        for variable in space.variables
        if variable.kind is NodeKind.CACHE
        for group in variable.groups
    }
    for phase, graph in space.graphs.items():
        hub = hub_value(graph)
        into = {edge.source for edge in graph.edges if hub and edge.target == hub.index}
        for group in caching:
            labels = tensor_labels(space, group)
            for op in into & set(graph.groups[group][1]) if labels else ():
                weights = {
                    edge.source
                    for edge in graph.edges
                    if edge.target == op
                    and graph.nodes[edge.source].kind is NodeKind.PARAMETER
                }
                for node, axis in itertools.product((op, *sorted(weights)), inner):
                    _override(space, picks, number_of[phase, node], axis, labels[0])


def _set_head(space: Space, picks: np.ndarray, attention: list[str], head: str) -> None:
    """The matrix of the logits over the tensor axes, over all, or whole."""
    if head == "tp":
        return  # what the roles say
    for group in _outer_groups(space):
        labels = tensor_labels(space, group)
        own = space.role_labels[group]
        batch = next((x for x in own if x in batch_labels(space)), None)
        if not labels:
            continue
        for axis, use in enumerate(attention):
            label = labels[0] if head == "all" else batch if use == "dp" else None
            place = space.first_role + group * space.num_axes + axis
            picks[place] = 0 if label is None else 1 + own.index(label)


def _outer_groups(space: Space) -> list[int]:
    """Groups of ops that run once a step, outside the layers."""
    *_, graph = space.graphs.values()
    return [
        g
        for g, (_, ops) in enumerate(graph.groups)
        if ops and all(graph.nodes[op].trips == 1 for op in ops)
    ]
