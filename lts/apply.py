"""An assignment and a function to the same function with shardings inside.

The jaxpr is evaluated again with `with_sharding_constraint` on operands and results of
decision ops, on what meets another value (a cache update), and on every array that
shares a value's layout. Inner jaxprs are rewritten with `make_jaxpr` and the same
primitive is bound again, so scan, remat, cond and while are not re-implemented.

Mesh axes must be Auto; arguments must lie on the mesh before the call.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from lts.assignment import Assignment, States
from lts.graph import EXPERTS, Node, OpGraph
from lts.layout import resolved, result_spec, spec_of, state_numbers
from lts.local_ops import Form, local_form
from lts.mesh import MeshAxis
from lts.tracing import CALLS, Traced
from lts.tracing.build import Crossing
from lts.tracing.flatten import (
    Equation,
    Path,
    Tensor,
    called_body,
    closes_over,
    inner_jaxprs,
    is_resized,
    open_jaxpr,
)
from lts.tracing.repeats import extended

AnyMesh = Mesh | AbstractMesh


@dataclass(frozen=True, eq=False, kw_only=True)
class PhaseSpecs:
    """Specs of one traced phase under an assignment.

    Attributes:
      arguments, results: spec of every flat argument and result.
      closed_over: spec of every closed-over array that is an argument.
      before, after: per equation path, specs that operands and results are put to, in
        order; by position.
      entries: per inner jaxpr, specs that its inputs are put to.
      local: per equation path, the form that replaces the equation.
    """

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
        for i, operand in enumerate(eq.ins):
            met = crossing.get((operand.index, eq.outs[0].index)) if eq.outs else None
            if met is not None and len(operand.shape) == len(eq.outs[0].shape):
                spec = _met_spec(met, places, states, axes)
                if spec is not None:
                    before.setdefault(path, {})[i] = spec
    for met in places.draft.crossings:
        if met.broadcast is not None:  # resharded small, before it is broadcast
            found = _met_spec(met, places, states, axes)
            if found is not None:
                before.setdefault(met.broadcast, {})[0] = found
    entries = {
        path: {
            i: spec
            for i, tensor in enumerate(tensors)
            if (spec := value_spec(tensor)) is not None
        }
        for path, tensors in traced.scopes.items()
    }
    program, count = places.draft.program, len(traced.in_paths)
    arguments = tuple(value_spec(t) or PartitionSpec() for t in program.arguments)
    return PhaseSpecs(
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
        # XLA cannot partition a gather whose partial sums scatter onto a dim that is
        # sharded already (it fails after SPMD); such sums are reduced whole first.
        scattered = np.zeros_like(there) if node.primitive == "gather" else there
        first = result_spec(result.factors, node, own, factors, scattered, axes)
        last = spec_of(factors, there, axes)
        if first == last or node.primitive == EXPERTS:  # which sums itself
            results[i] = (last,)
        else:
            results[i] = (first, last)
    return operands, results


def _local_form(
    eq: Equation,
    node: Node,
    states: Sequence[np.ndarray],
    places: Any,
    axes: Sequence[MeshAxis],
) -> Form | None:
    factors, there = places.factors_of(eq.outs[0]), node.results[0].value
    numbers = states[there] if there >= 0 else np.zeros(len(axes), np.int64)
    return local_form(node, states[node.index], factors, numbers, axes)


class _Rewriter:
    """Evaluates a jaxpr again; `closed`: closed-over arrays that are arguments."""

    def __init__(
        self, specs: PhaseSpecs, mesh: AnyMesh, closed: Mapping[int, jax.Array]
    ) -> None:
        self.specs = specs
        self.mesh = mesh
        self.closed = closed

    def put(self, value: Any, spec: PartitionSpec) -> Any:
        return jax.lax.with_sharding_constraint(value, NamedSharding(self.mesh, spec))

    def rewritten(self, inner: Any, path: Path) -> Any:
        """`inner` with constraints, as the type it came in."""
        jaxpr, consts = open_jaxpr(inner), getattr(inner, "consts", ())
        assert jaxpr is not None
        avals = [
            jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type)
            for v in jaxpr.invars
        ]

        def run(*args: jax.Array) -> list[jax.Array]:
            entry = self.specs.entries.get(path, {})
            args = tuple(
                self.put(a, entry[i]) if i in entry else a for i, a in enumerate(args)
            )
            return self.evaluate(jaxpr, consts, args, path)

        closed = jax.make_jaxpr(run)(*avals)
        if isinstance(inner, type(closed)):
            return closed
        assert not closed.consts, f"{path}: an open jaxpr has no place for constants"
        return closed.jaxpr

    def params(self, equation: Any, path: Path) -> dict[str, Any]:
        """Parameters to bind an equation again, inner jaxprs rewritten."""
        params = dict(equation.params)
        for piece, inner in inner_jaxprs(equation):
            new, name = self.rewritten(inner, (*path, *piece)), piece[0]
            if len(piece) == 2:  # one of a tuple of jaxprs: the branches of cond
                items = enumerate(params[name])
                new = tuple(new if i == piece[1] else item for i, item in items)
            params[name] = new
        return equation.primitive.get_bind_params(params)

    def evaluate(
        self, jaxpr: Any, consts: Sequence, args: Sequence, path: Path
    ) -> list[jax.Array]:
        """Evaluate a jaxpr, every array put to its specs."""
        consts = [self.closed.get(id(const), const) for const in consts]
        values = dict(zip(jaxpr.constvars, consts, strict=True))
        values.update(zip(jaxpr.invars, args, strict=True))
        resharded: dict[tuple[Any, PartitionSpec], Any] = {}
        lies: dict[Any, PartitionSpec] = {}  # where a value was put last
        bases: dict[Any, Any] = {}  # the same array with other dims of extent 1

        def read(atom: Any) -> Any:
            return atom.val if hasattr(atom, "val") else values[atom]

        for index, equation in enumerate(jaxpr.eqns):
            here = (*path, index)
            before = self.specs.before.get(here, {})
            operands = []
            for number, atom in enumerate(equation.invars):
                value, spec = read(atom), before.get(number)
                if spec is None or hasattr(atom, "val"):
                    operands.append(value)
                    continue
                if lies.get(atom) != spec:
                    # One reshard for all consumers that want the same layout.
                    base, own = _without_units(atom, spec, bases)
                    if (base, own) not in resharded:
                        resharded[base, own] = self.put(values[base], own)
                    moved = resharded[base, own]
                    value = self.put(moved.reshape(value.shape), spec)
                operands.append(value)
            with equation.ctx.manager:
                outs = self.bound(equation, operands, here)
            after = self.specs.after.get(here, {})
            for number, (var, out) in enumerate(
                zip(equation.outvars, outs, strict=True)
            ):
                for spec in after.get(number, ()):
                    out = self.put(out, spec)
                    lies[var] = spec
                values[var] = out
            source = equation.invars[0] if equation.invars else None
            if hasattr(source, "count") and is_resized(
                equation.primitive.name,
                *(atom.aval.shape for atom in (source, *equation.outvars)),
            ):
                bases[equation.outvars[0]] = bases.get(source, source)
        return [read(atom) for atom in jaxpr.outvars]

    def bound(self, equation: Any, operands: Sequence, path: Path) -> Sequence:
        """Results of one equation."""
        form = self.specs.local.get(path)
        if form is not None:
            outs = form(self.mesh, equation, operands, equation.params)
            return outs if equation.primitive.multiple_results else [outs]
        body = called_body(equation, CALLS)
        if body is not None and closes_over(body[1], self.closed):
            # What it closes over is an argument now: evaluated here, in its sight.
            piece, inner = body
            consts = getattr(inner, "consts", ())
            jaxpr = open_jaxpr(inner)
            return self.evaluate(jaxpr, consts, operands, (*path, *piece))
        outs = equation.primitive.bind(*operands, **self.params(equation, path))
        return outs if equation.primitive.multiple_results else [outs]


def _without_units(
    atom: Any, spec: PartitionSpec, bases: Mapping[Any, Any]
) -> tuple[Any, PartitionSpec]:
    """The array that a value is but for dims of extent 1, and its spec."""
    base = bases.get(atom, atom)
    entries = (*spec, *(None,) * (len(atom.aval.shape) - len(spec)))
    kept = iter([e for e, n in zip(entries, atom.aval.shape, strict=True) if n != 1])
    own = [None if n == 1 else next(kept) for n in base.aval.shape]
    while own and own[-1] is None:
        own.pop()
    return base, PartitionSpec(*own)


def constrained(
    traced: Traced, specs: PhaseSpecs, mesh: AnyMesh
) -> Callable[..., list[jax.Array]]:
    """The traced program on flat arguments and closed-over arrays, constrained."""
    ids = [id(array) for array in traced.closed_over.values()]

    def run(*leaves: jax.Array) -> list[jax.Array]:
        args, closed = leaves[: len(traced.in_paths)], leaves[len(traced.in_paths) :]
        rewriter = _Rewriter(specs, mesh, dict(zip(ids, closed, strict=True)))
        return rewriter.evaluate(traced.closed.jaxpr, traced.closed.consts, args, ())

    return run


def jitted(
    traced: Traced, specs: PhaseSpecs, mesh: AnyMesh, donate: Sequence[int] = ()
) -> Any:
    """`jax.jit` of the constrained program on flat arguments and closed-over arrays.

    Args:
      donate: numbers of the flat arguments to donate.
    """

    def put(found: Sequence[PartitionSpec]) -> list[NamedSharding]:
        return [NamedSharding(mesh, spec) for spec in found]

    return jax.jit(
        constrained(traced, specs, mesh),
        in_shardings=tuple(put([*specs.arguments, *specs.closed_over])),
        out_shardings=put(specs.results),
        donate_argnums=tuple(donate),
        keep_unused=True,
    )


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
