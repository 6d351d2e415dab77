"""What is to be sharded: one function, or a model's prefill and decode.

A `Problem` knows its phases, their abstract arguments at any batch size, which
arguments are weights, and which are caches. It is traced once, at `TRACED_BATCH`;
dims that change with the batch are found by asking for the arguments at another size.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from lts.graph import NodeKind, OpGraph
from lts.models import Decoder
from lts.tracing import (
    CLOSED,
    Traced,
    Trips,
    argument_paths,
    check_trips,
    identity,
    link_phases,
    trace_program,
)
from lts.workload import Workload

TRACED_BATCH = 32
"""Sequences at which served models are traced: no size of a model, so not mistaken."""

STEP = "step"
"""Phase of a plain function; at further shapes it is `step#2`, `step#3`."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Problem:
    """A model to serve: its functions and a callable that gives their arguments.

    Attributes:
      prefill: reads prompts; called as `prefill(*args("prefill", batch))`.
      decode: generates one token per sequence; likewise.
      args: from phase and batch, the abstract positional arguments.
      weights: name of the argument that holds the parameters.
      cache: name of the argument that holds the KV cache.
      name: what messages call it.
      dim_names: per argument path, names of its dims ("" for none), for display.
      trips: of while loops, as in `lts.search`.
      one_byte: how products with weights of one byte run: "fp8" (a scale per matrix or
        channel), "fp8_block" (per block), or "w8" (widened as they are loaded).
    """

    prefill: Callable[..., Any]
    decode: Callable[..., Any]
    args: Callable[[str, int], tuple[Any, ...]]
    weights: str = "params"
    cache: str = "cache"
    name: str = "problem"
    dim_names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    trips: Trips = None
    one_byte: str = "fp8"

    def function(self, phase: str) -> Callable[..., Any]:
        """The function of a phase, "prefill" or "decode"."""
        return {"prefill": self.prefill, "decode": self.decode}[phase]

    def kind(self, path: str) -> NodeKind:
        """What the argument at a path is."""
        head = path.split("/", 1)[0]
        if head in (self.weights, CLOSED):
            return NodeKind.PARAMETER
        return NodeKind.CACHE if head == self.cache else NodeKind.INPUT


def argument_names(function: Callable[..., Any], count: int) -> tuple[str, ...]:
    """Names of the first `count` positional parameters, as far as there are any."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in parameters if p.kind in named]
    return tuple(names[:count])


def zoo_problem(
    model: Decoder,
    workload: Workload,
    *,
    weight_dtype: str | None = None,
    kv_dtype: str | None = None,
) -> Problem:
    """The problem of serving a decoder under a workload."""

    def args(phase: Any, batch: int) -> tuple[Any, ...]:
        return model.args(
            phase,
            batch,
            input_len=workload.input_len,
            cache_len=max(workload.context_len, 2),
            weight_dtype=weight_dtype,
            kv_dtype=kv_dtype,
        )

    return Problem(
        prefill=model.prefill,
        decode=model.decode,
        args=args,
        name=model.name,
        dim_names=_zoo_dims(model, weight_dtype),
        one_byte=_one_byte(model, weight_dtype),
    )


def _one_byte(model: Decoder, weight_dtype: str | None) -> str:
    form = model.config.quantization
    if form is None or weight_dtype not in (None, form.dtype):
        return "fp8"
    return "fp8_block" if form.dtype.startswith("float8") else "w8"


def _zoo_dims(
    model: Decoder, weight_dtype: str | None = None
) -> dict[str, tuple[str, ...]]:
    """Names of the dims of every argument, by path."""
    trees = model.dim_names(weight_dtype)
    paths = argument_paths(trees, {}, ("params", "cache"))
    named = zip(paths, jax.tree.leaves(trees), strict=True)
    dims = {path: array.dims for path, array in named}
    return dims | {"tokens": ("batch", "sequence")}


def batch_dims(problem: Problem, phase: str) -> dict[str, tuple[int, ...]]:
    """Per argument path, the dims whose extent changes with the batch."""
    small, large = (problem.args(phase, b) for b in (TRACED_BATCH, 2 * TRACED_BATCH))
    names = argument_names(problem.function(phase), len(small))
    paths = argument_paths(small, {}, names)
    found = {}
    for path, a, b in zip(paths, *map(jax.tree.leaves, (small, large)), strict=True):
        shapes = zip(np.shape(a), np.shape(b), strict=True)
        dims = tuple(i for i, (n, m) in enumerate(shapes) if n != m)
        if dims:
            found[path] = dims
    return found


def trace_problem(
    problem: Problem, phases: Sequence[str], batch: int, on_unknown: str = "error"
) -> dict[str, Traced]:
    """Trace every phase at one batch size.

    Raises:
      ValueError: if the phases close over different arrays, or `problem.trips` names
        a loop that none of them has.
    """
    traced: dict[str, Traced] = {}
    for phase in phases:
        function, args = problem.function(phase), problem.args(phase, batch)
        traced[phase] = trace_program(
            function,
            args,
            names=argument_names(function, len(args)),
            kinds=problem.kind,
            batch_dims=batch_dims(problem, phase),
            on_unknown=on_unknown,
            trips=problem.trips,
        )
    check_trips(problem.trips, traced.values())
    closed = [list(map(identity, t.closed_over.values())) for t in traced.values()]
    if any(found != closed[0] for found in closed):
        raise ValueError(
            f"the phases of {problem.name} close over different arrays; pass weights "
            f"as the argument {problem.weights!r} to both"
        )
    return traced


def trace_function(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    on_unknown: str = "error",
    *,
    kinds: Callable[[str], NodeKind] | None = None,
    trips: Trips = None,
) -> Traced:
    """Trace a plain function; without `kinds`, its arguments are all inputs.

    Raises:
      ValueError: if `trips` names no loop.
    """
    traced = trace_program(
        function,
        args,
        kwargs,
        names=argument_names(function, len(args)),
        kinds=kinds,
        on_unknown=on_unknown,
        trips=trips,
    )
    check_trips(trips, [traced])
    return traced


def linked(
    traced: Mapping[str, Traced], dims: Mapping[str, Sequence[str]] | None = None
) -> dict[str, OpGraph]:
    """Graphs of all phases with common, named factors."""
    return link_phases({phase: t.graph for phase, t in traced.items()}, dims)
