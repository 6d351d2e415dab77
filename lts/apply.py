"""An assignment and a function to the same function with shardings inside.

The jaxpr is evaluated again with `with_sharding_constraint` on operands and results of
decision ops, on what meets another value (a cache update), and on every array that
shares a value's layout. Inner jaxprs are rewritten with `make_jaxpr` and the same
primitive is bound again, so scan, remat, cond and while are not re-implemented.

Mesh axes must be Auto; arguments must lie on the mesh before the call.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from lts.layout import spec_states, waypoints
from lts.specs import PhaseSpecs
from lts.tracing import CALLS, Traced
from lts.tracing.flatten import (
    Path,
    called_body,
    closes_over,
    inner_jaxprs,
    is_resized,
    open_jaxpr,
)

AnyMesh = Mesh | AbstractMesh


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

    def moved(
        self,
        value: Any,
        start: PartitionSpec | None,
        spec: PartitionSpec,
        found: dict[tuple[PartitionSpec, ...], Any],
    ) -> Any:
        """A value that lies somewhere (None: unknown), put elsewhere hop by hop.

        Args:
          found: where it was put before, by the way there: consumers that want other
            layouts share the hops that they have in common at first.
        """
        points = (spec,)
        if start is not None:
            axes = self.specs.axes
            ends = spec_states(start, axes), spec_states(spec, axes)
            points = waypoints(*ends, value.shape, axes)[1:]
        for i, point in enumerate(points):
            way = points[: i + 1]
            if way not in found:
                found[way] = self.put(value, point)
            value = found[way]
        return value

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
                items = [new if i == piece[1] else item for i, item in items]
                new = _alike(params[name], items)
            params[name] = new
        return equation.primitive.get_bind_params(params)

    def evaluate(
        self, jaxpr: Any, consts: Sequence, args: Sequence, path: Path
    ) -> list[jax.Array]:
        """Evaluate a jaxpr, every array put to its specs."""
        consts = [self.closed.get(id(const), const) for const in consts]
        values = dict(zip(jaxpr.constvars, consts, strict=True))
        values.update(zip(jaxpr.invars, args, strict=True))
        resharded: dict[Any, dict[tuple[PartitionSpec, ...], Any]] = {}
        entry = self.specs.entries.get(path, {})
        # Where a value was put last.
        lies = {v: entry[i] for i, v in enumerate(jaxpr.invars) if i in entry}
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
                    base, own = _without_units(atom, spec, bases)
                    found = resharded.setdefault(base, {})
                    moved = self.moved(values[base], lies.get(base), own, found)
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
            ends = (*equation.invars[:1], *equation.outvars[:1])
            shapes = [getattr(atom.aval, "shape", ()) for atom in ends]
            if is_resized(equation.primitive.name, *shapes):
                source, out = ends
                if not hasattr(source, "val"):
                    bases[out] = bases.get(source, source)
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


def _alike(found: Sequence[Any], items: Sequence[Any]) -> Any:
    """Items as a tuple of the type of another one, be it a named one."""
    return type(found)(*items) if hasattr(found, "_fields") else tuple(items)


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
