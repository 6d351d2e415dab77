"""Attention in a traced program: contractions that run as one fused kernel.

The pattern: an array of scores that contractions write (one, or several whose sum it
is) and one reads, reduced in between (softmax) along the index that the reader sums
over. Fused kernels keep the scores in registers, and skip what a mask hides.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from lts.graph import Attention, Node, Operand
from lts.tracing.build import Draft
from lts.tracing.flatten import Equation, Tensor
from lts.tracing.masks import Mask, Masks

_PRODUCT = "dot_general"


class Places(Protocol):
    """Where arrays and their dims stand in the graph."""

    def node_of(self, tensor: Tensor) -> int | None:
        """Index of the value that a tensor belongs to, or None."""
        ...

    def dim_class(self, tensor: Tensor, dim: int) -> Any:
        """Equal for dims of arrays of one value that are the same index."""
        ...

    def place_of(self, op: int, factor: int | None) -> int | None:
        """Number of a rule's factor among those of the op that may be sharded."""
        ...


def fuse_attention(
    draft: Draft, places: Places, ops: Sequence[Node], values: Sequence[Node]
) -> list[Node]:
    """All nodes; those of an attention are marked, and scores stay in registers."""
    nodes = [*ops, *values]
    writers: dict[int, list[int]] = defaultdict(list)
    readers: dict[int, list[int]] = defaultdict(list)
    for op in ops:
        for result in op.results:
            writers[result.value].append(op.index)
        for operand in op.operands:
            readers[operand.value].append(op.index)
    finder = _Finder(draft, places)
    for value in values:
        wrote, read = writers[value.index], readers[value.index]
        if not wrote or len(read) != 1 or value.leaves:
            continue
        reader = nodes[read[0]]
        summed = {f.label for f in reader.factors if f.reduction}
        reduced = {value.factors[f].label for r in value.reductions for f in r.reduced}
        members = [*wrote, reader.index]
        if not reduced & summed or any(nodes[i].primitive != _PRODUCT for i in members):
            continue
        nodes[value.index] = dataclasses.replace(value, kernels=())
        flops = sum(nodes[i].flops for i in members)
        marks = finder.marks(value.index, members)
        for index in members:
            node, mark = nodes[index], marks.get(index)
            if mark is not None:
                mark = dataclasses.replace(mark, share=node.flops / flops)
            nodes[index] = dataclasses.replace(
                node,
                operands=_unstreamed(node.operands, value.index),
                results=_unstreamed(node.results, value.index),
                attention=mark,
            )
    return nodes


def _unstreamed(operands: tuple[Operand, ...], value: int) -> tuple[Operand, ...]:
    return tuple(
        dataclasses.replace(o, streamed=False) if o.value == value else o
        for o in operands
    )


class _Finder:
    """What the fused kernels of a program are, at each of their contractions."""

    def __init__(self, draft: Draft, places: Places) -> None:
        self.draft, self.places = draft, places
        self.masks = Masks(draft.program)
        self.masking: Mapping[int, list[Equation]] = defaultdict(list)
        for eq in draft.follows:
            node = places.node_of(eq.outs[0])
            if eq.primitive in ("select_n", "add") and node is not None:
                self.masking[node].append(eq)

    def marks(self, value: int, members: Sequence[int]) -> dict[int, Attention]:
        """By op. Nothing where the dims of the scores cannot be told apart.

        Args:
          value: the scores.
          members: ops that write them, and last the one that reads them.
        """
        *wrote, reader = members
        laid = {index: self._laid(index, value) for index in members}
        scores, dims, summed = laid[reader]
        keys = {number for number in dims if number in summed}
        if len(keys) != 1:
            return {}
        key_class = self._class(scores, dims, keys.pop())
        mask, query_class = self._mask(value, key_class)
        if query_class is None:
            query_class = self._unmasked(laid[wrote[0]], wrote[0], key_class)
        head_dim = 1
        for index in wrote:
            rule = self.draft.decisions[index].rule
            own = 1
            for number in rule.reductions():
                own *= rule.sizes[number]
            head_dim = own + (head_dim if index != wrote[0] else 0)
        found = {}
        for index in members:
            scores, dims, _ = laid[index]
            key = self._factor(scores, dims, key_class)
            query = self._factor(scores, dims, query_class)
            arrays = self._arrays(index)
            others = [
                number
                for number, (tensor, _) in enumerate(arrays)
                if self.places.node_of(tensor) != value
            ]
            streamed = [number for number in others if key in arrays[number][1]]
            if key is None or len(others) != 2 or len(streamed) != 1:
                return {}
            sizes = self.draft.decisions[index].rule.sizes
            found[index] = Attention(
                keys=sizes[key],
                queries=1 if query is None else sizes[query],
                key_factor=self.places.place_of(index, key),
                query_factor=self.places.place_of(index, query),
                key_operand=streamed[0],
                query_operand=next(n for n in others if n != streamed[0]),
                head_dim=head_dim,
                latent=len(wrote) == 2,
                causal=mask is not None and mask.causal,
                window=0 if mask is None else mask.window,
            )
        return found

    def _arrays(self, index: int) -> list[tuple[Tensor, list[int | None]]]:
        """Operands and results of an op, with the factor of its rule on every dim."""
        decision = self.draft.decisions[index]
        eq, rule = decision.equation, decision.rule
        return [
            *zip(eq.ins, rule.operands, strict=True),
            *zip(eq.outs, rule.results, strict=True),
        ]

    def _laid(
        self, index: int, value: int
    ) -> tuple[Tensor, list[int | None], set[int]]:
        """The scores as an op has them, their factors, and what the op sums over."""
        tensor, dims = next(
            (tensor, dims)
            for tensor, dims in self._arrays(index)
            if self.places.node_of(tensor) == value
        )
        return tensor, dims, self.draft.decisions[index].rule.reductions()

    def _class(self, tensor: Tensor, dims: list[int | None], factor: int) -> Any:
        return self.places.dim_class(tensor, dims.index(factor))

    def _factor(
        self, tensor: Tensor, dims: list[int | None], wanted: Any
    ) -> int | None:
        """The factor on the dim of a class, or None."""
        for dim, factor in enumerate(dims):
            if self.places.dim_class(tensor, dim) == wanted:
                return factor
        return None

    def _mask(self, value: int, key_class: Any) -> tuple[Mask | None, Any]:
        """The first mask of positions on the scores, and the class of its queries."""
        for eq in self.masking[value]:
            out = eq.outs[0]
            classes = [self.places.dim_class(out, d) for d in range(len(out.shape))]
            if key_class not in classes:
                continue
            keys = classes.index(key_class)
            if eq.primitive == "select_n":
                mask = self.masks.of_selection(eq, keys)
            else:
                biases = (t for t in eq.ins if t.is_local and len(t.shape) > 1)
                found = (self.masks.of_bias(tensor, keys) for tensor in biases)
                mask = next((m for m in found if m is not None), None)
            if mask is not None:
                return mask, classes[mask.queries]
        return None, None

    def _unmasked(
        self,
        laid: tuple[Tensor, list[int | None], set[int]],
        index: int,
        key_class: Any,
    ) -> Any:
        """Class of the queries without a mask: as many as keys, and not on the keys."""
        scores, dims, _ = laid
        key = self._factor(scores, dims, key_class)
        on_keys: set[int | None] = set()
        for tensor, own in self._arrays(index):
            if tensor is not scores and key in own:
                on_keys |= set(own)
        size = self.draft.decisions[index].rule.sizes
        for dim, factor in enumerate(dims):
            if factor is None or key is None or factor in on_keys:
                continue
            if size[factor] == size[key]:
                return self.places.dim_class(scores, dim)
        return None
