"""A jaxpr as one flat list of equations, calls inlined and regions entered.

`flatten` walks through jit, remat and custom-derivative calls as if they were not
there, but for functions that have a rule of their own (`lts.tracing.decide.CALLS`).
`scan`, `while` and `cond` are regions: their bodies are entered once, with a trip
count, and `Equation`s named `link` say which array outside is which array inside.

Inner jaxprs are found by what they look like, never by parameter name: names and types
differ between versions of jax. The only names read are scan's `length` and the two
jaxprs of `while`.
"""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Path = tuple[int | str, ...]
"""Alternates equation index and parameter name (and number, in a tuple of jaxprs)."""

OPAQUE = frozenset({"pallas_call", "shard_map"})
"""Their bodies see local arrays: never entered, never rewritten."""


@dataclass(eq=False, kw_only=True)
class Tensor:
    """An array of the flat program."""

    index: int
    shape: tuple[int, ...]
    dtype: Any
    is_local: bool  # depends on no shardable array: computed by every device

    @property
    def itemsize(self) -> float:
        """Bytes per element, half a one for 4-bit types; 4 for extended dtypes."""
        if jnp.issubdtype(self.dtype, jax.dtypes.extended):
            return 4
        for kind, info in ((jnp.floating, jnp.finfo), (jnp.integer, jnp.iinfo)):
            if jnp.issubdtype(self.dtype, kind):
                return info(self.dtype).bits / 8
        return np.dtype(self.dtype).itemsize


@dataclass(eq=False, kw_only=True)
class Equation:
    """One equation of the flat program.

    `links` is set on the pseudo-primitive `link` only: pairs (dim in, dim out) of its
    single operand and result.
    """

    primitive: str
    params: Mapping[str, Any]
    ins: tuple[Tensor, ...]
    outs: tuple[Tensor, ...]
    trips: int
    path: Path
    name: str
    source: str
    links: tuple[tuple[int, int], ...] = ()


@dataclass(kw_only=True)
class FlatProgram:
    """The flat program: equations, arguments, results and closed-over constants."""

    equations: list[Equation]
    arguments: list[Tensor]
    results: list[Tensor]
    constants: list[Tensor] = field(default_factory=list)
    scopes: dict[Path, list[Tensor]] = field(default_factory=dict)  # inputs of bodies
    notes: list[str] = field(default_factory=list)


def open_jaxpr(value: Any) -> Any:
    """The open jaxpr of a Jaxpr or ClosedJaxpr; None for anything else."""
    jaxpr = getattr(value, "jaxpr", value)
    return jaxpr if hasattr(jaxpr, "eqns") else None


def inner_jaxprs(equation: Any) -> Iterator[tuple[Path, Any]]:
    """Jaxpr-valued parameters of an equation: piece of a path, jaxpr."""
    if equation.primitive.name in OPAQUE:
        return
    for name, value in equation.params.items():
        if open_jaxpr(value) is not None:
            yield (name,), value
        elif isinstance(value, tuple):
            for number, item in enumerate(value):
                if open_jaxpr(item) is not None:
                    yield (name, number), item


def _is_call(equation: Any, body: Any) -> bool:
    """Whether an equation runs its body on its operands, as jit and remat do.

    Others (a reduction with its combiner) give the body something else.
    """

    def shapes(atoms: Any) -> list[Any]:
        return [getattr(atom.aval, "shape", None) for atom in atoms]

    return shapes(equation.invars) == shapes(body.invars) and (
        shapes(equation.outvars) == shapes(body.outvars)
    )


def called_name(equation: Any, calls: Collection[str]) -> str:
    """What an equation does: its primitive, or the function that it calls."""
    name = equation.primitive.name
    called = str(equation.params.get("name")) if name == "jit" else name
    return called if called in calls else name


def source_line(equation: Any) -> str:
    """`file:line` of the innermost frame outside jax and this package's tracer."""
    traceback = equation.source_info.traceback
    for frame in traceback.frames if traceback is not None else ():
        name = frame.file_name.replace("\\", "/")
        if "/jax/" not in name and "/lts/tracing/" not in name:
            return f"{name.rsplit('/', 1)[-1]}:{frame.line_num}"
    return ""


def _scopes(equation: Any) -> tuple[str, ...]:
    """Named scopes of an equation; einsum adds its own pattern, which is dropped."""
    stack = str(equation.source_info.name_stack)
    return tuple(part for part in stack.split("/") if part and "->" not in part)


class _Flattener:
    def __init__(self, calls: Collection[str]) -> None:
        self.calls = calls
        self.program = FlatProgram(equations=[], arguments=[], results=[])
        self.numbers = itertools.count()

    def tensor(self, aval: Any, is_local: bool) -> Tensor:
        shape = tuple(getattr(aval, "shape", ()))
        return Tensor(
            index=next(self.numbers),
            shape=shape,
            dtype=getattr(aval, "dtype", np.dtype("float32")),
            is_local=is_local or all(extent == 1 for extent in shape),
        )

    def emit(self, outs: Sequence[Tensor], **fields: Any) -> None:
        self.program.equations.append(Equation(outs=tuple(outs), **fields))

    def link(self, source: Tensor, target: Tensor, shift: int, base: dict) -> None:
        """Tie `source` to `target`; dim i of the one is dim i + shift of the other."""
        rank = min(len(source.shape), len(target.shape))
        first = (max(0, -shift), max(0, shift))
        links = tuple((first[0] + i, first[1] + i) for i in range(rank))
        if source.is_local and target.is_local:
            return
        fields = {**base, "primitive": "link", "params": {}, "ins": (source,)}
        self.emit([target], links=links, **fields)

    def walk(
        self, inner: Any, ins: Sequence[Tensor], trips: int, path: Path, where: Any
    ) -> list[Tensor]:
        """Append the equations of a jaxpr; returns its results."""
        jaxpr = open_jaxpr(inner)
        values: dict[Any, Tensor] = dict(zip(jaxpr.invars, ins, strict=True))
        self.program.scopes[path] = list(ins)
        for var in jaxpr.constvars:
            tensor = self.tensor(var.aval, True)
            values[var] = tensor
            self.program.constants.append(tensor)

        def read(atom: Any) -> Tensor:
            if hasattr(atom, "val"):  # a literal
                return self.tensor(atom.aval, True)
            return values[atom]

        scopes, outer_source = where
        for index, equation in enumerate(jaxpr.eqns):
            names = (*scopes, *_scopes(equation))
            source = source_line(equation) or outer_source
            here = (*path, index)
            operands = tuple(read(atom) for atom in equation.invars)
            base = {
                "trips": trips,
                "path": here,
                "name": "/".join(names),
                "source": source,
            }
            outs = self.equation(equation, operands, base, (names, source))
            for var, out in zip(equation.outvars, outs, strict=True):
                values[var] = out
        return [read(atom) for atom in jaxpr.outvars]

    def equation(
        self, equation: Any, ins: tuple[Tensor, ...], base: dict, where: Any
    ) -> Sequence[Tensor]:
        name = called_name(equation, self.calls)
        inner = list(inner_jaxprs(equation))
        regions = {"scan": self.scan, "while": self.loop, "cond": self.branches}
        if name in regions:
            return regions[name](equation, ins, base, where)
        is_op = name != equation.primitive.name
        if (
            not is_op
            and len(inner) == 1
            and _is_call(equation, open_jaxpr(inner[0][1]))
        ):
            piece, jaxpr = inner[0]
            path = (*base["path"], *piece)
            return self.walk(jaxpr, ins, base["trips"], path, where)
        local = all(tensor.is_local for tensor in ins)
        outs = tuple(self.tensor(var.aval, local) for var in equation.outvars)
        params = equation.params
        self.emit(outs, primitive=name, params=params, ins=ins, **base)
        return outs

    def scan(
        self, equation: Any, ins: tuple[Tensor, ...], base: dict, where: Any
    ) -> Sequence[Tensor]:
        """A scan: xs and ys have one dim more outside, the carry is one array."""
        ((piece, inner),) = inner_jaxprs(equation)
        jaxpr = open_jaxpr(inner)
        is_x = [
            len(outer.shape) == len(var.aval.shape) + 1
            for outer, var in zip(ins, jaxpr.invars, strict=True)
        ]
        is_y = [
            len(out.aval.shape) == len(var.aval.shape) + 1
            for out, var in zip(equation.outvars, jaxpr.outvars, strict=True)
        ]
        num_carry = is_y.count(False)
        num_consts = is_x.count(False) - num_carry
        inside = []
        for number, (outer, var, sliced) in enumerate(
            zip(ins, jaxpr.invars, is_x, strict=True)
        ):
            is_carry = not sliced and number >= num_consts
            if not sliced and not is_carry:
                inside.append(outer)
                continue
            # A carry is never local: the body may make it depend on sharded arrays.
            tensor = self.tensor(var.aval, outer.is_local and not is_carry)
            self.link(outer, tensor, -1 if sliced else 0, base)
            inside.append(tensor)
        length = equation.params["length"]
        path = (*base["path"], *piece)
        results = self.walk(inner, inside, base["trips"] * length, path, where)
        outs = []
        for number, (var, result, stacked) in enumerate(
            zip(equation.outvars, results, is_y, strict=True)
        ):
            out = self.tensor(var.aval, result.is_local and stacked)
            if not stacked:
                self.link(result, inside[num_consts + number], 0, base)
            self.link(result, out, 1 if stacked else 0, base)
            outs.append(out)
        return outs

    def loop(
        self, equation: Any, ins: tuple[Tensor, ...], base: dict, where: Any
    ) -> Sequence[Tensor]:
        """A while loop: trips unknown, counted once and noted."""
        pieces = {piece[0]: jaxpr for piece, jaxpr in inner_jaxprs(equation)}
        num_carry = len(equation.outvars)
        num_cond = len(open_jaxpr(pieces["cond_jaxpr"]).invars) - num_carry
        num_body = len(ins) - num_cond - num_carry
        carry = []
        for outer, var in zip(
            ins[num_cond + num_body :], equation.outvars, strict=True
        ):
            tensor = self.tensor(var.aval, False)
            self.link(outer, tensor, 0, base)
            carry.append(tensor)
        note = f"while at {base['source'] or base['path']}: trips unknown, counted once"
        self.program.notes.append(note)
        trips, path = base["trips"], base["path"]
        consts = ins[:num_cond]
        where_cond = (*path, "cond_jaxpr")
        self.walk(pieces["cond_jaxpr"], [*consts, *carry], trips, where_cond, where)
        operands = [*ins[num_cond : num_cond + num_body], *carry]
        results = self.walk(
            pieces["body_jaxpr"], operands, trips, (*path, "body_jaxpr"), where
        )
        outs = []
        for var, result, inside in zip(equation.outvars, results, carry, strict=True):
            out = self.tensor(var.aval, False)
            self.link(result, inside, 0, base)
            self.link(inside, out, 0, base)
            outs.append(out)
        return outs

    def branches(
        self, equation: Any, ins: tuple[Tensor, ...], base: dict, where: Any
    ) -> Sequence[Tensor]:
        """A cond: every branch is kept and counted once."""
        outs = [self.tensor(var.aval, False) for var in equation.outvars]
        for piece, inner in inner_jaxprs(equation):
            path = (*base["path"], *piece)
            results = self.walk(inner, ins[1:], base["trips"], path, where)
            for result, out in zip(results, outs, strict=True):
                self.link(result, out, 0, base)
        return outs


def flatten(closed: Any, calls: Collection[str] = ()) -> FlatProgram:
    """The flat program of a closed jaxpr (the result of `jax.make_jaxpr`).

    Args:
      calls: names of functions under `jax.jit` that stay one equation each.
    """
    flattener = _Flattener(calls)
    program = flattener.program
    program.arguments = [
        flattener.tensor(var.aval, len(var.aval.shape) == 0)
        for var in closed.jaxpr.invars
    ]
    program.results = flattener.walk(closed, program.arguments, 1, (), ((), ""))
    nbytes = int(sum(t.itemsize * np.prod(t.shape) for t in program.constants))
    if nbytes > 2**20:
        program.notes.append(
            f"{nbytes:,} bytes of closed-over arrays are replicated on every device; "
            "pass them as arguments to have them sharded"
        )
    return program
