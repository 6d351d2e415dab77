"""Regions: bodies of `scan`, `while` and `cond`, entered once each.

Arrays outside and inside a region are tied by `link` equations. A scan runs its body
`length` times; a while as often as its condition shows or the caller says, else once,
with a note. Of a cond all branches are kept, and the costlier one is priced.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from lts.tracing.program import (
    Equation,
    FlatProgram,
    Path,
    Tensor,
    inner_jaxprs,
    open_jaxpr,
)
from lts.tracing.trips import GivenTrips, counted_trips

FLOPS_PER_BYTE = 300.0
"""What an H100 computes (bf16) while it moves one byte: which branch is costlier."""


class Walker(Protocol):
    """What regions need of the flattener."""

    program: FlatProgram
    trips: GivenTrips

    def tensor(self, aval: Any, is_local: bool) -> Tensor:
        """A new array."""
        ...

    def link(self, source: Tensor, target: Tensor, shift: int, base: dict) -> None:
        """Tie two arrays; dim i of the one is dim i + shift of the other."""
        ...

    def walk(
        self, inner: Any, ins: Sequence[Tensor], trips: int, path: Path, where: Any
    ) -> list[Tensor]:
        """Append the equations of a jaxpr; returns its results."""
        ...


def scan(
    walker: Walker, equation: Any, ins: tuple[Tensor, ...], base: dict, where: Any
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
    inside, trips = [], base["trips"] * equation.params["length"]
    for number, (outer, var, sliced) in enumerate(
        zip(ins, jaxpr.invars, is_x, strict=True)
    ):
        is_carry = not sliced and number >= num_consts
        if not sliced and not is_carry:
            inside.append(outer)
            continue
        # A carry is never local: the body may make it depend on sharded arrays.
        tensor = walker.tensor(var.aval, outer.is_local and not is_carry)
        walker.link(outer, tensor, -1 if sliced else 0, base)
        inside.append(tensor)
        if sliced and not tensor.is_local:
            walker.program.slices.append((tensor, trips))
    results = walker.walk(inner, inside, trips, (*base["path"], *piece), where)
    outs = []
    for number, (var, result, stacked) in enumerate(
        zip(equation.outvars, results, is_y, strict=True)
    ):
        out = walker.tensor(var.aval, result.is_local and stacked)
        if not stacked:
            walker.link(result, inside[num_consts + number], 0, base)
        walker.link(result, out, 1 if stacked else 0, base)
        outs.append(out)
    return outs


def loop(
    walker: Walker, equation: Any, ins: tuple[Tensor, ...], base: dict, where: Any
) -> Sequence[Tensor]:
    """A while loop."""
    pieces = {piece[0]: jaxpr for piece, jaxpr in inner_jaxprs(equation)}
    cond, body = (open_jaxpr(pieces[k]) for k in ("cond_jaxpr", "body_jaxpr"))
    num_carry = len(equation.outvars)
    num_cond = len(cond.invars) - num_carry
    num_body = len(ins) - num_cond - num_carry
    consts, init = ins[:num_cond], ins[num_cond + num_body :]
    carry = []
    for outer, var in zip(init, equation.outvars, strict=True):
        tensor = walker.tensor(var.aval, False)
        walker.link(outer, tensor, 0, base)
        carry.append(tensor)
    firsts, bounds = [t.value for t in init], [t.value for t in consts]
    times = counted_trips(cond, body, firsts, bounds)
    if not times:
        times = walker.trips.of(base["source"], base["name"])
    if times is None:
        place = base["source"] or base["name"] or "loop"
        walker.program.notes.append(
            f"while at {place}: its length is unknown, counted as one trip; pass "
            f"trips={{{place!r}: n}}"
        )
    trips, path = base["trips"] * (times or 1), base["path"]
    where_cond = (*path, "cond_jaxpr")
    walker.program.effects += walker.walk(
        pieces["cond_jaxpr"], [*consts, *carry], trips, where_cond, where
    )
    operands = [*ins[num_cond : num_cond + num_body], *carry]
    results = walker.walk(
        pieces["body_jaxpr"], operands, trips, (*path, "body_jaxpr"), where
    )
    outs = []
    for var, result, inside in zip(equation.outvars, results, carry, strict=True):
        out = walker.tensor(var.aval, False)
        walker.link(result, inside, 0, base)
        walker.link(inside, out, 0, base)
        outs.append(out)
    return outs


def branches(
    walker: Walker, equation: Any, ins: tuple[Tensor, ...], base: dict, where: Any
) -> Sequence[Tensor]:
    """A cond: every branch is kept; `price_branches` says which one counts."""
    outs = [walker.tensor(var.aval, False) for var in equation.outvars]
    spans = []
    for piece, inner in inner_jaxprs(equation):
        path, start = (*base["path"], *piece), len(walker.program.equations)
        results = walker.walk(inner, ins[1:], base["trips"], path, where)
        for result, out in zip(results, outs, strict=True):
            walker.link(result, out, 0, base)
        spans.append((start, len(walker.program.equations)))
    walker.program.branches.append((base["source"], tuple(spans)))
    return outs


def price_branches(program: FlatProgram, flops: Callable[[Equation], float]) -> None:
    """Count the costlier branch of every cond, the others as never run; in place.

    Args:
      flops: of one execution of an equation.
    """

    def cost(span: tuple[int, int]) -> float:
        return sum(
            (flops(eq) / FLOPS_PER_BYTE + _moved_bytes(eq)) * eq.trips
            for eq in program.equations[slice(*span)]
            if eq.trips and eq.primitive != "link"
        )

    for source, spans in program.branches:  # inner ones come first
        costs = [cost(span) for span in spans]
        chosen = costs.index(max(costs))
        for number, (start, stop) in enumerate(spans):
            if number == chosen:
                continue
            for i in range(start, stop):
                program.equations[i] = replace(program.equations[i], trips=0)
        if len(spans) > 1 and min(costs) < max(costs):
            program.notes.append(
                f"cond at {source or 'an unknown line'}: branch {chosen} of "
                f"{len(spans)}, the costlier, is priced; the others run free"
            )


def _moved_bytes(eq: Equation) -> float:
    return sum(t.itemsize * math.prod(t.shape) for t in (*eq.ins, *eq.outs))
