"""Tracing: a JAX function and its abstract arguments to an `OpGraph`.

`flatten.py` inlines the jaxpr (`regions.py`: scan, while, cond), `repeats.py` folds
unrolled layers, `follow.py` and `decide.py` hold one rule per primitive, `groups.py`
ties arrays together, `build.py` and `finish.py` are the two passes, `kernels.py` finds
fused elementwise work, and `labels.py` names factors and groups ops. Nothing is
allocated or run.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.tree_util import keystr

from lts.graph import NodeKind, OpGraph
from lts.tracing.build import Argument, decision_rule, draft_of, flops_of
from lts.tracing.decide import CALLS, UnsupportedOpError, register_rule
from lts.tracing.finish import Finisher
from lts.tracing.flatten import Equation, Path, Tensor, flatten
from lts.tracing.labels import link_phases
from lts.tracing.regions import price_branches
from lts.tracing.repeats import fold_repeats
from lts.tracing.trips import Trips, refuse_unused
from lts.tracing.unused import without_unused

__all__ = [
    "CALLS",
    "CLOSED",
    "ClosedOverWarning",
    "Traced",
    "Trips",
    "check_trips",
    "identity",
    "UnsupportedOpError",
    "link_phases",
    "register_rule",
    "trace",
    "trace_program",
    "warn_closed_over",
]


CLOSED = "closed"
"""Head of the paths of closed-over arrays: `closed/0`, `closed/1`, ..."""


class ClosedOverWarning(UserWarning):
    """A function closes over large arrays, which become arguments of the plan."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Traced:
    """A graph with the jaxpr it came from, and where every equation went.

    Attributes:
      graph: the graph; factors are named by `link_phases`.
      closed: the closed jaxpr.
      places: where arrays and ops of the flat program stand in the graph.
      equations: flat equations by path; pseudo-equations and folded copies left out.
      twins: per folded copy, the equation that stands for it.
      scopes: inputs and results of regions and calls, as `FlatProgram` has them.
      in_paths, out_paths: path of every flat argument and result.
      closed_over: arrays that are further arguments, by path.
      loops: source and scope of every loop of unknown length.
      out_tree: tree of the result.
    """

    graph: OpGraph
    closed: Any
    places: Finisher
    equations: Mapping[Path, Equation]
    twins: Mapping[Path, Path]
    scopes: Mapping[Path, list[Tensor]]
    in_paths: tuple[str, ...]
    out_paths: tuple[str, ...]
    closed_over: Mapping[str, Any]
    loops: tuple[tuple[str, str], ...]
    out_tree: Any


def path_name(path: Sequence[Any], names: Sequence[str] = ()) -> str:
    """`params/layers/gate` for a key path; positions are replaced by `names`."""
    parts = [keystr((part,), simple=True) for part in path]
    if parts and names and parts[0].isdigit() and int(parts[0]) < len(names):
        parts[0] = names[int(parts[0])]
    return "/".join(parts)


def trace_program(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    names: Sequence[str] = (),
    kinds: Callable[[str], NodeKind] | None = None,
    batch_dims: Mapping[str, tuple[int, ...]] | None = None,
    on_unknown: str = "error",
    trips: Trips = None,
) -> Traced:
    """Trace a function; factors of the graph are not yet named.

    Args:
      function: any function that jax can trace.
      args, kwargs: arrays or `jax.ShapeDtypeStruct`s (pytrees of them).
      names: a name per positional argument, for paths; else its position.
      kinds: what an argument is, from its path; default: all are inputs. Closed-over
        arrays have paths `closed/0`, `closed/1`, ...
      batch_dims: per path, the dims whose extent is the serving batch.
      on_unknown: "error", or "replicate" for primitives without a rule.
      trips: how often while loops of unknown length run: all of them, or by their
        `file.py:line` or named scope (`check_trips` refuses what names none); None
        for once, with a note.

    Raises:
      UnsupportedOpError: for a primitive without a rule, unless replicated.
      ValueError: if `on_unknown` is neither.
    """
    if on_unknown not in ("error", "replicate"):
        raise ValueError(f"on_unknown is {on_unknown!r}; use 'error' or 'replicate'")
    kwargs = dict(kwargs or {})
    closed, out_shape = jax.make_jaxpr(function, return_shape=True)(*args, **kwargs)
    in_paths = argument_paths(args, kwargs, names)
    flat_out, out_tree = jax.tree_util.tree_flatten_with_path(out_shape)
    out_paths = ["/".join(("out", path_name(path))) for path, _ in flat_out]
    out_paths = [path.rstrip("/") for path in out_paths]
    program = flatten(closed, CALLS, trips)
    price_branches(program, flops_of)
    program = without_unused(program)
    program = fold_repeats(program, lambda eq: decision_rule(eq) is not None)
    closed_over = {f"{CLOSED}/{i}": x for i, x in enumerate(program.closed_over)}
    arguments = [
        Argument(
            path=path,
            kind=kinds(path) if kinds is not None else NodeKind.INPUT,
            batch_dims=(batch_dims or {}).get(path, ()),
        )
        for path in (*in_paths, *closed_over)
    ]
    draft = draft_of(program, arguments, out_paths, on_unknown)
    places = Finisher(draft)
    return Traced(
        graph=places.graph(),
        closed=closed,
        places=places,
        equations={eq.path: eq for eq in program.equations if eq.primitive != "link"},
        twins=program.twins,
        scopes=program.scopes,
        in_paths=tuple(in_paths),
        out_paths=tuple(out_paths),
        closed_over=closed_over,
        loops=tuple(program.loops),
        out_tree=out_tree,
    )


def identity(array: Any) -> int:
    """A number that tells closed-over arrays apart while they live.

    jax wraps a numpy array anew in every trace.
    """
    if isinstance(array, jax.Array):
        return id(array)
    return int(np.asarray(array).__array_interface__["data"][0])


def check_trips(trips: Trips, traced: Iterable[Traced]) -> None:
    """Refuse trips that name no loop of any of these programs.

    Raises:
      ValueError: naming the loops that there are.
    """
    refuse_unused(trips, (loop for program in traced for loop in program.loops))


def warn_closed_over(traced: Traced, stacklevel: int = 2) -> None:
    """Warn of the arrays that a function closes over, if there are any.

    Args:
      stacklevel: as `warnings.warn` has it: 2 for the caller of this function.
    """
    if not traced.closed_over:
        return
    arrays = sorted(traced.closed_over.values(), key=lambda array: -array.nbytes)
    nbytes, largest = sum(array.nbytes for array in arrays), arrays[0]
    warnings.warn(
        f"the function closes over {len(arrays)} arrays of {nbytes:,} bytes (the "
        f"largest is {largest.dtype}{list(largest.shape)}); they get layouts as "
        f"further arguments, {CLOSED}/0 and so on. Pass them as arguments to see and "
        "pin their specs",
        ClosedOverWarning,
        stacklevel=stacklevel + 1,
    )


def argument_paths(
    args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[str] = ()
) -> list[str]:
    """Path of every leaf of the arguments, in the order of the flat program."""
    positional, _ = jax.tree_util.tree_flatten_with_path(tuple(args))
    keyword, _ = jax.tree_util.tree_flatten_with_path(dict(kwargs))
    return [path_name(path, names) for path, _ in positional] + [
        path_name(path) for path, _ in keyword
    ]


def trace(function: Callable[..., Any], *args: Any, **kwargs: Any) -> OpGraph:
    """The `OpGraph` of a function; arguments may be arrays or `ShapeDtypeStruct`s.

    >>> import jax
    >>> x = jax.ShapeDtypeStruct((8, 16), "float32")
    >>> w = jax.ShapeDtypeStruct((16, 32), "float32")
    >>> graph = trace(lambda x, w: jax.nn.relu(x @ w), x, w)
    >>> [factor.size for factor in graph.ops[0].factors]
    [16, 8, 32]

    Raises:
      UnsupportedOpError: for a primitive without a rule.
    """
    traced = trace_program(function, args, kwargs)
    warn_closed_over(traced)
    return link_phases({"step": traced.graph})["step"]
