"""Which plans exist: genes, what they mean, and what they decode to.

A candidate is a vector of small integers, the *genes*, in this order:

1. one gene picks the `Degrees` (stages and mesh);
2. per group of ops and mesh axis, a *role*: nothing, or one label (batch, heads, ...);
3. per variable and mesh axis, an *override*: inherit what the roles say (0), shard
   nothing (1), or shard factor `i` (`i + 2`).

A *variable* is a node, or several nodes that must agree: a parameter or cache has one
layout in all phases. Its *choice* is, per axis, a state (0: nothing, `i + 1`: factor
`i`), numbered in base `1 + factors` with axis 0 as the lowest digit. Choices that do
not divide are repaired by dropping outer axes first, so every candidate is legal but
for its batch, which the cost model masks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from lts.assignment import Assignment, States
from lts.given import INHERIT, given_states
from lts.graph import NONE, NodeKind, OpGraph, coverage
from lts.mesh import Degrees
from lts.variables import Variable, variables_of


@dataclass(frozen=True, kw_only=True)
class Gene:
    """One position of a candidate: its kind, cardinality, and what it is about."""

    kind: str  # "degrees", "role" or "override"
    cardinality: int
    owner: int = -1  # number of the group or variable
    axis: int = -1


@dataclass(frozen=True, eq=False, kw_only=True)
class Space:
    """All candidates of one problem on one cluster."""

    graphs: Mapping[str, OpGraph]
    degrees: tuple[Degrees, ...]
    groups: tuple[str, ...]
    role_labels: tuple[tuple[int, ...], ...]  # per group
    label_names: Mapping[int, str]
    variables: tuple[Variable, ...]
    positions: frozenset[int] = frozenset()  # labels of token positions
    pinned: tuple[tuple[int, int], ...] = ()  # gene, value that it always has

    @property
    def num_axes(self) -> int:
        """Mesh axes of every candidate (some may have size 1)."""
        return len(self.degrees[0].axes)

    @cached_property
    def genes(self) -> tuple[Gene, ...]:
        """All genes, in the order of a candidate."""
        axes = range(self.num_axes)
        roles = [
            Gene(kind="role", cardinality=1 + len(labels), owner=g, axis=a)
            for g, labels in enumerate(self.role_labels)
            for a in axes
        ]
        overrides = [
            Gene(kind="override", cardinality=2 + len(v.factors), owner=i, axis=a)
            for i, v in enumerate(self.variables)
            for a in axes
        ]
        first = Gene(kind="degrees", cardinality=len(self.degrees))
        return (first, *roles, *overrides)

    @property
    def num_genes(self) -> int:
        """Length of a candidate."""
        return len(self.genes)

    @cached_property
    def cardinalities(self) -> np.ndarray:
        """Number of values of every gene; host int32 `[genes]`."""
        return np.array([gene.cardinality for gene in self.genes], np.int32)

    @cached_property
    def sizes(self) -> np.ndarray:
        """Axis sizes; host int64 `[degrees, axes]`."""
        return np.array([[a.size for a in d.axes] for d in self.degrees], np.int64)

    @property
    def first_role(self) -> int:
        """Position of the first role gene."""
        return 1

    @property
    def first_override(self) -> int:
        """Position of the first override gene."""
        return 1 + len(self.groups) * self.num_axes

    def log10_size(self) -> float:
        """Decimal logarithm of the number of candidates."""
        return float(np.log10(self.cardinalities.astype(float)).sum())

    def num_choices(self, variable: int) -> int:
        """Choices of a variable, legal or not."""
        return (1 + len(self.variables[variable].factors)) ** self.num_axes

    def choice_states(self, variable: int) -> np.ndarray:
        """States of every choice; host int `[choices, axes]`."""
        base = 1 + len(self.variables[variable].factors)
        codes = np.arange(self.num_choices(variable))
        return codes[:, None] // base ** np.arange(self.num_axes) % base

    @cached_property
    def both(self) -> Mapping[int, tuple[int, int]]:
        """Labels that shard two factors at once, and their labels: tokens, experts."""
        found = {}
        for variable in self.variables:
            for factor in variable.factors:
                if factor.both:
                    tokens, experts = (variable.factors[i].label for i in factor.both)
                    found[factor.label] = (tokens, experts)
        return found

    @cached_property
    def inherited(self) -> tuple[np.ndarray, ...]:
        """Per variable, the state that a role of one of its groups gives an axis.

        Host int32 `[groups of the variable, roles]`, roles padded with NONE.
        """
        width = 1 + max((len(labels) for labels in self.role_labels), default=0)
        tables = []
        for variable in self.variables:
            table = np.zeros((len(variable.groups), width), np.int32)
            for row, group in enumerate(variable.groups):
                for role, label in enumerate(self.role_labels[group]):
                    table[row, role + 1] = self._role_state(variable, label)
            tables.append(table)
        return tuple(tables)

    def _role_state(self, variable: Variable, label: int) -> int:
        """State that a role gives; sharding positions means those that there are.

        New tokens in prefill, cached ones in decode: context parallelism is one role.
        Where a role shards tokens and experts at once, a variable takes both, or what
        it has of them; tokens are those of the batch where there are no new positions
        (decode).
        """
        labels = [label]
        if label in self.both:
            tokens, experts = self.both[label]
            others = [x for x, (_, e) in self.both.items() if e == experts]
            others = others if tokens in self.positions else []
            rows = [self.both[other][0] for other in others]
            labels += [*others, tokens, *rows, experts]
        if label in self.positions:
            labels += sorted(self.positions - {label})
        return next((s for x in labels if (s := variable.states_of(x))), NONE)

    @cached_property
    def repaired(self) -> tuple[np.ndarray, ...]:
        """Per variable, the legal choice nearest to each; int32 `[degrees, choices]`.

        Axes of size 1 shard nothing; where the ways do not divide the units of a factor
        the outermost axes are dropped. Batched factors are left to the cost model.
        """
        return tuple(self._repair(i) for i in range(len(self.variables)))

    def _repair(self, index: int) -> np.ndarray:
        variable, states = self.variables[index], self.choice_states(index)
        base, covered = 1 + len(variable.factors), coverage(variable.factors)
        units = np.array([0 if f.batched else f.units for f in variable.factors])
        fixed = np.zeros((len(self.degrees), len(states)), np.int64)
        for d, sizes in enumerate(self.sizes):
            ways = np.ones((len(states), base - 1), np.int64)
            for axis in reversed(range(self.num_axes)):
                state = states[:, axis]
                after = ways * np.where(covered[state], sizes[axis], 1)
                keep = (state > 0) & (sizes[axis] > 1) & (units % after == 0).all(1)
                ways = np.where(keep[:, None], after, ways)
                fixed[d] += np.where(keep, state, 0) * base**axis
        return fixed.astype(np.int32)

    def _inherited_state(self, picks: np.ndarray, variable: int, axis: int) -> int:
        """State that the roles give an axis of a variable, before any repair."""
        for row, group in enumerate(self.variables[variable].groups):
            role = int(picks[self.first_role + group * self.num_axes + axis])
            if state := int(self.inherited[variable][row, role]):
                return state
        return NONE

    def choices(self, picks: np.ndarray) -> np.ndarray:
        """Legal choice of every variable; picks and result on the host.

        Args:
          picks: `[genes]`.

        Returns:
          `[variables]`.
        """
        axes, out = self.num_axes, []
        picks = np.array(picks)
        for gene, value in self.pinned:
            picks[gene] = value
        degrees = int(picks[0])
        for i, variable in enumerate(self.variables):
            code, base = 0, 1 + len(variable.factors)
            for axis in range(axes):
                override = int(picks[self.first_override + i * axes + axis])
                state = override - 1
                if override == INHERIT:
                    state = self._inherited_state(picks, i, axis)
                code += state * base**axis
            out.append(int(self.repaired[i][degrees, code]))
        return np.array(out, np.int32)

    def decode(self, picks: Sequence[int] | np.ndarray) -> Assignment:
        """The assignment that a candidate stands for."""
        picks = np.asarray(picks)
        roles: dict[str, States] = {}
        for g, group in enumerate(self.groups):
            start = self.first_role + g * self.num_axes
            roles[group] = tuple(
                None if role == 0 else self.label_names[self.role_labels[g][role - 1]]
                for role in picks[start : start + self.num_axes].tolist()
            )
        states: dict[str, dict[str, States]] = {phase: {} for phase in self.graphs}
        for i, choice in enumerate(self.choices(picks)):
            variable = self.variables[i]
            named = tuple(
                None if state == NONE else variable.factors[state - 1].name
                for state in self.choice_states(i)[choice].tolist()
            )
            for phase, node in variable.members:
                states[phase][self.graphs[phase].nodes[node].name] = named
        return Assignment(
            degrees=self.degrees[int(picks[0])],
            roles=roles,
            states={
                phase: {
                    node.name: states[phase][node.name]
                    for node in graph.nodes
                    if node.name in states[phase]
                }
                for phase, graph in self.graphs.items()
            },
        )

    def encode(self, assignment: Assignment) -> np.ndarray:
        """A candidate that decodes to `assignment`; overrides only where they must.

        Raises:
          ValueError: if the assignment is not in this space.
        """
        if assignment.degrees not in self.degrees:
            raise ValueError(
                f"degrees {assignment.degrees.stages} stages x "
                f"{assignment.degrees.shape} are not in this space; it has "
                + ", ".join(f"{d.stages} x {d.shape}" for d in self.degrees)
            )
        picks = np.zeros(self.num_genes, np.int32)
        picks[0] = self.degrees.index(assignment.degrees)
        for g, group in enumerate(self.groups):
            known = [self.label_names[label] for label in self.role_labels[g]]
            for axis, role in enumerate(assignment.roles.get(group, ())):
                if role is not None:
                    if role not in known:
                        raise ValueError(f"group {group!r} has no role {role!r}")
                    place = self.first_role + g * self.num_axes + axis
                    picks[place] = 1 + known.index(role)
        default = self.choices(picks)
        for i, variable in enumerate(self.variables):
            phase, node = variable.members[0]
            name = self.graphs[phase].nodes[node].name
            wanted = assignment.states.get(phase, {}).get(name)
            if wanted is None:
                continue
            known = [None, *(factor.name for factor in variable.factors)]
            for factor in wanted:
                if factor not in known:
                    raise ValueError(
                        f"{name!r} has no factor {factor!r}; it has {known[1:]}"
                    )
            states = [known.index(factor) for factor in wanted]
            if states == self.choice_states(i)[default[i]].tolist():
                continue
            # Against what is inherited, not what is left after repair: an override of
            # one axis may make room for another's role.
            for axis, state in enumerate(states):
                if state != self._inherited_state(picks, i, axis):
                    picks[self.first_override + i * self.num_axes + axis] = state + 1
        return picks


def build_space(graphs: Mapping[str, OpGraph], degrees: Sequence[Degrees]) -> Space:
    """The space of linked phases over the given degrees.

    Args:
      graphs: by phase, as `link_phases` returns them. The last phase is the one that
        counts most (decode): its nodes come first among equals.
      degrees: all with the same number of axes.
    """
    groups = tuple(name for name, _ in next(iter(graphs.values())).groups)
    names: dict[int, str] = {}
    labels: list[dict[int, None]] = [{} for _ in groups]
    flops = np.zeros(len(groups))
    for graph in reversed(list(graphs.values())):
        for g, (_, ops) in enumerate(graph.groups):
            for op in ops:
                node = graph.nodes[op]
                flops[g] += node.flops * node.trips
                labels[g].update(dict.fromkeys(f.label for f in node.factors))
        for node in graph.nodes:
            for factor in node.factors:
                names.setdefault(factor.label, factor.name.rstrip("'"))
    rank = np.argsort(np.argsort(-flops, kind="stable"))
    variables = variables_of(graphs, rank)
    space = Space(
        graphs=dict(graphs),
        degrees=tuple(degrees),
        groups=groups,
        role_labels=tuple(tuple(found) for found in labels),
        label_names=names,
        variables=variables,
        positions=_positions(variables) & {x for found in labels for x in found},
    )
    pinned = {
        space.first_override + variable * space.num_axes + axis: value
        for variable, axis, value in given_states(graphs, variables, degrees)
    }
    return replace(space, pinned=tuple(sorted(pinned.items())))


def _positions(variables: Sequence[Variable]) -> frozenset[int]:
    """Labels of neither weights nor the batch, if there are weights to tell by.

    Among them are dims of caches that no op shards (layers, head size).
    """
    found: dict[bool, set[int]] = {True: set(), False: set()}
    for variable in variables:
        labels = {f.label for f in variable.factors if not (f.batched or f.both)}
        found[variable.kind is NodeKind.PARAMETER] |= labels
    return frozenset(found[False] - found[True]) if found[True] else frozenset()
