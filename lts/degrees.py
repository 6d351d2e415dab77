"""Between degrees that people say (tp 8, pp 2) and candidates of a space."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from jax.sharding import PartitionSpec

from lts.expert_roles import expert_degrees, expert_labels, expert_units
from lts.graph import Node, NodeKind, coverage
from lts.pins import pin
from lts.space import Space
from lts.variables import Variable

NAMES = ("pp", "dp", "tp", "cp", "moe_tp", "moe_ep")


def main_group(space: Space) -> int:
    """Number of the group that degrees are named after: the one next to the cache.

    Without a cache, the group with most ops.
    """
    for variable in space.variables:
        if variable.kind is NodeKind.CACHE and variable.groups:
            return variable.groups[0]
    *_, graph = space.graphs.values()
    sizes = [len(ops) for _, ops in graph.groups]
    return int(np.argmax(sizes)) if sizes else 0


def tensor_labels(space: Space, group: int) -> tuple[int, ...]:
    """Labels that tensor parallelism shards in a group, first choice first.

    Not those of the residual stream, nor what a router ranks (every score would be
    gathered), and only those of some weight (of an argument, in a plain function);
    first the one that most ops of the group have (KV heads, then query heads per KV
    head; the feed-forward index), and among these the one on most weights.
    """
    hub = set().union(*(graph.hub_labels for graph in space.graphs.values()))
    ranked = _ranked_labels(space)
    kinds = {variable.kind for variable in space.variables}
    weight = NodeKind.PARAMETER if NodeKind.PARAMETER in kinds else NodeKind.INPUT
    on_weights: Counter[int] = Counter()
    for variable in space.variables:
        if variable.kind is weight and group in variable.groups:
            on_weights.update({factor.label for factor in variable.factors})
    on_ops: Counter[int] = Counter()
    for op in _ops(space, group):
        on_ops.update({f.label for f in op.factors if not f.batched})
    found = [
        label
        for label in space.role_labels[group]
        if on_weights[label] and on_ops[label] and label not in hub | ranked
    ]
    return tuple(sorted(found, key=lambda x: (-on_ops[x], -on_weights[x])))


def _ranked_labels(space: Space) -> set[int]:
    """Labels that a top-k inside the layers takes the best of."""
    return {
        graph.nodes[edge.source].factors[factor].label
        for graph in space.graphs.values()
        for edge in graph.edges
        if graph.nodes[edge.target].primitive == "top_k" and edge.trips > 1
        for factor, kept in zip(edge.source_factors, edge.target_factors, strict=True)
        if factor is not None and kept is None
    }


def _ops(space: Space, group: int) -> Iterator[Node]:
    """Ops of a group, in all phases."""
    for graph in space.graphs.values():
        for op in graph.groups[group][1]:
            yield graph.nodes[op]


def batch_labels(space: Space) -> frozenset[int]:
    """Labels that scale with the serving batch."""
    return frozenset(
        factor.label
        for variable in space.variables
        for factor in variable.factors
        if factor.batched
    )


def sequence_labels(space: Space, group: int) -> tuple[int, ...]:
    """Labels of token positions that a group has."""
    labels = space.role_labels[group]
    return tuple(label for label in labels if label in space.positions)


def named_degrees(space: Space, picks: np.ndarray) -> dict[str, int]:
    """Degrees of a candidate, by what the main group's ops do with every axis.

    An axis counts as what most ops of the group shard with it. One that they all leave
    alone repeats their work and counts as nothing: the product of the degrees is then
    less than the GPUs. In a plain function an index that every op has
    and none sums over counts as the batch.
    """
    degrees = space.degrees[int(picks[0])]
    found = {"pp": degrees.stages, "dp": 1, "tp": 1, "cp": 1}
    group, choices = main_group(space), space.choices(picks)
    positions = sequence_labels(space, group) if space.groups else ()
    batch = batch_labels(space) or _everywhere(space)
    *_, (phase, graph) = space.graphs.items()
    ops = {(phase, op) for op in graph.groups[group][1]} if graph.groups else set()
    for axis, size in enumerate(a.size for a in degrees.axes):
        votes = {"dp": 0, "tp": 0, "cp": 0}
        for number, variable in enumerate(space.variables):
            if not ops & set(variable.members):
                continue
            state = space.choice_states(number)[choices[number], axis]
            if state:
                label = variable.factors[state - 1].label
                kind = "dp" if label in batch else "cp" if label in positions else "tp"
                votes[kind] += 1
        if any(votes.values()):
            found[max(votes, key=lambda kind: votes[kind])] *= size
    return {**found, **expert_degrees(space, choices, int(picks[0]))}


def _everywhere(space: Space) -> frozenset[int]:
    """Labels that every op has, and none sums over."""
    *_, graph = space.graphs.values()
    kept = [{f.label for f in op.factors if not f.reduction} for op in graph.ops]
    summed = {f.label for op in graph.ops for f in op.factors if f.reduction}
    return frozenset(set.intersection(*kept) - summed) if kept else frozenset()


def by_hand(space: Space, degrees: Mapping[str, int]) -> np.ndarray:
    """The candidate of degrees by column / row rules; the rest is data parallel.

    Experts fold the GPUs of a stage anew: `moe_tp` ways of their hidden index, `moe_ep`
    ways of tokens and experts together, tokens alone over the rest. Where neither is
    given they follow the others: their hidden index over tp.

    Raises:
      ValueError: for an unknown or non-positive degree, or degrees that no mesh of the
        space has.
    """
    for name, value in degrees.items():
        if name not in NAMES:
            raise ValueError(f"unknown degree {name!r}; there are {', '.join(NAMES)}")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a positive integer, got {value!r}")
    stages, tp, cp = (degrees.get(name, 1) for name in ("pp", "tp", "cp"))
    for number, found in enumerate(space.degrees):
        if found.stages != stages:
            continue
        sizes = [axis.size for axis in found.axes]
        split = _split(sizes, (tp, cp))
        rest = found.mesh_size // (tp * cp)
        if split is None or degrees.get("dp", rest) != rest:
            continue
        folded = _split(sizes, (degrees.get("moe_tp", 1), degrees.get("moe_ep", 1)))
        if folded is not None:
            experts = [{"cp": "ep"}.get(use, use) for use in folded]
            given = "moe_tp" in degrees or "moe_ep" in degrees
            picks = with_roles(space, number, split, experts if given else None)
            if given:
                _check_experts(space, picks, degrees)
            return picks
    have = sorted({(d.stages, d.mesh_size) for d in space.degrees})
    raise ValueError(
        f"no mesh has degrees {dict(degrees)}: pp x dp x tp x cp must use all GPUs; "
        "stages x GPUs of a stage can be "
        + ", ".join(f"{stages} x {size}" for stages, size in have)
    )


def _check_experts(space: Space, picks: np.ndarray, degrees: Mapping[str, int]) -> None:
    """Refuse degrees of experts that a model without them, or their number, forbids."""
    found = expert_degrees(space, space.choices(picks), int(picks[0]))
    for name, unit in (("moe_ep", "experts"), ("moe_tp", "parts of an expert")):
        asked = degrees.get(name, 1)
        if found[name] == asked:
            continue
        units = expert_units(space)
        if units is None:
            raise ValueError(f"{name}={asked}: the program has no mixture of experts")
        own = units[name]
        legal = [n for n in range(1, own + 1) if own % n == 0]
        raise ValueError(
            f"{name}={asked} does not divide {own} {unit}: it can be "
            f"{', '.join(map(str, legal))}, as far as the mesh has it; split what is "
            "left with the other of moe_ep and moe_tp"
        )


def _split(sizes: list[int], wanted: tuple[int, int]) -> list[str] | None:
    """Per axis "tp", "cp" or "dp", tp innermost; None if no axes have those products.

    Args:
      wanted: tp and cp.
    """

    def place(axis: int, tp: int, cp: int) -> list[str] | None:
        if axis < 0:
            return [] if tp == cp == 1 else None
        size = sizes[axis]
        tries = [("dp", tp, cp)]
        if size > 1 and cp % size == 0:
            tries.insert(0, ("cp", tp, cp // size))
        if size > 1 and tp % size == 0:
            tries.insert(0, ("tp", tp // size, cp))
        for use, *left in tries:
            found = place(axis - 1, *left)
            if found is not None:
                return [*found, use]
        return None

    return place(len(sizes) - 1, *wanted)


def with_roles(
    space: Space, number: int, uses: Sequence[str], experts: Sequence[str] | None = None
) -> np.ndarray:
    """The candidate in which every axis is used alike in all groups but the experts'.

    Tensor axes shard the group's first tensor label whose units they divide, from the
    innermost axis on, as repairs do.

    Args:
      number: of the degrees.
      uses: per axis "tp", "cp" or "dp".
      experts: per axis a use of `lts.expert_roles.USES`; None for tp where `uses` has
        it, else dp.

    Returns:
      host int32 `[genes]`.
    """
    picks = np.zeros(space.num_genes, np.int32)
    picks[0] = number
    axes, batch = space.degrees[number].axes, batch_labels(space)
    if experts is None:
        experts = ["tp" if use == "tp" else "dp" for use in uses]
    for group in range(len(space.groups)):
        labels, own = space.role_labels[group], expert_labels(space, group)
        units = _units(space, group)
        for axis in reversed(range(len(axes))):
            size, label = axes[axis].size, None
            if size == 1:
                continue
            if own is not None:
                use = experts[axis]
                if use == "ep" and uses[axis] != "dp":
                    use = "ep_positions"
                label = getattr(own, use)
                label = label if label in labels else None
            elif uses[axis] == "tp":
                tensor = tensor_labels(space, group)
                label = next((x for x in tensor if units[x] % size == 0), None)
                if label is not None:
                    units[label] //= size
            elif uses[axis] == "cp":
                label = next(iter(sequence_labels(space, group)), None)
            else:
                label = next((x for x in labels if x in batch), None)
            if label is not None:
                place = space.first_role + group * space.num_axes + axis
                picks[place] = 1 + labels.index(label)
    return picks


def _units(space: Space, group: int) -> dict[int, int]:
    """The ways that a label can be sharded in every op of a group must divide this."""
    units: dict[int, int] = {}
    for op in _ops(space, group):
        for factor in op.factors:
            units[factor.label] = math.gcd(units.get(factor.label, 0), factor.units)
    return units


def by_specs(space: Space, specs: Mapping[str, PartitionSpec]) -> np.ndarray:
    """The candidate in which arguments have given specs and ops follow them.

    An op shards by an axis what its arguments of that axis shard (tokens and experts at
    once, if some shard the one and some the other); values inherit from no role and
    follow the op that writes them.

    Raises:
      ValueError: as `lts.pins.pin`.
    """
    picks = np.zeros(space.num_genes, np.int32)
    given = {gene for gene, _ in pin(space, specs).pinned}
    for gene, value in pin(space, specs).pinned:
        picks[gene] = value
    first, axes = space.first_override, space.num_axes
    held = {(gene - first) // axes for gene in given}
    # What is given comes first: an op takes its weight's layout, not one that another
    # op's result hands on.
    _follow(space, picks, lambda source: source in held)
    rounds = 2 * max(len(graph.nodes) for graph in space.graphs.values())
    for _ in range(rounds):
        before = picks.copy()
        _follow(space, picks, lambda source: True)
        if (picks == before).all():
            break
    return picks


def _follow(space: Space, picks: np.ndarray, leads: Callable[[int], bool]) -> None:
    """Hand the overrides of variables that lead on along their edges, in place."""
    number_of = {m: i for i, v in enumerate(space.variables) for m in v.members}
    axes = space.num_axes
    for phase, graph in space.graphs.items():
        for edge in graph.edges:
            ends = number_of[phase, edge.source], number_of[phase, edge.target]
            if not leads(ends[0]):
                continue
            source, target = (graph.nodes[i] for i in (edge.source, edge.target))
            names = {
                source.factors[i].name: target.factors[j].name
                for i, j in zip(edge.source_factors, edge.target_factors, strict=True)
                if i is not None and j is not None
            }
            here, there = (space.variables[end] for end in ends)
            start, stop = (space.first_override + end * axes for end in ends)
            for axis in range(axes):
                override = int(picks[start + axis])
                if override < 2:
                    continue
                state = int(picks[stop + axis]) - 1
                for part in _parts(here, override - 1):
                    if part in names:
                        state = _joined(there, state, names[part])
                picks[stop + axis] = state + 1


def _parts(variable: Variable, state: int) -> list[str]:
    """Names of the factors that a state shards."""
    covered = coverage(variable.factors)[state]
    return [variable.factors[i].name for i in np.flatnonzero(covered)]


def _joined(variable: Variable, state: int, name: str) -> int:
    """A state that shards `name` besides; the one given (-1: open) if none does."""
    if state < 0:
        names = [factor.name for factor in variable.factors]
        return 1 + names.index(name) if name in names else state
    wanted = {*_parts(variable, state), name}
    for other in range(1, 1 + len(variable.factors)):
        if variable.factors[other - 1].both and {*_parts(variable, other)} == wanted:
            return other
    return state
