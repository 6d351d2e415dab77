"""Repeated layers of an unrolled program, folded into one that runs several times.

A Python loop over 80 blocks traces to 80 copies of the same equations. They are found
by a hash of every equation (primitive, parameters, shapes), checked for their wiring
(each copy reads what its predecessor made where that read its own predecessor's, or
arrays from before the loop), and folded into the first copy with 80 trips: what `scan`
would have made of them. Arrays that differ from copy to copy (the parameters of every
layer) are tied, so that they have one layout.

Layers that differ in any operation or shape are no copies, and stay apart.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lts.tracing.program import Equation, FlatProgram, Path, Tensor, open_jaxpr

MANY = 4
"""Copies from which on even a single op is a layer; fewer may be a pair that wants two
layouts, as the columns and rows of a feed-forward block do."""

_LAGS = 48  # distances between equal operations that are tried as period
_NEIGHBOURS = 96  # equal operations to which a distance is measured

_PLACES = frozenset(("start_indices", "limit_indices"))
"""Parameters of a slice that say where, not how much, it takes."""


@dataclass(frozen=True, kw_only=True)
class _Run:
    """Copies of `period` equations, the first of which starts at `start`."""

    start: int
    period: int
    copies: int

    @property
    def stop(self) -> int:
        return self.start + self.period * self.copies


@dataclass(frozen=True, kw_only=True)
class _Wiring:
    """What copies read from outside themselves.

    Attributes:
      carried: per (equation, operand) of the first copy, the (equation, result) of a
        copy that its successor reads there.
      varying: pairs of arrays (of the first copy, of a later one) read in one place.
    """

    carried: Mapping[tuple[int, int], tuple[int, int]]
    varying: Sequence[tuple[Tensor, Tensor]]


def fold_repeats(
    program: FlatProgram, is_decision: Callable[[Equation], bool]
) -> FlatProgram:
    """The program with repeated layers folded into their first copy.

    Args:
      is_decision: whether an equation carries a choice; a layer has one at least.
    """
    texts: dict[Any, str] = {}
    while (found := _best_run(program, is_decision, texts)) is not None:
        program = _folded(program, *found)
    return program


def _signatures(equations: Sequence[Equation], texts: dict[Any, str]) -> np.ndarray:
    """A number per equation, equal for operations that differ by values alone.

    Args:
      texts: what inner jaxprs print as; printing one is slow, so it is kept.
    """
    numbers: dict[Any, int] = {}

    def sign(tensor: Tensor) -> tuple[Any, ...]:
        return tensor.shape, str(tensor.dtype), tensor.is_local

    def plain(value: Any) -> Any:
        if open_jaxpr(value) is not None:
            if value not in texts:
                texts[value] = str(value)
            return texts[value]
        return "function" if callable(value) else repr(value)

    def key(eq: Equation) -> Any:
        is_slice = eq.primitive == "slice"
        params = tuple(
            (name, plain(value))
            for name, value in eq.params.items()
            if not (is_slice and name in _PLACES)
        )
        arrays = tuple(map(sign, eq.ins)), tuple(map(sign, eq.outs))
        return eq.primitive, eq.trips, eq.links, arrays, params

    keys = (key(eq) for eq in equations)
    return np.array([numbers.setdefault(k, len(numbers)) for k in keys], np.int64)


def _lags(signatures: np.ndarray, chosen: np.ndarray) -> list[int]:
    """Distances at which most chosen equations stand again, best first."""
    places: dict[int, list[int]] = defaultdict(list)
    for place in chosen.tolist():
        places[int(signatures[place])].append(place)
    counts: Counter[int] = Counter()
    for found in places.values():
        own = np.array(found)
        for step in range(1, min(len(own), _NEIGHBOURS)):
            counts.update((own[step:] - own[:-step]).tolist())
    ranked = sorted(counts, key=lambda lag: (-counts[lag], lag))
    return ranked[:_LAGS]


def _runs(signatures: np.ndarray, lag: int) -> Iterator[tuple[int, int]]:
    """Start and length of stretches that equal themselves `lag` further on."""
    equal = np.concatenate([[False], signatures[:-lag] == signatures[lag:], [False]])
    edges = np.flatnonzero(equal[1:] != equal[:-1])
    for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if stop - start >= lag:
            yield start, stop - start


def _best_run(
    program: FlatProgram,
    is_decision: Callable[[Equation], bool],
    texts: dict[Any, str],
) -> tuple[_Run, _Wiring] | None:
    """The run that folds most equations and whose wiring holds."""
    equations = program.equations
    chosen = np.array([is_decision(eq) for eq in equations], bool)
    if chosen.sum() < 2:
        return None
    signatures = _signatures(equations, texts)
    candidates = [
        (length // lag * lag, lag, start, length % lag)
        for lag in _lags(signatures, np.flatnonzero(chosen))
        for start, length in _runs(signatures, lag)
    ]
    makers = {
        out.index: (place, number)
        for place, eq in enumerate(equations)
        for number, out in enumerate(eq.outs)
    }
    for gain, period, start, slack in sorted(candidates, key=lambda c: (-c[0], c[1])):
        copies = gain // period + 1
        ops = int(chosen[start : start + period].sum())
        if not ops:
            continue
        # Any rotation of a loop repeats; its own start carries the fewest arrays over.
        starts = sorted(
            range(start, start + slack + 1),
            key=lambda s: (len(_carried(equations, makers, s, period)), s),
        )
        for first in starts:
            run = _longest(equations, makers, first, period, copies)
            if run is not None and (ops > 1 or run[0].copies >= MANY):
                return run
    return None


def _carried(
    equations: Sequence[Equation],
    makers: Mapping[int, tuple[int, int]],
    start: int,
    period: int,
) -> set[int]:
    """Arrays of the first copy that the second one reads."""
    return {
        tensor.index
        for eq in equations[start + period : start + 2 * period]
        for tensor in eq.ins
        if start <= makers.get(tensor.index, (-1, 0))[0] < start + period
    }


def _longest(
    equations: Sequence[Equation],
    makers: Mapping[int, tuple[int, int]],
    start: int,
    period: int,
    copies: int,
) -> tuple[_Run, _Wiring] | None:
    """The run with as many of its copies as are wired alike; None below two.

    Where the second copy is wired otherwise, the first one is left out: it may read
    what all others share.
    """
    while copies > 1:
        run = _Run(start=start, period=period, copies=copies)
        good, wiring = _wired(equations, makers, run)
        if good == copies and wiring.carried:
            return run, wiring
        if good == copies:
            return None  # side by side, not one after the other: no layers
        if good > 1:
            copies = good
        else:
            start, copies = start + period, copies - 1
    return None


def _wired(
    equations: Sequence[Equation], makers: Mapping[int, tuple[int, int]], run: _Run
) -> tuple[int, _Wiring]:
    """How many copies are wired as the first two are, and that wiring."""
    carried: dict[tuple[int, int], tuple[int, int]] = {}
    varying: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def source(tensor: Tensor, copy: int) -> tuple[str, Any]:
        """Where an array comes from, as seen from a copy."""
        place, number = makers.get(tensor.index, (-1, 0))
        first = run.start + copy * run.period
        if not run.start <= place < run.stop:
            return "outside", None
        if first <= place < first + run.period:
            return "own", (place - first, number)
        if first - run.period <= place < first:
            return "last", (place - first + run.period, number)
        return "other", None

    for copy in range(1, run.copies):
        found = []
        for j in range(run.period):
            eq = equations[run.start + copy * run.period + j]
            model = equations[run.start + j]
            for i, (tensor, first) in enumerate(zip(eq.ins, model.ins, strict=True)):
                kind, where = source(tensor, copy)
                before, there = source(first, 0)
                if kind == before == "own" and where == there:
                    continue
                if before == "own" or kind in ("own", "other"):
                    return copy, _Wiring(carried=carried, varying=())
                if copy == 1 and kind == "last":
                    carried[j, i] = where
                if (carried.get((j, i)) if kind == "last" else None) != where:
                    return copy, _Wiring(carried=carried, varying=())
                if kind == "outside" and (j, i) in carried:
                    return copy, _Wiring(carried=carried, varying=())
                if kind == "outside" and tensor is not first and not tensor.is_local:
                    found.append((first, tensor))
        varying.update({(a.index, b.index): (a, b) for a, b in found})
    pairs = tuple(varying.values())
    return run.copies, _Wiring(carried=carried, varying=pairs)


def _folded(program: FlatProgram, run: _Run, wiring: _Wiring) -> FlatProgram:
    """The program with a run folded; see `FlatProgram.twins` and `same`."""
    equations = program.equations
    block = equations[run.start : run.start + run.period]
    same, twins = dict(program.same), dict(program.twins)
    own_same: dict[int, Tensor] = {}
    for place in range(run.start + run.period, run.stop):
        eq, model = equations[place], block[(place - run.start) % run.period]
        own_same.update(
            (out.index, first) for out, first in zip(eq.outs, model.outs, strict=True)
        )
        if eq.primitive != "link":
            twins[eq.path] = model.path
    twins = {path: twins.get(model, model) for path, model in twins.items()}

    def read(tensor: Tensor) -> Tensor:
        return own_same.get(tensor.index, tensor)

    outside, inside = block[0], list[Equation]()
    before, after = list[Equation](), list[Equation]()
    carries: dict[tuple[int, tuple[int, int]], Tensor] = {}

    def link(source: Tensor, target: Tensor) -> Equation:
        links = tuple((i, i) for i in range(len(source.shape)))
        fields = {"primitive": "link", "params": {}, "links": links}
        return replace(outside, ins=(source,), outs=(target,), **fields)

    for j, eq in enumerate(block):
        ins = list(eq.ins)
        for i, tensor in enumerate(eq.ins):
            made = wiring.carried.get((j, i))
            if made is None:
                continue
            if (tensor.index, made) not in carries:
                carry = program.fresh(tensor)  # as the carry of a scan
                result = block[made[0]].outs[made[1]]
                carries[tensor.index, made] = carry
                before += [link(tensor, carry)] * (not tensor.is_local)
                after += [link(result, carry)] * (not result.is_local)
            ins[i] = carries[tensor.index, made]
        inside.append(replace(eq, ins=tuple(ins), trips=eq.trips * run.copies))
    after += [link(other, first) for first, other in wiring.varying]
    rest = [
        replace(eq, ins=tuple(map(read, eq.ins))) if _touches(eq, own_same) else eq
        for eq in equations[run.stop :]
    ]
    same = {index: read(tensor) for index, tensor in same.items()} | own_same
    return replace(
        program,
        equations=[*equations[: run.start], *before, *inside, *after, *rest],
        results=[read(tensor) for tensor in program.results],
        scopes={p: [read(t) for t in found] for p, found in program.scopes.items()},
        same=same,
        twins=twins,
    )


def _touches(eq: Equation, same: Mapping[int, Tensor]) -> bool:
    return any(tensor.index in same for tensor in eq.ins)


def extended(found: Mapping[Path, Any], twins: Mapping[Path, Path]) -> dict[Path, Any]:
    """What is known of equations, said of their folded copies, too."""
    return dict(found) | {p: found[m] for p, m in twins.items() if m in found}
