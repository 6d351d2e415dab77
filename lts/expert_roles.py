"""What mesh axes do in groups of ops that hold a mixture of experts.

The words of the field for one axis of an expert group: `ep`, tokens and experts
together, so that tokens travel (all-to-all); `sum`, experts alone, tokens being
replicated over it; `tp`, the experts' hidden index; `dp`, tokens alone.
"""

import math
from typing import NamedTuple

import numpy as np

from lts.graph import EXPERTS, coverage
from lts.space import Space

USES = ("ep", "sum", "tp", "dp")


class ExpertLabels(NamedTuple):
    """Labels of an expert group: what each use of an axis shards.

    `ep_positions`: experts with positions of the sequence where there are several (in
    prefill), for axes that split no requests.
    """

    ep: int
    ep_positions: int
    sum: int
    tp: int
    dp: int


def expert_labels(space: Space, group: int) -> ExpertLabels | None:
    """Labels of a group's expert op; None if it has none, or one that cannot shard."""
    pairs: dict[bool, int] = {}
    parts: tuple[int, int, int] | None = None
    for graph in space.graphs.values():
        for op in graph.groups[group][1]:
            node = graph.nodes[op]
            if node.primitive != EXPERTS:
                continue
            for factor in node.factors:
                if factor.both is None:
                    continue
                tokens, experts = (node.factors[i] for i in factor.both)
                pairs.setdefault(tokens.batched, factor.label)
                hidden = [
                    f.label
                    for i, f in enumerate(node.factors)
                    if f.reduction and i != factor.both[1]
                ]
                if tokens.batched:
                    parts = (experts.label, (hidden or [-1])[0], tokens.label)
    if parts is None:
        return None
    return ExpertLabels(pairs[True], pairs.get(False, pairs[True]), *parts)


def expert_units(space: Space) -> dict[str, int] | None:
    """What `moe_ep` and `moe_tp` must divide: experts, parts of one; None without."""
    found: dict[str, int] = {}
    for graph in space.graphs.values():
        for node in graph.ops:
            experts = {f.both[1] for f in node.factors if f.both}
            for i, factor in enumerate(node.factors):
                if node.primitive == EXPERTS and factor.reduction:
                    name = "moe_ep" if i in experts else "moe_tp"
                    found[name] = math.gcd(found.get(name, 0), factor.units)
    return found or None


def expert_degrees(space: Space, choices: np.ndarray, number: int) -> dict[str, int]:
    """`moe_tp` and `moe_ep` of a candidate: 1 and 1 without experts.

    Args:
      choices: legal choice of every variable, `[variables]`.
      number: of the degrees.
    """
    found = {"moe_tp": 1, "moe_ep": 1}
    *_, (phase, graph) = space.graphs.items()
    for i, variable in enumerate(space.variables):
        nodes = [graph.nodes[index] for p, index in variable.members if p == phase]
        if not nodes or nodes[0].primitive != EXPERTS:
            continue
        experts = {f.both[1] for f in nodes[0].factors if f.both}
        states = space.choice_states(i)[choices[i]]
        covered = coverage(variable.factors)[states]  # [axes, factors]
        own = {"moe_tp": 1, "moe_ep": 1}
        for axis, size in enumerate(space.sizes[number]):
            for factor in np.flatnonzero(covered[axis]):
                if factor in experts:
                    own["moe_ep"] *= int(size)
                elif variable.factors[factor].reduction:
                    own["moe_tp"] *= int(size)
        found = {name: max(found[name], own[name]) for name in found}
    return found
