"""Where every array of a traced phase lies under an assignment."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax.sharding import PartitionSpec

from lts.assignment import Assignment, States
from lts.graph import Node, OpGraph
from lts.layout import (
    op_ends,
    resolved,
    scatters_sums,
    spec_of,
    state_numbers,
    waypoints,
)
from lts.local_ops import Form, local_form, whole_form
from lts.local_updates import update_form
from lts.mesh import MeshAxis
from lts.scattered import scatter_form
from lts.tracing import Traced
from lts.tracing.build import Crossing
from lts.tracing.flatten import RESULTS, Equation, Path, Tensor
from lts.tracing.repeats import extended


@dataclass(frozen=True, eq=False, kw_only=True)
class PhaseSpecs:
    """Specs of one traced phase under an assignment.

    Attributes:
      axes: of the mesh.
      arguments, results: spec of every flat argument and result.
      closed_over: spec of every closed-over array that is an argument.
      before, after: per equation path, specs that operands and results are put to, in
        order; by position.
      entries: per inner jaxpr, specs that its inputs are put to.
      local: per equation path, the form that replaces the equation.
    """

    axes: tuple[MeshAxis, ...]
    arguments: tuple[PartitionSpec, ...]
    closed_over: tuple[PartitionSpec, ...]
    results: tuple[PartitionSpec, ...]
    before: Mapping[Path, Mapping[int, PartitionSpec]]
    after: Mapping[Path, Mapping[int, tuple[PartitionSpec, ...]]]
    entries: Mapping[Path, Mapping[int, PartitionSpec]]
    local: Mapping[Path, Form] = field(default_factory=dict)


def matched_states(graph: OpGraph, states: Mapping[str, States]) -> list[np.ndarray]:
    """States of every node of a graph, found in an assignment by name.

    A name with a number (`attention/query#3`, the fourth of a Python loop over layers)
    that the assignment lacks takes the states of its first: unrolled layers follow
    their scanned twin. Likewise a parameter in a list of layers.

    Raises:
      ValueError: if a node with factors has no counterpart.
    """
    width = len(next(iter(states.values()), ()))
    found = []
    for node in graph.nodes:
        own = next((states[n] for n in _aliases(node.name) if n in states), None)
        if own is None:
            if node.factors:
                raise ValueError(
                    f"the plan says nothing of {node.name!r}; it was made for another "
                    "function. Search again, or apply it to the function it was "
                    "made for"
                )
            own = (None,) * width
        names = {factor.name for factor in node.factors}
        kept = tuple(name if name in names else None for name in own)
        found.append(state_numbers(node, kept))
    return found


def _aliases(name: str) -> list[str]:
    """Names that may stand for a node, nearest first.

    Itself, the first of its name (`attention/query#2:` -> `attention/query:`), and that
    without a layer's number: its last number (of several, the place in a unit of
    layers comes first), or all of them.
    """
    first = re.sub(r"#\d+", "", name)
    parts = first.split("/")
    numbers = [i for i, part in enumerate(parts) if part.isdigit()]
    without_last = [part for i, part in enumerate(parts) if i not in numbers[-1:]]
    without_any = [part for i, part in enumerate(parts) if i not in numbers]
    return [name, first, "/".join(without_last), "/".join(without_any)]


def phase_specs(
    traced: Traced, graph: OpGraph, states: Sequence[np.ndarray], assignment: Assignment
) -> PhaseSpecs:
    """Specs of everything in a traced phase.

    Args:
      graph: the traced graph with its factors named.
      states: per node of `graph`, as `matched_states` gives them.
    """
    axes = assignment.degrees.axes
    places = traced.places

    def value_spec(tensor: Tensor) -> PartitionSpec | None:
        node = places.node_of(tensor)
        if node is None:
            return None
        return spec_of(places.factors_of(tensor), states[node], axes)

    before: dict[Path, dict[int, PartitionSpec]] = {}
    after: dict[Path, dict[int, tuple[PartitionSpec, ...]]] = {}
    local: dict[Path, Form] = {}
    ops = {d.equation.path: i for i, d in enumerate(places.draft.decisions)}
    crossing = {(c.source.index, c.target.index): c for c in places.draft.crossings}
    for path, eq in traced.equations.items():
        if path in ops:
            node = graph.nodes[ops[path]]
            if node.fixed:  # its own specs say where operands and results lie
                continue
            before[path], after[path] = _op_specs(eq, node, states, places, axes)
            form = _local_form(eq, node, states, places, axes)
            if form is not None:
                local[path] = form
            continue
        outs = {i: value_spec(out) for i, out in enumerate(eq.outs)}
        after[path] = {i: (spec,) for i, spec in outs.items() if spec is not None}
        form = whole_form(eq.primitive, len(eq.ins), len(eq.outs), axes)
        if form is not None:
            local[path] = form
        for i, operand in enumerate(eq.ins):
            met = crossing.get((operand.index, eq.outs[0].index)) if eq.outs else None
            if met is not None and len(operand.shape) == len(eq.outs[0].shape):
                spec = _met_spec(met, places, states, axes)
                if spec is not None:
                    before.setdefault(path, {})[i] = spec
    for eq in places.draft.updates:
        found = after[eq.path].get(0)
        if found is not None:
            array, new = eq.ins[:2]
            written = before.get(eq.path, {}).get(1, PartitionSpec())
            form = update_form(array.shape, new.shape, found[-1], written)
            before.setdefault(eq.path, {})[1] = written
            local[eq.path] = form
    for met in places.draft.crossings:
        if met.broadcast is not None:  # resharded small, before it is broadcast
            found = _met_spec(met, places, states, axes)
            if found is not None:
                before.setdefault(met.broadcast, {})[0] = found
    entries: dict[Path, dict[int, PartitionSpec]] = {}
    for path, tensors in traced.scopes.items():
        specs = {i: value_spec(tensor) for i, tensor in enumerate(tensors)}
        found = {i: spec for i, spec in specs.items() if spec is not None}
        if path[-1:] == (RESULTS,):
            after[path[:-1]] = {i: (spec,) for i, spec in found.items()}
        else:
            # What every device computes itself (a mask) stays whole: left open, it
            # takes the layout of one of its readers and is gathered for the others.
            whole = {
                i: PartitionSpec()
                for i, tensor in enumerate(tensors)
                if tensor.is_local and math.prod(tensor.shape) > 1
            }
            entries[path] = {**whole, **found}
    program, count = places.draft.program, len(traced.in_paths)
    arguments = tuple(value_spec(t) or PartitionSpec() for t in program.arguments)
    return PhaseSpecs(
        axes=axes,
        arguments=arguments[:count],
        closed_over=arguments[count:],
        results=tuple(value_spec(t) or PartitionSpec() for t in program.results),
        before=extended(before, traced.twins),
        after=extended(after, traced.twins),
        entries=entries,
        local=extended(local, traced.twins),
    )


def _met_spec(
    crossing: Crossing, places: Any, states, axes: Sequence[MeshAxis]
) -> PartitionSpec | None:
    """Spec that the source of a crossing takes where it meets the other value."""
    node = places.node_of(crossing.target)
    if node is None or places.node_of(crossing.source) is None:
        return None
    factors = places.factors_of(crossing.target)
    dims = [None if j is None else factors[j] for j in crossing.dims]
    return spec_of(dims, states[node], axes)


def _op_specs(
    eq: Equation,
    node: Node,
    states: Sequence[np.ndarray],
    places: Any,
    axes: Sequence[MeshAxis],
) -> tuple[dict[int, PartitionSpec], dict[int, tuple[PartitionSpec, ...]]]:
    own = states[node.index]
    operands = {
        i: spec_of(operand.factors, resolved(own, node, operand.factors), axes)
        for i, operand in enumerate(node.operands)
        if operand.value >= 0
    }
    results: dict[int, tuple[PartitionSpec, ...]] = {}
    for i, (result, tensor) in enumerate(zip(node.results, eq.outs, strict=True)):
        if result.value < 0:
            continue
        there, factors = states[result.value], places.factors_of(tensor)
        ends = op_ends(result.factors, node, own, factors, there)
        even = scatters_sums(node.primitive, result.array.shape, *ends, axes)
        results[i] = waypoints(*ends, result.array.shape, axes, scatters=even)
    return operands, results


def _local_form(
    eq: Equation,
    node: Node,
    states: Sequence[np.ndarray],
    places: Any,
    axes: Sequence[MeshAxis],
) -> Form | None:
    factors, numbers = (), np.zeros(len(axes), np.int64)
    if node.results:  # a callback may have none
        factors = places.factors_of(eq.outs[0])
        there = node.results[0].value
        numbers = states[there] if there >= 0 else numbers
    place = (node, states[node.index], factors, numbers, axes)
    return scatter_form(*place) or local_form(*place)


def without_unit_axes(assignment: Assignment) -> Assignment:
    """The assignment with mesh axes of size 1 left out; one is kept if all are."""
    axes = assignment.degrees.axes
    keep = [i for i, axis in enumerate(axes) if axis.size > 1] or [0]

    def kept(states: States) -> States:
        return tuple(states[i] for i in keep)

    return Assignment(
        degrees=dataclasses.replace(
            assignment.degrees, axes=tuple(axes[i] for i in keep)
        ),
        roles={group: kept(states) for group, states in assignment.roles.items()},
        states={
            phase: {name: kept(states) for name, states in nodes.items()}
            for phase, nodes in assignment.states.items()
        },
    )
