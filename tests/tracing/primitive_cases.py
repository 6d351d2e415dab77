"""Small programs per primitive of jax, over ranks, extents and parameters.

`cases()` lists them. `traced(case)` gives the one equation of the primitive that a case
is about, alone: as our flat `Equation`, and as StableHLO text whose arguments are the
operands that are no literals. Extents are small and mostly differ within an array, so
that dims are told apart; some are multiples of 8, some 1, 3, 5, 6 or 7.

Left out: regions and calls, whose bodies the tracer reads; what reads no array; opaque
operations, which have no rule until a user registers one; LAPACK's functions that jax
does not lower for TPU (eig, schur, hessenberg, tridiagonal, geqrf, ormqr).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import Literal

from lts.shardy import stablehlo_text
from lts.tracing.flatten import flatten
from lts.tracing.program import Equation, inner_jaxprs, open_jaxpr
from tests.tracing import numeric_cases, shape_cases


@dataclass(frozen=True, kw_only=True)
class Case:
    """A function of arrays that binds `primitive`; `number` tells cases apart."""

    primitive: str
    number: int
    function: Callable[..., Any]
    args: tuple[jax.ShapeDtypeStruct, ...]

    @property
    def name(self) -> str:
        """`dot_general-2`."""
        return f"{self.primitive}-{self.number}"


@dataclass(frozen=True, kw_only=True)
class TracedCase:
    """The equation of a case, alone.

    Attributes:
      equation: as the tracer sees it; its operands include literals.
      bound: as jax has it.
      arguments: numbers of the operands that are arguments of the text.
      function: the equation as a function of them; it returns what `bind` does.
      args: their shapes and dtypes.
      text: StableHLO, lowered for TPU.
    """

    case: Case
    equation: Equation
    bound: Any
    arguments: tuple[int, ...]
    function: Callable[..., Any]
    args: tuple[jax.ShapeDtypeStruct, ...]
    text: str

    @property
    def shapes(self) -> str:
        """`f32[8,16], f32[16,32] -> f32[8,32]`, without what is a literal."""
        ins = [self.equation.ins[number] for number in self.arguments]
        return " -> ".join(
            ", ".join(f"{tensor.dtype}{list(tensor.shape)}" for tensor in tensors)
            for tensors in (ins, self.equation.outs)
        )


def cases() -> list[Case]:
    """All cases that the installed version of jax has."""
    found: list[Case] = []
    numbers: dict[str, int] = {}
    for table in (shape_cases.table(), numeric_cases.table()):
        for primitive, function, args in table:
            number = numbers[primitive] = numbers.get(primitive, 0) + 1
            found.append(
                Case(primitive=primitive, number=number, function=function, args=args)
            )
    return found


def _equations(jaxpr: Any) -> Iterator[Any]:
    """Equations of a jaxpr and of those inside it."""
    for equation in open_jaxpr(jaxpr).eqns:
        yield equation
        for _, inner in inner_jaxprs(equation):
            yield from _equations(inner)


def traced(case: Case) -> TracedCase:
    """Trace a case and lower the first equation of its primitive, alone.

    Raises:
      LookupError: if the function does not bind the primitive.
    """
    closed = jax.make_jaxpr(case.function)(*case.args)
    for found in _equations(closed):
        if found.primitive.name == case.primitive:
            break
    else:
        raise LookupError(f"{case.name} binds no {case.primitive}: {closed}")
    arguments = tuple(
        i for i, atom in enumerate(found.invars) if not isinstance(atom, Literal)
    )

    def alone(*values: Any) -> Any:
        operands = [getattr(atom, "val", None) for atom in found.invars]
        for number, value in zip(arguments, values, strict=True):
            operands[number] = value
        return found.primitive.bind(*operands, **found.params)

    avals = [found.invars[number].aval for number in arguments]
    args = tuple(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals)
    (equation,) = flatten(jax.make_jaxpr(alone)(*args)).equations
    return TracedCase(
        case=case,
        equation=equation,
        bound=found,
        arguments=arguments,
        function=alone,
        args=args,
        text=stablehlo_text(jax.jit(alone, keep_unused=True), *args),
    )
