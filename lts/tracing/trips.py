"""How often a `while` runs: read from its condition, or told by the caller."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Trips = int | Mapping[str, int] | None
"""For all loops of unknown length, or by `file.py:line` or named scope."""


@dataclass(kw_only=True)
class GivenTrips:
    """What the caller says of loops, and the loops of unknown length there are."""

    given: Trips = None
    loops: list[tuple[str, str]] = field(default_factory=list)  # source, scope

    def __post_init__(self) -> None:
        """Refuse counts that are no positive integers."""
        given = self.given
        counts = given.values() if isinstance(given, Mapping) else (given,)
        for count in counts if given is not None else ():
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise ValueError(f"trips must be positive integers, got {count!r}")

    def of(self, source: str, scope: str) -> int | None:
        """Trips of the loop at a source line, in a scope; None if not told."""
        self.loops.append((source, scope))
        if not isinstance(self.given, Mapping):
            return self.given
        return next((self.given[x] for x in (source, scope) if x in self.given), None)


def refuse_unused(given: Trips, loops: Iterable[tuple[str, str]]) -> None:
    """Refuse counts that name no loop.

    Args:
      loops: source and scope of every loop of unknown length.

    Raises:
      ValueError: naming the loops that there are.
    """
    loops = list(loops)
    named = set(given) if isinstance(given, Mapping) else set()
    if unused := sorted(named - {name for loop in loops for name in loop}):
        known = ", ".join(dict.fromkeys(source or scope for source, scope in loops))
        raise ValueError(
            f"trips: no while loop of unknown length at {', '.join(unused)}; "
            f"there are: {known or 'none'}"
        )


def counted_trips(cond: Any, body: Any, init: list[Any], consts: list[Any]) -> int:
    """Trips of a loop that counts a carry up to a bound; 0 if it does not show.

    Args:
      cond, body: open jaxprs.
      init: per carry, its first value where that is known, else None.
      consts: per constant of the condition, likewise.
    """
    if len(cond.eqns) != 1 or cond.eqns[0].primitive.name not in ("lt", "le"):
        return 0
    test = cond.eqns[0]
    if cond.outvars[0] is not test.outvars[0]:
        return 0
    first = len(consts)  # of the carries among the inputs of the condition
    places = {var: i for i, var in enumerate(cond.invars)}

    def known(atom: Any) -> Any:
        """Value of a bound: a literal, a constant, or a carry that never changes."""
        if hasattr(atom, "val"):
            return atom.val
        place = places[atom]
        if place < first:
            return consts[place]
        return init[place - first] if _kept(body, place - first, len(init)) else None

    counter, bound = test.invars
    if hasattr(counter, "val") or places[counter] < first:
        return 0
    place = places[counter] - first
    start, stop, step = init[place], known(bound), _step(body, place, len(init))
    if start is None or stop is None or not step:
        return 0
    span = int(stop) - int(start) + (test.primitive.name == "le")
    return max(0, -(-span // step))


def _carry_of(body: Any, place: int, carries: int) -> Any:
    return body.invars[len(body.invars) - carries + place]


def _kept(body: Any, place: int, carries: int) -> bool:
    return body.outvars[place] is _carry_of(body, place, carries)


def _step(body: Any, place: int, carries: int) -> int:
    """What the body adds to a carry; 0 if it does something else."""
    carry, out = _carry_of(body, place, carries), body.outvars[place]
    for eqn in body.eqns:
        if out in eqn.outvars and eqn.primitive.name == "add":
            left, right = eqn.invars
            if left is carry and hasattr(right, "val"):
                return max(0, int(right.val))
    return 0
