"""When the arrays of a program lie in memory: what the activation peak is the most of.

A *moment* is a place of the flat program at which an op or a fused kernel runs. An
array lies in memory from the moment that writes it to the last one that reads it.
Arrays that a kernel makes and reads itself lie nowhere; a kernel is the elementwise
work that depends on the same last op. Arguments, what is updated in place of them, and
results have buffers of their own, and are counted apart.

Two habits of XLA's (seen in schedules for its H100 target): the slice of a stacked
weight or cache is copied before an op reads it, caches' slices of a layer at once; and
a cache is written at the end of a layer, unless the layer reads it.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from lts.graph import EXPERTS, Array, Held, Moment
from lts.tracing.build import Crossing, Draft
from lts.tracing.flatten import Equation, Tensor
from lts.tracing.groups import UnionFind

_RESHAPES = frozenset(
    "broadcast_in_dim copy_p expand_dims reshape squeeze stop_gradient".split()
)
_SLICES = frozenset(("dynamic_slice", "slice"))
_UPDATE = "dynamic_update_slice"
_IN_PLACE = frozenset((_UPDATE, "scatter", "scatter-add", "scatter-max", "scatter-min"))


Span = tuple[tuple[int, int], Tensor, dict[str, bool]]
"""First and last moment of an array, the array, and which flags of `Held` it has."""


class Places(Protocol):
    """Where tensors stand in the graph."""

    def node_of(self, tensor: Tensor) -> int | None:
        """Index of the value that a tensor belongs to, or None."""
        ...

    def factors_of(self, tensor: Tensor) -> tuple[int | None, ...]:
        """Per dim of a tensor, the factor of its value, or None."""
        ...

    def array(self, tensor: Tensor) -> Array:
        """The extent of a tensor."""
        ...


def moments_of(
    draft: Draft,
    places: Places,
    passes: Sequence[Equation | Crossing],
    scores: frozenset[int],
) -> tuple[tuple[Held, ...], tuple[Moment, ...]]:
    """Arrays that lie in memory for a while, and the moments at which most do.

    Moments at which nothing lies that does not at another, too, are left out.

    Args:
      passes: per edge of the graph, the op or crossing at which its array changes
        layout.
      scores: values that a fused attention never writes to memory.
    """
    found = _Lifetimes(draft)
    spans = [
        (span, _held(tensor, flags, places, scores))
        for span, tensor, flags in found.spans()
        if places.node_of(tensor) is not None
    ]
    moving = [found.span_of(at) for at in passes]
    moments: list[Moment] = []
    for place in sorted({start for (start, _), _ in spans} | {b for _, b in moving}):
        op = found.ops.get(place)
        own = Moment(
            name=found.name_of(place),
            held=tuple(i for i, ((a, b), _) in enumerate(spans) if a <= place <= b),
            moved=tuple(i for i, (a, b) in enumerate(moving) if a <= place <= b),
            experts=op if op is not None and found.is_experts(place) else None,
        )
        if not any(_covers(other, own) for other in moments):
            moments = [other for other in moments if not _covers(own, other)]
            moments.append(own)
    return tuple(held for _, held in spans), tuple(moments)


def _covers(moment: Moment, other: Moment) -> bool:
    """Whether all that lies in memory at `other` lies there at `moment`, too."""
    return (
        set(other.held) <= set(moment.held)
        and set(other.moved) <= set(moment.moved)
        and other.experts in (None, moment.experts)
    )


def _held(
    tensor: Tensor, flags: Mapping[str, bool], places: Places, scores: frozenset[int]
) -> Held:
    node = places.node_of(tensor)
    assert node is not None
    return Held(
        node=node,
        array=places.array(tensor),
        factors=places.factors_of(tensor),
        is_score=node in scores,
        **flags,
    )


class _Lifetimes:
    """From where to where in a flat program every array lies in memory."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.equations = draft.program.equations
        places = {id(eq): place for place, eq in enumerate(self.equations)}
        self.ops = {places[id(d.equation)]: i for i, d in enumerate(draft.decisions)}
        self.runs = {  # what runs, and not on every device alike
            place: eq
            for place, eq in enumerate(self.equations)
            if eq.trips and not all(t.is_local for t in (*eq.ins, *eq.outs))
        }
        self.places = places
        self.same = UnionFind()  # arrays in one buffer
        self.written: dict[int, int] = {}  # where an array is written first
        self.slices: set[int] = set()  # arrays that are copied out of larger ones
        self.carries: set[int] = set()  # arrays that a loop writes anew in every trip
        self.stored = {t.index for t in draft.program.arguments}
        for place, eq in self.runs.items():
            self._note_buffers(place, eq)
        self.buffers: dict[int, list[Tensor]] = defaultdict(list)
        self.reads: dict[int, list[int]] = defaultdict(list)  # by buffer
        self._note_reads()
        self.loops = list(_loops(self.runs))
        self.kernels, self.ends = self._kernels()

    def _note_buffers(self, place: int, eq: Equation) -> None:
        if eq.primitive == "link" and eq.outs[0].index in self.written:
            self.carries.add(eq.outs[0].index)  # back to the carry of a loop
            return
        for out in eq.outs:
            self.written.setdefault(out.index, place)
        if not eq.ins or len(eq.outs) != 1:
            return
        source, out = eq.ins[0], eq.outs[0]
        kept = source.index in self.stored
        is_link = eq.primitive == "link"
        if (is_link and len(source.shape) > len(out.shape)) or (
            kept and eq.primitive in _SLICES
        ):
            self.slices.add(out.index)
        elif (
            (is_link and source.shape == out.shape)
            or (kept and eq.primitive in _IN_PLACE)
            or (eq.primitive in _RESHAPES and _size(source) == _size(out))
        ):
            self.same.union(source.index, out.index)
            if kept:
                self.stored.add(out.index)

    def _note_reads(self) -> None:
        seen: set[int] = set()
        for place, eq in self.runs.items():
            for tensor in (*eq.ins, *eq.outs):
                if tensor.index not in seen and not tensor.is_local:
                    seen.add(tensor.index)
                    self.buffers[self.same.find(tensor.index)].append(tensor)
            for tensor in eq.ins:
                buffer = self.same.find(tensor.index)
                if buffer not in (self.same.find(out.index) for out in eq.outs):
                    self.reads[buffer].append(place)

    def _kernels(self) -> tuple[dict[int, int], dict[int, int]]:
        """Per place of an elementwise equation: its kernel, and where that is done."""
        level: dict[int, int] = {}  # of an array: the last op that it depends on
        fused, members = UnionFind(), dict[int, tuple[int, int]]()
        for place, eq in self.runs.items():
            is_kernel = place not in self.ops and eq.primitive != "link"
            last = max((level.get(t.index, -1) for t in eq.ins), default=-1)
            own = last if is_kernel else place
            for out in eq.outs:
                level.setdefault(out.index, own)
            if is_kernel and eq.primitive != _UPDATE:
                members[place] = own, eq.trips
                for tensor in eq.ins:
                    writer = self.written.get(tensor.index, -1)
                    if members.get(writer) == members[place]:
                        fused.union(place, writer)
        kernels = {place: fused.find(place) for place in members}
        last_of = {kernel: place for place, kernel in kernels.items()}
        return kernels, {place: last_of[kernel] for place, kernel in kernels.items()}

    def loop_end(self, place: int, without: int) -> int:
        """Last place of the largest loop around a place that is not around another."""
        ends = [
            last
            for first, last in self.loops
            if first <= place <= last and not first <= without <= last
        ]
        return max(ends, default=place)

    def moment(self, place: int) -> int:
        """The moment at which the equation at a place is done."""
        eq = self.equations[place]
        if eq.primitive != _UPDATE:
            return self.ends.get(place, place)
        end = min((b for a, b in self.loops if a <= place <= b), default=place)
        reads = self.reads[self.same.find(eq.outs[0].index)]
        is_read = any(
            place < other <= end and self.equations[other].primitive != "link"
            for other in reads
        )
        return place if is_read else end

    def span_of(self, at: Equation | Crossing) -> tuple[int, int]:
        """Where an array lies in the layout of an op, or of the value it meets."""
        if isinstance(at, Equation):
            place = self.places[id(at)]
            return place, place
        place = self.written.get(at.target.index, 0)
        if self.equations[place].primitive == _UPDATE:
            return place, self.moment(place)
        return self.moment(place), self.moment(place)

    def is_experts(self, place: int) -> bool:
        """Whether a mixture of experts runs at a place: it has buffers of its own."""
        return self.equations[place].primitive == EXPERTS

    def name_of(self, moment: int) -> str:
        """What runs at a moment: its scope or source line, and primitive."""
        eq = self.equations[moment]
        return f"{eq.name or eq.source} {eq.primitive}".strip()

    def spans(self) -> list[Span]:
        """Moments from and to which each array lies, and what is special of it.

        A kernel writes a result over an operand of its extent that nothing reads later.
        """
        found = list(self._spans())
        written: dict[int, list[tuple[int, float]]] = defaultdict(list)
        for (start, _), tensor, _ in found:
            if start in self.kernels:
                written[start].append((_size(tensor), tensor.itemsize))
        for number, ((start, last), tensor, flags) in enumerate(found):
            extent = _size(tensor), tensor.itemsize
            if start < last and not flags and extent in written[last]:
                written[last].remove(extent)
                found[number] = (start, last - 1), tensor, flags
        return found

    def _spans(self) -> Iterator[Span]:
        results = {self.same.find(t.index) for t in self.draft.program.results}
        siblings = self._siblings()
        for buffer, tensors in self.buffers.items():
            first = min(tensors, key=lambda t: self.written.get(t.index, -1))
            reads = self.reads[buffer]
            if first.index in self.stored or first.index not in self.written:
                continue
            place = self.written[first.index]
            if buffer in results:
                last = len(self.equations) - 1
                yield (self.moment(place), last), first, {"is_result": True}
                continue
            if not reads:
                continue
            if first.index in self.slices:
                start = min(map(self.moment, siblings.get(buffer, reads)))
                span = start, max(map(self.moment, reads))
                yield span, first, {"is_copy": True}
                continue
            own = self.kernels.get(place)
            if own is not None and all(self.kernels.get(r) == own for r in reads):
                continue  # stays in registers
            if not self.carries & {t.index for t in tensors}:
                reads = [self.loop_end(read, place) for read in reads]
            yield (self.moment(place), max(map(self.moment, reads))), first, {}

    def _siblings(self) -> Mapping[int, list[int]]:
        """Per slice of a cache, where it and the others of its layer are read."""
        layers: dict[int, list[int]] = defaultdict(list)
        for index in self.slices:
            place = self.written[index]
            if self.equations[place].primitive in _SLICES:
                end = min((b for a, b in self.loops if a <= place <= b), default=place)
                layers[end].append(self.same.find(index))
        found = {}
        for buffers in layers.values():
            reads = [place for buffer in buffers for place in self.reads[buffer]]
            found |= dict.fromkeys(buffers, reads)
        return found


def _loops(runs: Mapping[int, Equation]) -> Iterator[tuple[int, int]]:
    """First and last place of all that runs more often than what is around it."""
    open_at: list[tuple[int, int]] = []  # trips, first place
    last = 0
    for place, eq in runs.items():
        while open_at and eq.trips < open_at[-1][0]:
            yield open_at.pop()[1], last
        if eq.trips > (open_at[-1][0] if open_at else 1):
            open_at.append((eq.trips, place))
        last = place
    for _, first in reversed(open_at):
        yield first, last


def _size(tensor: Tensor) -> int:
    return math.prod(tensor.shape)
