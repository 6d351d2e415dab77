"""Records of a flat program: arrays, equations, and how inner jaxprs are found."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Path = tuple[int | str, ...]
"""Alternates equation index and parameter name (and number, in a tuple of jaxprs)."""

Branches = tuple[str, tuple[tuple[int, int], ...]]

RESULTS = "results"
"""Ends the path of what a call or a region returns, among the scopes of a program."""

OPAQUE = frozenset({"custom_partitioning", "pallas_call", "shard_map"})
"""Their bodies see local arrays: never entered, never rewritten."""


@dataclass(eq=False, kw_only=True)
class Tensor:
    """An array of the flat program."""

    index: int
    shape: tuple[int, ...]
    dtype: Any
    is_local: bool  # depends on no shardable array: computed by every device
    value: Any = None  # of a scalar that is known at tracing

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
    """The flat program.

    Attributes:
      equations: in order.
      arguments, results: of the program; arguments end with the closed-over arrays.
      closed_over: arrays that became arguments.
      constants: closed-over arrays that stay on every device.
      scopes: inputs of every inner jaxpr, by its path; results of the equation that
        holds it, by the equation's path and `RESULTS`.
      notes: what the user should know.
      branches: per cond, its source and where its branches stand (start, stop), until
        one of them is priced.
      effects: arrays that are needed though no result depends on them.
      passed: local arrays that a region hands on, and what they are there: no links.
      loops: source and scope of every loop of unknown length.
      slices: arrays that scans cut out of stacked ones, once per trip.
      twins: equations that are folded into another (`lts.tracing.repeats`), by path.
      same: arrays that stand for another, by index, and that other.
    """

    equations: list[Equation]
    arguments: list[Tensor]
    results: list[Tensor]
    closed_over: list[Any] = field(default_factory=list)
    constants: list[Tensor] = field(default_factory=list)
    scopes: dict[Path, list[Tensor]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    branches: list[Branches] = field(default_factory=list)
    effects: list[Tensor] = field(default_factory=list)
    passed: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    loops: list[tuple[str, str]] = field(default_factory=list)
    slices: list[tuple[Tensor, int]] = field(default_factory=list)  # with trips
    twins: dict[Path, Path] = field(default_factory=dict)
    same: dict[int, Tensor] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def fresh(self, like: Tensor) -> Tensor:
        """A new array of the extent of another."""
        return replace(like, index=next(self.numbers), value=None)


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


def is_resized(
    primitive: str, before: tuple[int, ...] = (), after: tuple[int, ...] = ()
) -> bool:
    """Whether an operation only adds or drops dims of extent 1."""
    if primitive not in ("broadcast_in_dim", "expand_dims", "reshape", "squeeze"):
        return False
    return [n for n in before if n != 1] == [n for n in after if n != 1]
