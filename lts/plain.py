"""A plain function: the arguments that one plan is for, and what they are.

Arguments are inputs unless named as *weights* or as *state*, which comes in, is changed
and comes back: a cache, a carry. A state leaves as it came, so that it can be given to
the next call; what ties it to its result is found here.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from lts.graph import Leaf, Node, NodeKind, OpGraph
from lts.problem import STEP, argument_names, trace_function
from lts.tracing import CLOSED, Traced, Trips, argument_paths
from lts.tracing.groups import UnionFind

Call = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Positional and keyword arguments."""

Pairs = tuple[tuple[str, str], ...]
"""Paths of an argument and of the result that it comes back as, per array."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PlainFunction:
    """A function that is no model to serve, with all arguments that a plan is for.

    Attributes:
      function: the user's.
      calls: arguments at every shape that it is called with; the first leads.
      weights: names of the arguments that hold parameters.
      state: of the arguments that come back, each with the path of its result ("" to
        look for it).
      trips: of while loops, as in `lts.search`.
    """

    function: Callable[..., Any]
    calls: tuple[Call, ...]
    weights: tuple[str, ...] = ()
    state: Mapping[str, str] | None = None
    trips: Trips = None

    @property
    def phases(self) -> dict[str, Call]:
        """The calls by phase: `step`, `step#2`, ..."""
        names = [STEP, *(f"{STEP}#{i}" for i in range(2, 1 + len(self.calls)))]
        return dict(zip(names, self.calls, strict=True))

    def paths(self, phase: str = STEP) -> list[str]:
        """Path of every array of a call."""
        args, kwargs = self.phases[phase]
        names = argument_names(self.function, len(args))
        return argument_paths(args, kwargs, names)

    def shapes(self, phase: str) -> dict[str, tuple[int, ...]]:
        """Shape of every array of a call, by path."""
        leaves = jax.tree.leaves(self.phases[phase])
        return dict(zip(self.paths(phase), map(np.shape, leaves), strict=True))

    def kind(self, path: str) -> NodeKind:
        """What the argument at a path is."""
        head = path.split("/", 1)[0]
        if head in self.weights or (head == CLOSED and self.weights):
            return NodeKind.PARAMETER
        return NodeKind.CACHE if head in (self.state or {}) else NodeKind.INPUT

    def at(self, phase: str) -> "PlainFunction":
        """The function at one of its shapes alone."""
        return replace(self, calls=(self.phases[phase],))

    def traced(self, on_unknown: str) -> dict[str, Traced]:
        """Traced at every shape.

        Raises:
          ValueError: if weights or state name no argument, or one twice.
        """
        self._check_names()
        return {
            phase: trace_function(
                self.function,
                *call,
                on_unknown,
                kinds=self.kind,
                trips=self.trips,
            )
            for phase, call in self.phases.items()
        }

    def _check_names(self) -> None:
        known = list(dict.fromkeys(path.split("/", 1)[0] for path in self.paths()))
        for role, names in (("weights", self.weights), ("state", self.state or ())):
            for name in names:
                if name not in known:
                    near = difflib.get_close_matches(name, known, n=1)
                    hint = f"did you mean {near[0]!r}?" if near else ""
                    raise ValueError(
                        f"{role}={name!r} is no argument of the function; "
                        + (hint or f"it has {', '.join(known)}")
                    )
        if both := [name for name in self.weights if name in (self.state or ())]:
            raise ValueError(f"{both[0]!r} is both weights and state; choose one")


def plain_function(
    function: Callable[..., Any],
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    shapes: Iterable[Any] = (),
    weights: str | Iterable[str] = (),
    state: str | Iterable[str] | Mapping[str, str] = (),
    trips: Trips = None,
) -> PlainFunction:
    """A plain function as users name its parts; arguments as `lts.search`."""
    calls = [call_of(entry, kwargs) for entry in shapes]
    if args is not None or not calls:
        calls.insert(0, (tuple(args or ()), dict(kwargs or {})))
    if not isinstance(state, Mapping):
        state = dict.fromkeys((state,) if isinstance(state, str) else state, "")
    return PlainFunction(
        function=function,
        calls=tuple(calls),
        weights=(weights,) if isinstance(weights, str) else tuple(weights),
        state=state,
        trips=trips,
    )


def call_of(entry: Any, kwargs: Mapping[str, Any] | None = None) -> Call:
    """Arguments of one call: a tuple of them, or a pair (tuple, dict of keywords).

    Raises:
      ValueError: for anything else.
    """
    if type(entry) is not tuple:
        raise ValueError(
            "the arguments of a call are a tuple, (x, y), or a pair of a tuple and a "
            f"dict, ((x, y), {{'z': z}}); got {type(entry).__name__}"
        )
    if len(entry) == 2 and type(entry[0]) is tuple and isinstance(entry[1], dict):
        return entry[0], {**(kwargs or {}), **entry[1]}
    return entry, dict(kwargs or {})


def state_pairs(plain: PlainFunction, traced: Traced) -> dict[str, Pairs]:
    """Which result every state comes back as, by name; no pairs if there is none.

    Raises:
      ValueError: if a state could be several results that lie differently, or is not
        the result that it is said to be.
    """
    found: dict[str, Pairs] = {}
    taken: set[str] = set()
    for name, result in (plain.state or {}).items():
        own = _below(name, traced.in_paths, traced.closed.in_avals)
        candidates = [
            prefix
            for prefix in _prefixes(traced.out_paths)
            if _below(prefix, traced.out_paths, traced.closed.out_avals) == own
        ]
        if result and result not in candidates:
            raise ValueError(
                f"state {name!r} is not the result {result!r}; results with its "
                f"shapes: {', '.join(candidates) or 'none'}"
            )
        free = [result] if result else [c for c in candidates if c not in taken]
        prefix = _chosen(name, free, own, traced.graph)
        if prefix is None:
            found[name] = ()
            continue
        taken.add(prefix)
        found[name] = tuple((name + rest, prefix + rest) for rest in own)
    return found


def _below(prefix: str, paths: Sequence[str], avals: Sequence[Any]) -> dict[str, Any]:
    """Shape and dtype of the arrays at or below a path, by the rest of their paths."""
    return {
        path.removeprefix(prefix): (aval.shape, aval.dtype)
        for path, aval in zip(paths, avals, strict=True)
        if path == prefix or path.startswith(f"{prefix}/")
    }


def _prefixes(paths: Sequence[str]) -> list[str]:
    """All paths and what they begin with, in order."""
    found: dict[str, None] = {}
    for path in paths:
        parts = path.split("/")
        found.update({"/".join(parts[:i]): None for i in range(1, 1 + len(parts))})
    return list(found)


def _chosen(
    name: str, candidates: Sequence[str], own: Mapping[str, Any], graph: OpGraph
) -> str | None:
    """The result that a state comes back as; None if there is none."""
    named = [prefix for prefix in candidates if prefix.rsplit("/", 1)[-1] == name]
    together = [
        prefix
        for prefix in candidates
        if all(
            len({node.index for node, _ in _leaves(graph, name + rest, prefix + rest)})
            < 2
            for rest in own
        )
    ]
    for found in (named, candidates, together):
        if len(found) == 1:
            return found[0]
    if together:
        return together[0]  # they all lie alike
    if not candidates:
        return None
    raise ValueError(
        f"state {name!r} may come back as {' or '.join(candidates)}; say which: "
        f"state={{{name!r}: {candidates[0]!r}}}"
    )


def _leaves(graph: OpGraph, argument: str, result: str) -> list[tuple[Node, Leaf]]:
    """Where an argument and a result are in the graph."""
    return [
        (node, leaf)
        for node in graph.values
        for leaf in node.leaves
        if leaf.path == (result if leaf.is_output else argument)
    ]


def with_state(graph: OpGraph, pairs: Mapping[str, Pairs]) -> OpGraph:
    """A traced graph in which a state has the same indexes as its result.

    The result takes the buffer of its argument, so that it is no result of its own.
    """
    labels, dropped = UnionFind(), set()
    for argument, result in (pair for own in pairs.values() for pair in own):
        dropped.add(result)
        ends = _leaves(graph, argument, result)
        for (here, a), (there, b) in zip(ends, ends[1:], strict=False):
            for i, j in zip(a.factors, b.factors, strict=True):
                if i is not None and j is not None:
                    labels.union(there.factors[j].label, here.factors[i].label)
    nodes = tuple(
        replace(
            node,
            factors=tuple(replace(f, label=labels.find(f.label)) for f in node.factors),
            leaves=tuple(
                leaf
                for leaf in node.leaves
                if not (leaf.is_output and leaf.path in dropped)
            ),
        )
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes)


def tied_nodes(graph: OpGraph, pairs: Mapping[str, Pairs]) -> list[tuple[int, int]]:
    """Nodes that a state and its result are in, where these are two."""
    found = {}
    for argument, result in (pair for own in pairs.values() for pair in own):
        ends = [node for node, _ in _leaves(graph, argument, result)]
        if len(ends) == 2 and ends[0].index != ends[1].index:
            found[ends[0].index, ends[1].index] = None
    return list(found)
