"""A jaxpr as one flat list of equations, calls inlined and regions entered.

`flatten` walks through jit, remat and custom-derivative calls as if they were not
there, but for functions that have a rule of their own (`lts.tracing.decide.CALLS`).
`scan`, `while` and `cond` are regions (`regions.py`): their bodies are entered once,
with a trip count, and equations named `link` say which array outside is which inside.

Arrays that the function closes over become arguments, so that they get a layout.

Inner jaxprs are found by what they look like, never by parameter name: names and types
differ between versions of jax. The only names read are scan's `length` and the two
jaxprs of `while`.
"""

import itertools
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from lts.tracing import regions
from lts.tracing.program import (
    OPAQUE,
    RESULTS,
    Equation,
    FlatProgram,
    Path,
    Tensor,
    inner_jaxprs,
    is_resized,
    open_jaxpr,
)
from lts.tracing.sources import scopes, source_line
from lts.tracing.trips import GivenTrips, Trips

__all__ = [
    "OPAQUE",
    "RESULTS",
    "Equation",
    "FlatProgram",
    "Path",
    "Tensor",
    "called_body",
    "called_name",
    "closes_over",
    "flatten",
    "inner_jaxprs",
    "is_call",
    "is_resized",
    "open_jaxpr",
]

HOISTED_BYTES = 1024
"""Closed-over arrays from this size on become arguments; smaller ones are tables."""

REGIONS = {"scan": regions.scan, "while": regions.loop, "cond": regions.branches}


def is_call(equation: Any, body: Any) -> bool:
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


def called_body(equation: Any, calls: Collection[str]) -> tuple[Path, Any] | None:
    """Piece of path and jaxpr of what an equation calls; None if it is an op.

    Functions that are one op (`calls`) and regions call nothing.
    """
    name, inner = called_name(equation, calls), list(inner_jaxprs(equation))
    if name != equation.primitive.name or name in REGIONS or len(inner) != 1:
        return None
    return inner[0] if is_call(equation, open_jaxpr(inner[0][1])) else None


def closes_over(inner: Any, ids: Collection[int]) -> bool:
    """Whether a jaxpr, or one that it calls, closes over arrays of these ids."""
    if any(id(value) in ids for value in getattr(inner, "consts", ())):
        return True
    return any(
        closes_over(body[1], ids)
        for equation in open_jaxpr(inner).eqns
        if (body := called_body(equation, ())) is not None
    )


class _Flattener:
    """Walks a jaxpr; `lts.tracing.regions` knows what to do at scan, while and cond."""

    def __init__(self, calls: Collection[str], trips: Trips) -> None:
        self.calls = calls
        self.trips = GivenTrips(given=trips)
        self.program = FlatProgram(equations=[], arguments=[], results=[])
        self.hoisted: dict[int, Tensor] = {}  # by id of the closed-over array
        self.open_regions = 0

    def tensor(self, aval: Any, is_local: bool) -> Tensor:
        """A new array."""
        shape = tuple(getattr(aval, "shape", ()))
        return Tensor(
            index=next(self.program.numbers),
            shape=shape,
            dtype=getattr(aval, "dtype", np.dtype("float32")),
            is_local=is_local or all(extent == 1 for extent in shape),
        )

    def literal(self, atom: Any) -> Tensor:
        """An array that stands in the program itself."""
        tensor = self.tensor(atom.aval, True)
        if not tensor.shape:
            tensor.value = atom.val
        return tensor

    def constant(self, var: Any, value: Any) -> Tensor:
        """A closed-over array: an argument if it is large and outside all regions."""
        if id(value) in self.hoisted:
            return self.hoisted[id(value)]
        if getattr(value, "nbytes", 0) < HOISTED_BYTES or self.open_regions:
            tensor = self.tensor(var.aval, True)
            self.program.constants.append(tensor)
            return tensor
        tensor = self.tensor(var.aval, False)
        self.hoisted[id(value)] = tensor
        self.program.closed_over.append(value)
        return tensor

    def emit(self, outs: Sequence[Tensor], **fields: Any) -> None:
        """Append an equation."""
        self.program.equations.append(Equation(outs=tuple(outs), **fields))

    def link(self, source: Tensor, target: Tensor, shift: int, base: dict) -> None:
        """Tie `source` to `target`; dim i of the one is dim i + shift of the other."""
        if source.is_local and target.is_local:
            self.program.passed.append((source, target))
            return
        rank = min(len(source.shape), len(target.shape))
        first = (max(0, -shift), max(0, shift))
        links = tuple((first[0] + i, first[1] + i) for i in range(rank))
        fields = {**base, "primitive": "link", "params": {}, "ins": (source,)}
        self.emit([target], links=links, **fields)

    def walk(
        self, inner: Any, ins: Sequence[Tensor], trips: int, path: Path, where: Any
    ) -> list[Tensor]:
        """Append the equations of a jaxpr; returns its results."""
        jaxpr = open_jaxpr(inner)
        values: dict[Any, Tensor] = dict(zip(jaxpr.invars, ins, strict=True))
        self.program.scopes[path] = list(ins)
        consts = getattr(inner, "consts", ())
        for var, value in itertools.zip_longest(jaxpr.constvars, consts):
            values[var] = self.constant(var, value)

        def read(atom: Any) -> Tensor:
            return self.literal(atom) if hasattr(atom, "val") else values[atom]

        outer, outer_source = where
        for index, equation in enumerate(jaxpr.eqns):
            names = (*outer, *scopes(equation))
            source = source_line(equation) or outer_source
            operands = tuple(read(atom) for atom in equation.invars)
            base = {
                "trips": trips,
                "path": (*path, index),
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
        """Append an equation, or those of its body; returns its results."""
        name = called_name(equation, self.calls)
        if name in REGIONS:
            self.open_regions += 1
            outs = REGIONS[name](self, equation, ins, base, where)
            self.open_regions -= 1
            self.program.scopes[*base["path"], RESULTS] = list(outs)
            return outs
        body = called_body(equation, self.calls)
        if body is not None:
            piece, jaxpr = body
            path = (*base["path"], *piece)
            outs = self.walk(jaxpr, ins, base["trips"], path, where)
            self.program.scopes[*base["path"], RESULTS] = outs
            return outs
        local = all(tensor.is_local for tensor in ins)
        outs = tuple(self.tensor(var.aval, local) for var in equation.outvars)
        if name == "convert_element_type":
            outs[0].value = ins[0].value
        params = equation.params
        if equation.effects:
            self.program.effects += outs
        self.emit(outs, primitive=name, params=params, ins=ins, **base)
        return outs


def flatten(
    closed: Any, calls: Collection[str] = (), trips: Trips = None
) -> FlatProgram:
    """The flat program of a closed jaxpr (the result of `jax.make_jaxpr`).

    Args:
      calls: names of functions under `jax.jit` that stay one equation each.
      trips: of while loops whose length does not show.
    """
    flattener = _Flattener(calls, trips)
    program = flattener.program
    program.arguments = [
        flattener.tensor(var.aval, len(var.aval.shape) == 0)
        for var in closed.jaxpr.invars
    ]
    program.results = flattener.walk(closed, program.arguments, 1, (), ((), ""))
    program.loops = flattener.trips.loops
    program.arguments += flattener.hoisted.values()
    nbytes = int(sum(t.itemsize * np.prod(t.shape) for t in program.constants))
    if nbytes > 2**20:
        program.notes.append(
            f"{nbytes:,} bytes of closed-over arrays are replicated on every device; "
            "pass them as arguments to have them sharded"
        )
    return program
