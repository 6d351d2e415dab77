"""Layout decisions of a program: which nodes must agree, and whom they follow."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lts.graph import NONE, Factor, Node, NodeKind, OpGraph

SHARED = (NodeKind.PARAMETER, NodeKind.CACHE)

Member = tuple[str, int]
"""Phase, and index of a node in it."""


@dataclass(frozen=True, kw_only=True)
class Variable:
    """One layout decision: the node it stands for, in each phase that has it.

    Attributes:
      name: of the node.
      kind: of the node.
      factors: what an axis may shard; common to all members.
      members: (phase, node index).
      groups: numbers of the groups whose roles it inherits, most important first.
    """

    name: str
    kind: NodeKind
    factors: tuple[Factor, ...]
    members: tuple[Member, ...]
    groups: tuple[int, ...]

    def states_of(self, label: int) -> int:
        """State that a role with `label` gives an axis; NONE if it has no such factor.

        Of two factors with one label (query and key positions), rows come before sums.
        """
        found = [
            (factor.reduction, i + 1)
            for i, factor in enumerate(self.factors)
            if factor.label == label
        ]
        return min(found)[1] if found else NONE


def variables_of(
    graphs: Mapping[str, OpGraph], rank: np.ndarray
) -> tuple[Variable, ...]:
    """Variables of linked phases; those of the last phase first.

    `step` and `step#2` are one program at two shapes: all its nodes agree.

    Args:
      rank: per group, its place in the order of importance; `[groups]`.
    """
    members: dict[tuple, list[tuple[str, int]]] = {}
    groups: dict[tuple, set[int]] = {}
    for phase, graph in reversed(list(graphs.items())):
        touching = _touching_groups(graph)
        for node in graph.nodes:
            shared = node.kind in SHARED
            program = phase.partition("#")[0]  # one function at several shapes
            key = (node.name,) if shared else (program, node.name)
            members.setdefault(key, []).append((phase, node.index))
            groups.setdefault(key, set()).update(touching[node.index])
    out = []
    for key, found in members.items():
        nodes = [graphs[phase].nodes[index] for phase, index in found]
        out.append(
            Variable(
                name="/".join(key),
                kind=nodes[0].kind,
                factors=_common_factors(nodes),
                members=tuple(found),
                groups=tuple(sorted(groups[key], key=lambda g: rank[g])),
            )
        )
    return tuple(out)


def tied(
    variables: Sequence[Variable], pairs: Sequence[tuple[Member, Member]]
) -> tuple[Variable, ...]:
    """Variables, those joined that have the two members of a pair.

    The first of a pair, a state that comes in, gives the name and the kind.
    """
    found = list(variables)
    for here, there in pairs:
        first = next(v for v in found if here in v.members)
        second = next(v for v in found if there in v.members)
        if first is second:
            continue
        common = [
            replace(f, units=math.gcd(f.units, g.units))
            for f in first.factors
            for g in second.factors
            if f.name == g.name
        ]
        found[found.index(first)] = replace(
            first,
            factors=tuple(common),
            members=(*first.members, *second.members),
            groups=tuple(dict.fromkeys((*first.groups, *second.groups))),
        )
        found.remove(second)
    return tuple(found)


def _common_factors(nodes: Sequence[Node]) -> tuple[Factor, ...]:
    """Factors that all nodes have, in the coarsest granularity that one asks for."""
    common = []
    for factor in nodes[0].factors:
        same = [f for node in nodes for f in node.factors if f.name == factor.name]
        if len(same) == len(nodes):
            common.append(replace(factor, units=math.gcd(*(f.units for f in same))))
    return tuple(common)


def _touching_groups(graph: OpGraph) -> dict[int, set[int]]:
    """Groups of the ops next to every node; through a value if no op is."""
    touching: dict[int, set[int]] = {node.index: set() for node in graph.nodes}
    for g, (_, ops) in enumerate(graph.groups):
        for op in ops:
            touching[op].add(g)
    direct = {index: set(found) for index, found in touching.items()}
    for edge in graph.edges:
        for here, there in itertools.permutations((edge.source, edge.target)):
            if graph.nodes[there].is_op and not graph.nodes[here].is_op:
                touching[here] |= direct[there]
    near = {index: set(found) for index, found in touching.items()}
    for edge in graph.edges:
        for here, there in itertools.permutations((edge.source, edge.target)):
            if not near[here]:
                touching[here] |= near[there]
    return touching
