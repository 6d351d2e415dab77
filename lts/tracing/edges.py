"""Edges of the graph: arrays that pass from one node to another."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lts.graph import Edge
from lts.tracing.build import Crossing, Draft
from lts.tracing.flatten import Equation, Tensor, is_resized


def edges_of(
    draft: Draft, places: Any
) -> tuple[tuple[Edge, ...], list[Equation | Crossing]]:
    """Edges between the nodes of a draft, and the op or crossing of each.

    Args:
      places: where tensors stand, a `lts.tracing.finish.Finisher`.
    """
    found = list(_Edges(draft, places).all())
    return tuple(_with_dims([edge for edge, _ in found])), [at for _, at in found]


class _Edges:
    def __init__(self, draft: Draft, places: Any) -> None:
        self.draft = draft
        self.places = places
        self.bases = _bases(draft.program.equations)

    def all(self) -> Iterator[tuple[Edge, Equation | Crossing]]:
        """Edges of ops, then those where values meet."""
        for number, decision in enumerate(self.draft.decisions):
            eq, rule = decision.equation, decision.rule
            place = {n: i for i, n in enumerate(self.places.op_factors[number])}

            for tensor, dims in zip(eq.ins, rule.operands, strict=True):
                node = self.places.node_of(tensor)
                if node is not None:
                    own = placed(tensor, dims, place)
                    ends = (node, number, self.places.factors_of(tensor), own)
                    yield self._edge(tensor, *ends, eq.trips), eq
            for tensor, dims in zip(eq.outs, rule.results, strict=True):
                node = self.places.node_of(tensor)
                if node is not None:
                    own = placed(tensor, dims, place)
                    ends = (number, node, own, self.places.factors_of(tensor))
                    yield self._edge(tensor, *ends, eq.trips), eq
        for crossing in self.draft.crossings:
            source = self.places.node_of(crossing.source)
            target = self.places.node_of(crossing.target)
            if source is None or target is None:
                continue
            there = self.places.factors_of(crossing.target)
            dims = tuple(None if j is None else there[j] for j in crossing.dims)
            here = self.places.factors_of(crossing.source)
            ends = (source, target, here, dims)
            yield self._edge(crossing.source, *ends, crossing.trips), crossing

    def _edge(self, tensor: Tensor, source, target, here, there, trips) -> Edge:
        array, kept = self.places.array(tensor), [n > 1 for n in tensor.shape]
        shape = tuple(itertools.compress(array.shape, kept))
        return Edge(
            source=source,
            target=target,
            array=dataclasses.replace(array, shape=shape),
            source_factors=tuple(itertools.compress(here, kept)),
            target_factors=tuple(itertools.compress(there, kept)),
            tensor=self.bases.get(tensor.index, tensor.index),
            dims=(),
            trips=trips,
        )


def _with_dims(edges: Sequence[Edge]) -> Iterator[Edge]:
    """The edges, with the dims that those of one array can shard."""
    found: dict[tuple[int, int], set[int]] = {}
    for edge in edges:
        own = found.setdefault((edge.source, edge.tensor), set())
        for dim, pair in enumerate(
            zip(edge.source_factors, edge.target_factors, strict=True)
        ):
            if pair != (None, None):
                own.add(dim)
    for edge in edges:
        dims = tuple(sorted(found[edge.source, edge.tensor]))
        yield dataclasses.replace(edge, dims=dims)


def _bases(equations: Sequence[Equation]) -> dict[int, int]:
    """The array that a tensor is but for dims of extent 1, by index."""
    found: dict[int, int] = {}
    for eq in equations:
        if is_resized(eq.primitive, *(t.shape for t in (*eq.ins[:1], *eq.outs[:1]))):
            source = eq.ins[0].index
            found[eq.outs[0].index] = found.get(source, source)
    return found


def placed(
    tensor: Tensor, dims: Sequence[int | None], place: Mapping[int, int]
) -> tuple[int | None, ...]:
    """Per dim of an op's array, the place of its factor; None where it is one long."""
    return tuple(
        None if factor is None or extent == 1 else place.get(factor)
        for extent, factor in zip(tensor.shape, dims, strict=True)
    )
