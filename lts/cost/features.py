"""What genes mean under given degrees, and local features of them for a policy.

A feature reads one node's own tables only: its time and bytes when one mesh axis alone
shards one factor, against no sharding. No feature is the score of a plan, and none
reads an edge. So features cost no evaluation.

Choices are indexed by *meaning*. That of a degrees or role gene is its value; that of
an override gene is the state that the axis gets, so that "inherit" means what the roles
chosen before say.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from lts.cost.tables import CostTables
from lts.graph import NONE, Factor, NodeKind
from lts.space import INHERIT, Space

INHERIT_SHARE = 0.97
"""Overrides that inherit, in the prior that all methods share."""

LEVELS = ("degrees", "role", "override")
_KINDS = tuple(NodeKind)
_MAX_LOG_RATIO = 3.0
_TINY = 1e-12


@dataclass(frozen=True, eq=False, kw_only=True)
class GeneFeatures:
    """Host arrays about the genes of one space; float32 unless said otherwise.

    Choices and meanings are padded to those of the widest gene.

    Attributes:
      levels: number of each gene's kind in `LEVELS`; int `[genes]`.
      live: whether the gene has an effect; bool `[degrees, genes]`.
      pinned: the only value of the gene, or -1; int `[genes]`.
      decision: `[degrees, genes, decision features]`.
      choice: `[degrees, genes, choices, choice features]`, by meaning.
      legal: meanings that some node can take; bool `[degrees, genes, choices]`.
      groups: groups a variable inherits from, most important first, short rows filled
        with rows of `inherited` that give nothing; int `[variables, rows]`.
      inherited: state that a role gives; int `[variables, rows, roles]`.
    """

    space: Space
    levels: np.ndarray
    live: np.ndarray
    pinned: np.ndarray
    decision: np.ndarray
    choice: np.ndarray
    legal: np.ndarray
    groups: np.ndarray
    inherited: np.ndarray

    @property
    def num_choices(self) -> int:
        """Values of the widest gene."""
        return self.legal.shape[2]

    def inherited_states(self, picks: jax.Array) -> jax.Array:
        """State that the roles of candidates give every variable's axes.

        Args:
          picks: int32 `[genes, candidates]`; overrides are not read.

        Returns:
          `[variables * axes, candidates]`, in the order of the override genes.
        """
        space, count = self.space, picks.shape[1]
        roles = picks[space.first_role : space.first_override]
        roles = roles.reshape(len(space.groups), space.num_axes, count)
        variables, rows, width = self.inherited.shape
        offsets = np.arange(variables * rows).reshape(variables, rows) * width
        places = jnp.asarray(offsets[:, :, None, None]) + roles[self.groups]
        given = jnp.asarray(self.inherited.ravel())[places]
        states = given[:, 0]
        for row in range(1, rows):
            states = jnp.where(states == 0, given[:, row], states)
        return states.reshape(-1, count)

    def meanings(self, picks: jax.Array) -> jax.Array:
        """What each value of each gene means, given the roles.

        Returns:
          int32 `[candidates, genes, choices]`.
        """
        values = jnp.arange(self.num_choices, dtype=jnp.int32)[None, None]
        shape = (picks.shape[1], self.space.first_override, self.num_choices)
        states = self.inherited_states(picks).T[..., None]
        chosen = jnp.where(values == INHERIT, states, values - 1)
        return jnp.concatenate([jnp.broadcast_to(values, shape), chosen], axis=1)

    def _effects(self, picks: jax.Array, meanings: jax.Array) -> jax.Array:
        """Meanings that are legal; 0, which is nothing, for others."""
        legal = jnp.asarray(self.legal)[picks[0]]
        legal = jnp.take_along_axis(legal, meanings, axis=2)
        return jnp.where(legal, meanings, 0)

    def allowed(self, picks: jax.Array, meanings: jax.Array) -> jax.Array:
        """Values that are legal and differ in effect, given the levels before.

        A gene without effect allows value 0 only, a pinned one its pin. An override
        that repeats what is inherited, or shards what cannot be sharded, is not
        allowed.

        Returns:
          bool `[candidates, genes, choices]`.
        """
        levels, pinned = self.levels[:, None], self.pinned[:, None]
        values = np.arange(self.num_choices)[None]
        exists = values < self.space.cardinalities[:, None]
        pinned, is_pin = pinned[None], (values == pinned)[None]
        effects = self._effects(picks, meanings)
        differs = jnp.where(
            (levels == LEVELS.index("override"))[None],
            (effects != effects[..., :1]) & ((effects > 0) | (meanings == 0)),
            effects > 0,
        )
        differs &= jnp.asarray(self.live)[picks[0]][..., None]
        differs |= (levels == LEVELS.index("degrees"))[None]
        found = exists[None] & ((values == 0)[None] | differs)
        return jnp.where(pinned >= 0, is_pin, found)

    def canonical(self, picks: jax.Array) -> jax.Array:
        """Candidates whose every value is `allowed`, alike in effect to these.

        Roles without effect become none, overrides that repeat what is inherited
        inherit. One thing changes: a role that a variable cannot follow no longer
        keeps it from inheriting of another group.
        """
        first, (_, genes, choices) = self.space.first_override, self.legal.shape
        table = jnp.asarray(self.legal.ravel())
        rows = picks[:1] * genes + np.arange(genes, dtype=np.int32)[:, None]

        def effect(meanings: jax.Array, genes: slice) -> jax.Array:
            return jnp.where(table[rows[genes] * choices + meanings], meanings, 0)

        roles, overrides = slice(1, first), slice(first, genes)
        live = jnp.asarray(self.live.T)[:, picks[0]]
        own = jnp.where(live[roles], effect(picks[roles], roles), 0)
        picks = jnp.concatenate([picks[:1], own, picks[overrides]])
        states, own = self.inherited_states(picks), picks[overrides]
        own = effect(jnp.where(own == INHERIT, states, own - 1), overrides)
        own = jnp.where(own == effect(states, overrides), INHERIT, own + 1)
        picks = jnp.concatenate([picks[:first], own.astype(jnp.int32)])
        return jnp.where(self.pinned[:, None] >= 0, self.pinned[:, None], picks)


@dataclass(frozen=True, eq=False, kw_only=True)
class _Local:
    """Times and bytes of a variable alone, `[degrees, axes, states]` each."""

    first_s: np.ndarray
    last_s: np.ndarray
    nbytes: np.ndarray
    legal: np.ndarray


def gene_features(tables: CostTables) -> GeneFeatures:
    """Features of every gene and choice of the tables' space."""
    space = tables.space
    locals_ = [_local(tables, v) for v in range(len(space.variables))]
    meanings = int(space.cardinalities.max())
    shape = (len(space.degrees), space.num_genes)
    hub = set().union(*(graph.hub_labels for graph in space.graphs.values()))
    totals = [
        np.maximum(sum(x[:, :1, :1] for x in found), _TINY)
        for found in (
            [x.first_s for x in locals_],
            [x.last_s for x in locals_],
            [x.nbytes for x in locals_],
        )
    ]
    choice = np.zeros((*shape, meanings, 11), np.float32)
    legal = np.zeros((*shape, meanings), bool)
    decision = np.zeros((*shape, 3 + len(_KINDS) + 5), np.float32)
    choice[:, 0, : len(space.degrees), :4] = [
        _degrees_features(d) for d in space.degrees
    ]
    legal[:, 0, : len(space.degrees)] = True
    sizes = space.sizes
    inside = np.array([[axis.inside for axis in d.axes] for d in space.degrees])
    for group in range(len(space.groups)):
        found, facts = _role_local(space, group, locals_, hub)
        start = space.first_role + group * space.num_axes
        _fill(choice, legal, decision, start, found, facts, totals)
    for i, variable in enumerate(space.variables):
        states = range(1 + len(variable.factors))
        facts = np.array([_facts(s, variable.factors, hub) for s in states])
        start = space.first_override + i * space.num_axes
        _fill(choice, legal, decision, start, locals_[i], facts, totals)
        kind = 3 + _KINDS.index(variable.kind)
        decision[:, start : start + space.num_axes, kind] = 1
    levels = np.array([LEVELS.index(gene.kind) for gene in space.genes])
    decision[:, np.arange(space.num_genes), levels] = 1
    axes = np.array([gene.axis for gene in space.genes])[1:]
    decision[:, 1:, -5] = np.log2(sizes)[:, axes] / 4
    decision[:, 1:, -4] = inside[:, axes]
    live = np.concatenate([np.ones((shape[0], 1), bool), sizes[:, axes] > 1], axis=1)
    pinned = np.full(space.num_genes, -1, np.int32)
    for gene, value in space.pinned:
        pinned[gene] = value
    groups, inherited = _inherit_tables(space)
    return GeneFeatures(
        space=space,
        levels=levels,
        live=live,
        pinned=pinned,
        decision=decision,
        choice=choice,
        legal=legal,
        groups=groups,
        inherited=inherited,
    )


def _inherit_tables(space: Space) -> tuple[np.ndarray, np.ndarray]:
    rows = max(1, *(len(v.groups) for v in space.variables))
    groups = np.zeros((len(space.variables), rows), np.int32)
    inherited = np.zeros((*groups.shape, space.inherited[0].shape[1]), np.int32)
    for i, (variable, table) in enumerate(
        zip(space.variables, space.inherited, strict=True)
    ):
        groups[i, : len(variable.groups)] = variable.groups
        inherited[i, : len(table)] = table
    return groups, inherited


def _degrees_features(degrees) -> list[float]:
    sizes = [axis.size for axis in degrees.axes]
    outer = [axis.size for axis in degrees.axes if not axis.inside]
    return [
        float(np.log2(degrees.stages) / 4),
        float(np.log2(np.prod(sizes)) / 4),
        float(np.log2(np.prod(outer)) / 4),
        sum(size > 1 for size in sizes) / 4,
    ]


def _facts(state: int, factors: Sequence[Factor], hub: set[int]) -> list[float]:
    """Facts of a state of a node; of two factors at once, what either has."""
    if state == NONE:
        return [1, 0, 0, 0, 0]
    factor = factors[state - 1]
    parts = [factors[i] for i in factor.both or (state - 1,)]
    return [
        0,
        float(np.log(factor.size)) / 10,
        any(part.reduction for part in parts),
        any(part.batched for part in parts),
        any(part.label in hub for part in parts),
    ]


def _local(tables: CostTables, index: int) -> _Local:
    """Table entries of one variable with one axis sharding, at the middle batch."""
    space = tables.space
    variable = space.variables[index]
    base = 1 + len(variable.factors)
    codes = base ** np.arange(space.num_axes)[:, None] * np.arange(base)
    seconds = {phase: np.zeros(()) for phase in tables.phases}
    for phase, node in variable.members:
        table = tables.phases[phase].node_time_s[node]
        own = table[:, codes, table.shape[-1] // 2]
        seconds[phase] = seconds[phase] + np.where(np.isfinite(own), own, 0.0)
    shape = (len(space.degrees), *codes.shape)
    found = [
        held[index][:, codes]
        for held in (
            tables.looped_bytes,
            tables.outer_bytes,
            tables.cache_bytes,
            tables.held_bytes,
        )
        if index in held
    ]
    first, *_ = seconds.values()
    *_, last = seconds.values()
    return _Local(
        first_s=np.broadcast_to(first, shape),
        last_s=np.broadcast_to(last, shape),
        nbytes=np.broadcast_to(sum(found, np.zeros(())), shape),
        legal=(space.repaired[index][:, codes] == codes),
    )


def _role_local(
    space: Space, group: int, locals_: list[_Local], hub: set[int]
) -> tuple[_Local, np.ndarray]:
    """Sums over the variables of a group when one axis takes one role in all."""
    labels = space.role_labels[group]
    shape = (len(space.degrees), space.num_axes, 1 + len(labels))
    first_s, last_s, nbytes = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    legal = np.zeros(shape, bool)
    facts = np.zeros((1 + len(labels), 5))
    facts[0] = _facts(NONE, (), hub)
    for i, variable in enumerate(space.variables):
        if group not in variable.groups:
            continue
        row = space.inherited[i][variable.groups.index(group)][: 1 + len(labels)]
        found = locals_[i]
        first_s += found.first_s[..., row]
        last_s += found.last_s[..., row]
        nbytes += found.nbytes[..., row]
        legal |= found.legal[..., row] & (row > 0)
        for role in range(len(labels)):
            if row[role + 1]:
                own = _facts(int(row[role + 1]), variable.factors, hub)
                facts[role + 1] = np.maximum(facts[role + 1], own)
    legal[..., 0] = True
    local = _Local(first_s=first_s, last_s=last_s, nbytes=nbytes, legal=legal)
    return local, facts


def _fill(choice, legal, decision, start, found: _Local, facts, totals) -> None:
    """Write features of the genes of one owner, one per axis, from `start` on."""
    _, axes, states = found.legal.shape
    genes = slice(start, start + axes)
    legal[:, genes, :states] = found.legal
    choice[:, genes, :states, :5] = facts
    parts = (found.first_s, found.last_s, found.nbytes)
    for i, (part, total) in enumerate(zip(parts, totals, strict=True)):
        none = part[..., :1]
        ratio = np.log((part + _TINY) / (none + _TINY))
        ratio = np.clip(ratio, -_MAX_LOG_RATIO, _MAX_LOG_RATIO)
        choice[:, genes, :states, 5 + i] = ratio
        choice[:, genes, :states, 8 + i] = np.clip(5 * (part - none) / total, -1, 1)
        decision[:, genes, -3 + i] = np.sqrt(none / total)[..., 0]
