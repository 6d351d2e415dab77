"""What a mask of positions lets through: causal, or a window.

A fused attention kernel skips what a causal or sliding mask hides, half the work and
more; a mask that is an argument, or made of anything but positions, hides nothing that
a compiler could know of. Such a mask is a comparison of two counted dims, or several of
them that all hold (`seen <= own`, `seen > own - window`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lts.tracing.flatten import Equation, FlatProgram, Tensor

_SAME = frozenset("convert_element_type copy reduce_precision stop_gradient".split())
_RESIZES = frozenset("broadcast_in_dim expand_dims reshape squeeze".split())
_MIRRORED = {"le": "ge", "lt": "gt", "ge": "le", "gt": "lt", "eq": "eq", "ne": "ne"}
_NEGATED = {"le": "gt", "lt": "ge", "ge": "lt", "gt": "le", "eq": "ne", "ne": "eq"}
_HIDES = -1e3
"""A bias below this leaves nothing of a score: exp(-1000) is 0 in any float type."""


@dataclass(frozen=True, kw_only=True)
class _Count:
    """`(place on dim + offset) // divisor`."""

    dim: int
    offset: int = 0
    divisor: int = 1


Comparisons = list[tuple[str, _Count, _Count]]
"""Kind, and both sides, of comparisons that all hold."""


@dataclass(frozen=True, kw_only=True)
class Mask:
    """What a query sees of the keys.

    Attributes:
      queries: dim of the mask that counts queries.
      causal: whether no key after the query is seen.
      window: keys that a query sees at most, itself among them; 0 for no limit.
    """

    queries: int
    causal: bool
    window: int


class Masks:
    """Reads masks of one program."""

    def __init__(self, program: FlatProgram) -> None:
        self._writer: Mapping[int, Equation] = {
            out.index: eq for eq in program.equations for out in eq.outs
        }
        self._passed = {after.index: before for before, after in program.passed}

    def of_selection(self, eq: Equation, keys: int) -> Mask | None:
        """What a selection between scores and a constant lets through.

        Args:
          keys: dim of the scores that counts keys.

        Returns:
          None if it is not decided by positions alone.
        """
        predicate, *cases = eq.ins
        if len(cases) != 2 or len(predicate.shape) != len(eq.outs[0].shape):
            return None
        hidden = [self._constant(case) is not None for case in cases]
        if hidden[0] == hidden[1]:
            return None
        return _mask(self._comparisons(predicate, hidden[0]), keys)

    def of_bias(self, tensor: Tensor, keys: int) -> Mask | None:
        """What an array of zeros and large negative numbers, once added, lets through.

        Arguments and result as `of_selection`.
        """
        return _mask(self._bias(tensor), keys)

    def _bias(self, tensor: Tensor) -> Comparisons:
        eq = self._equation(tensor)
        if eq is None:
            return []
        if eq.primitive == "select_n" and len(eq.ins) == 3:
            low, high = (self._constant(case) for case in eq.ins[1:])
            if low is None or high is None or (low < _HIDES) == (high < _HIDES):
                return []
            return self._comparisons(eq.ins[0], low < _HIDES)
        return _carried(self._bias(eq.ins[0]), eq) if _moved(eq) else []

    def _comparisons(self, tensor: Tensor, holds: bool) -> Comparisons:
        """Comparisons of counts that are all true where `tensor` is `holds`."""
        eq = self._equation(tensor)
        if eq is None:
            return []
        if eq.primitive == ("and" if holds else "or"):
            return [f for side in eq.ins for f in self._comparisons(side, holds)]
        if eq.primitive == "not":
            return self._comparisons(eq.ins[0], not holds)
        if eq.primitive == "select_n" and len(eq.ins) == 3:
            low, high = (self._constant(case) for case in eq.ins[1:])
            if low is None or high is None or bool(low) == bool(high):
                return []
            return self._comparisons(eq.ins[0], holds == bool(high))
        if eq.primitive in _NEGATED:
            left, right = (self._count(side) for side in eq.ins)
            if left and right:
                kind = eq.primitive if holds else _NEGATED[eq.primitive]
                return [(kind, left, right)]
            constant = self._constant(eq.ins[1])
            if eq.primitive in ("eq", "ne") and constant in (0, 1):
                same = (eq.primitive == "eq") == bool(constant)
                return self._comparisons(eq.ins[0], holds == same)
            return []
        return _carried(self._comparisons(eq.ins[0], holds), eq) if _moved(eq) else []

    def _constant(self, tensor: Tensor) -> float | None:
        """The number that all of an array is, or None."""
        eq = self._equation(tensor)
        if tensor.value is not None or eq is None:
            return tensor.value
        return self._constant(eq.ins[0]) if _moved(eq) is not None else None

    def _count(self, tensor: Tensor) -> _Count | None:
        """How an array of integers counts along one of its dims, or None."""
        eq = self._equation(tensor)
        if eq is None:
            return None
        if eq.primitive == "iota":
            return _Count(dim=eq.params["dimension"])
        if eq.primitive in ("add", "sub", "div", "mul"):
            return self._shifted(eq)
        if eq.primitive == "select_n" and len(eq.ins) == 3:  # how `//` rounds down
            low, high = (self._count(case) for case in eq.ins[1:])
            same = low and high and (low.dim, low.divisor) == (high.dim, high.divisor)
            return low if same else None
        dims = _moved(eq)
        found = None if dims is None else self._count(eq.ins[0])
        if found is None or dims is None or found.dim not in dims:
            return None
        return replace(found, dim=dims[found.dim])

    def _shifted(self, eq: Equation) -> _Count | None:
        for tensor, other in (eq.ins, eq.ins[::-1]):
            found, by = self._count(tensor), other.value
            if found is None or by is None:
                continue
            first = tensor is eq.ins[0]
            if eq.primitive == "mul" and by == 1:
                return found
            if eq.primitive == "add" or (eq.primitive == "sub" and first):
                by = int(by) if eq.primitive == "add" else -int(by)
                return replace(found, offset=found.offset + by)
            if eq.primitive == "div" and first:
                return replace(found, divisor=int(by))
        return None

    def _equation(self, tensor: Tensor) -> Equation | None:
        while tensor.index in self._passed:
            tensor = self._passed[tensor.index]
        return self._writer.get(tensor.index)


def _mask(comparisons: Comparisons, keys: int) -> Mask | None:
    """What comparisons let through; `keys` is the dim that counts keys."""
    found: Mask | None = None
    for kind, left, right in comparisons:
        if right.dim == keys:
            kind, left, right = _MIRRORED[kind], right, left
        if left.dim != keys or right.dim == keys or kind == "ne":
            continue
        found = found or Mask(queries=right.dim, causal=False, window=0)
        if kind == "eq":  # chunks: on average half of one is seen
            found = replace(found, window=max(left.divisor // 2, 1))
        elif kind in ("le", "lt"):
            found = replace(found, causal=True)
        elif right.offset <= left.offset:  # a key that is not too far back
            window = left.offset - right.offset + (kind == "ge")
            found = replace(found, window=max(window, 1))
    return found


def _carried(found: Comparisons, eq: Equation) -> Comparisons:
    """The same in terms of the dims of an equation's result."""
    dims = _moved(eq) or {}
    return [
        (kind, replace(a, dim=dims[a.dim]), replace(b, dim=dims[b.dim]))
        for kind, a, b in found
        if a.dim in dims and b.dim in dims
    ]


def _moved(eq: Equation) -> Mapping[int, int] | None:
    """Which dim of the operand is which of the result; None for other work."""
    before, after = eq.ins[0].shape, eq.outs[0].shape
    if eq.primitive in _SAME:
        return {dim: dim for dim in range(len(before))}
    if eq.primitive == "link":
        return dict(eq.links)
    if eq.primitive not in _RESIZES:
        return None
    if eq.primitive == "broadcast_in_dim":
        return dict(enumerate(eq.params["broadcast_dimensions"]))
    wide, kept = _wide(before), _wide(after)
    if [before[i] for i in wide] != [after[i] for i in kept]:
        return None
    return dict(zip(wide, kept, strict=True))


def _wide(shape: Sequence[int]) -> list[int]:
    return [dim for dim, extent in enumerate(shape) if extent != 1]
