"""Second pass of tracing: groups of arrays to values, dim classes to factors.

What comes out is the `OpGraph`: nodes (ops, then values), edges between them, the
elementwise kernels and reductions inside values, and groups of ops that share roles.
Factors are named by `lts.tracing.labels`.
"""

import dataclasses
import math
from collections.abc import Sequence

from lts.graph import (
    NONE,
    Array,
    Factor,
    Kernel,
    Leaf,
    Node,
    NodeKind,
    Operand,
    OpGraph,
    Reduction,
)
from lts.tracing.attention import fuse_attention
from lts.tracing.build import Decision, Draft, members
from lts.tracing.edges import edges_of, placed
from lts.tracing.flatten import Equation, Tensor
from lts.tracing.groups import UnionFind
from lts.tracing.kernels import find_kernels
from lts.tracing.lifetimes import moments_of
from lts.tracing.loads import Loads
from lts.tracing.merged import merged_products

ARGUMENTS = ("argmax", "argmin")
"""Reductions to a place: compilers gather every device's candidate."""

PRECEDENCE = (NodeKind.CACHE, NodeKind.PARAMETER, NodeKind.INPUT)


class Finisher:
    """Builds the graph; keeps where every tensor went, for `apply`."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.groups = draft.groups
        self._block_self_crossings()
        self.tensors = sorted(
            members(draft).items(), key=lambda item: min(t.index for t in item[1])
        )
        self.num_ops = len(draft.decisions)
        self.value_of = {
            root: self.num_ops + i for i, (root, _) in enumerate(self.tensors)
        }
        self.value_factors: dict[int, list[tuple[int, int]]] = {}
        for root, tensors in self.tensors:
            self.value_factors[self.value_of[root]] = self._classes(tensors)
        self.op_factors = [self._op_factors(d) for d in draft.decisions]
        self.loads = Loads(draft, self.node_of)
        self.labels, self.batched = self._labels()

    def _block_self_crossings(self) -> None:
        kept = []
        for crossing in self.draft.crossings:
            source, target = crossing.source, crossing.target
            if self.groups.group(source) != self.groups.group(target):
                kept.append(crossing)
                continue
            for i, j in enumerate(crossing.dims):  # one layout cannot be two
                if j is None or self.groups.dim(source, i) == self.groups.dim(
                    target, j
                ):
                    continue
                self.groups.block(source, (i,))
                self.groups.block(target, (j,))
        self.draft.crossings = kept

    def _classes(self, tensors: list[Tensor]) -> list[tuple[int, int]]:
        found: dict[tuple[int, int], None] = {}
        for tensor in sorted(tensors, key=lambda t: -math.prod(t.shape)):
            for dim, extent in enumerate(tensor.shape):
                root = self.groups.dim(tensor, dim)
                if extent > 1 and not self.groups.is_blocked(root):
                    found.setdefault(root)
        return list(found)

    def node_of(self, tensor: Tensor) -> int | None:
        """Index of the value that a tensor belongs to; None if it has no layout."""
        if tensor.is_local or tensor.index in self.draft.absorbed:
            return None
        return self.value_of[self.groups.group(tensor)]

    def factors_of(self, tensor: Tensor) -> tuple[int | None, ...]:
        """Per dim of a tensor, the factor of its value, or None."""
        node = self.node_of(tensor)
        if node is None:
            return (None,) * len(tensor.shape)
        order = {root: i for i, root in enumerate(self.value_factors[node])}
        return tuple(
            order.get(self.groups.dim(tensor, dim)) if extent > 1 else None
            for dim, extent in enumerate(tensor.shape)
        )

    def dim_class(self, tensor: Tensor, dim: int) -> tuple[int, int]:
        """Equal for dims of arrays of one value that are the same index."""
        return self.groups.dim(tensor, dim)

    def place_of(self, op: int, factor: int | None) -> int | None:
        """Number of a rule's factor among those of the op that may be sharded."""
        numbers = self.op_factors[op]
        return numbers.index(factor) if factor in numbers else None

    def _op_arrays(self, decision: Decision):
        eq, rule = decision.equation, decision.rule
        yield from zip(eq.ins, rule.operands, strict=True)
        yield from zip(eq.outs, rule.results, strict=True)

    def _op_factors(self, decision: Decision) -> list[int]:
        """Numbers of the rule's factors that may be sharded, in order."""
        rule = decision.rule
        legal = {i for i, n in enumerate(rule.sizes) if n > 1} - rule.blocked
        for tensor, dims in self._op_arrays(decision):
            if tensor.is_local:
                continue
            places = zip(tensor.shape, dims, self.factors_of(tensor), strict=True)
            for extent, factor, own in places:
                if factor is not None and own is None and extent > 1:
                    legal.discard(factor)
        return sorted(legal)

    def _labels(self) -> tuple[UnionFind, set]:
        labels = UnionFind()
        for number, decision in enumerate(self.draft.decisions):
            if decision.rule.fixed:
                continue  # its dims have axes in common, not indexes
            for tensor, dims in self._op_arrays(decision):
                if tensor.is_local:
                    continue
                for dim, factor in enumerate(dims):
                    if factor is not None and tensor.shape[dim] > 1:
                        root = self.groups.dim(tensor, dim)
                        labels.union(("op", number, factor), root)
        for crossing in self.draft.crossings:
            for i, j in enumerate(crossing.dims):
                if j is not None:
                    labels.union(
                        self.groups.dim(crossing.source, i),
                        self.groups.dim(crossing.target, j),
                    )
        batched = set()
        for tensor, argument in zip(
            self.draft.program.arguments, self.draft.arguments, strict=True
        ):
            for dim in argument.batch_dims:
                batched.add(labels.find(self.groups.dim(tensor, dim)))
        return labels, batched

    def array(self, tensor: Tensor) -> Array:
        """The extent of a tensor."""
        power = 0
        if not tensor.is_local:
            power = sum(
                self.labels.find(self.groups.dim(tensor, dim)) in self.batched
                for dim in range(len(tensor.shape))
            )
        return Array(
            shape=tensor.shape, itemsize=tensor.itemsize, batch_power=min(power, 1)
        )

    def read(self, tensor: Tensor) -> Array:
        """What an op reads to get an operand: of a converted argument, its bytes.

        Contractions convert and scale weights and caches as they load them.
        """
        array, origin = self.array(tensor), self.loaded_from(tensor)
        if origin is None:
            return array
        return dataclasses.replace(array, itemsize=origin.itemsize)

    def loaded_from(self, tensor: Tensor) -> Tensor | None:
        """The weight or cache that elementwise work makes a tensor of, or None."""
        return self.loads.origin(tensor)

    def graph(self) -> OpGraph:
        """The finished graph, factors not yet named."""
        label_numbers: dict = {}

        def label(key) -> int:
            root = self.labels.find(key)
            return label_numbers.setdefault(root, len(label_numbers))

        ops = [self._op(i, d, label) for i, d in enumerate(self.draft.decisions)]
        ops = merged_products(ops, self.draft)
        kernels = find_kernels(self.draft, self)
        values = [
            self._value(root, tensors, label, kernels.get(self.value_of[root], ()))
            for root, tensors in self.tensors
        ]
        nodes = fuse_attention(self.draft, self, ops, values)
        edges, passes = edges_of(self.draft, self)
        scores = frozenset(
            operand.value
            for node in nodes
            for operand in (*node.operands, *node.results)
            if not operand.streamed
        )
        held, moments = moments_of(self.draft, self, passes, scores)
        return OpGraph(
            nodes=tuple(nodes),
            edges=edges,
            groups=(),
            held=held,
            moments=moments,
            replicated_bytes=self.draft.replicated_bytes,
            loop_copy_bytes=self.loads.copied_bytes(),
            notes=tuple(self.draft.notes),
        )

    def _op(self, index: int, decision: Decision, label) -> Node:
        eq, rule = decision.equation, decision.rule
        numbers = self.op_factors[index]
        units: dict[int, int] = {n: rule.sizes[n] for n in numbers}
        for tensor, dims in self._op_arrays(decision):
            for dim, factor in enumerate(dims):
                if factor in units and not tensor.is_local:
                    own = self.groups.units(self.groups.dim(tensor, dim))
                    units[factor] = math.gcd(units[factor], own)
        reductions = rule.reductions()
        factors = tuple(
            Factor(
                name="",
                size=rule.sizes[n],
                units=units[n],
                batched=self.labels.find(("op", index, n)) in self.batched,
                reduction=n in reductions,
                label=label(("op", index, n)),
            )
            for n in numbers
        )
        place = {n: i for i, n in enumerate(numbers)}
        for a, b in rule.pairs:
            if a in place and b in place:
                size = min(rule.sizes[a], rule.sizes[b])
                both, key = (place[a], place[b]), ("op", index, (a, b))
                factors += (
                    Factor(name="", size=size, units=size, label=label(key), both=both),
                )

        def operand(number: int, tensor: Tensor, dims) -> Operand:
            node = self.node_of(tensor)
            return Operand(
                array=self.read(tensor),
                factors=placed(tensor, dims, place),
                value=-1 if node is None else node,
                passes=rule.passes.get(number, 1),
            )

        arrays = [operand(i, *a) for i, a in enumerate(self._op_arrays(decision))]

        return Node(
            index=index,
            name=decision.name,
            kind=NodeKind.OP,
            factors=factors,
            trips=eq.trips,
            primitive=eq.primitive,
            dtype=str(eq.ins[0].dtype),
            flops=rule.flops,
            operands=tuple(arrays[: len(eq.ins)]),
            results=tuple(arrays[len(eq.ins) :]),
            source=eq.source,
            fixed=tuple(
                (axis, size, NONE if n not in place else place[n] + 1)
                for axis, (size, n) in rule.fixed.items()
            ),
            exchanges=tuple(rule.exchanges),
        )

    def _value(
        self, root: int, tensors: list[Tensor], label, kernels: Sequence[Kernel]
    ) -> Node:
        index = self.value_of[root]
        largest = max(tensors, key=lambda t: (math.prod(t.shape), -t.index))
        sizes = {}
        for tensor in tensors:
            for dim, extent in enumerate(tensor.shape):
                key = self.groups.dim(tensor, dim)
                sizes[key] = max(extent, sizes.get(key, 0))
        factors = tuple(
            Factor(
                name="",
                size=sizes[key],
                units=self.groups.units(key),
                batched=self.labels.find(key) in self.batched,
                label=label(key),
            )
            for key in self.value_factors[index]
        )
        leaves, kinds = self._leaves(index)
        kind = next((k for k in PRECEDENCE if k in kinds), NodeKind.ACTIVATION)
        return Node(
            index=index,
            name=self._value_name(tensors, leaves),
            kind=kind,
            factors=factors,
            leaves=tuple(leaves),
            kernels=tuple(kernels),
            reductions=tuple(
                self._reduction(eq, dims)
                for eq, dims in self.draft.reductions
                if self.node_of(eq.ins[0]) == index
            ),
            array=self.array(largest),
            array_factors=self.factors_of(largest),
        )

    def _leaves(self, index: int) -> tuple[list[Leaf], set[NodeKind]]:
        draft, leaves, kinds = self.draft, [], set()
        for tensor, argument in zip(
            draft.program.arguments, draft.arguments, strict=True
        ):
            if self.node_of(tensor) == index:
                kinds.add(argument.kind)
                leaves.append(self._leaf(tensor, argument.path, False))
        for tensor, path in zip(draft.program.results, draft.result_paths, strict=True):
            if self.node_of(tensor) == index:
                leaves.append(self._leaf(tensor, path, True))
        return leaves, kinds

    def _leaf(self, tensor: Tensor, path: str, is_output: bool) -> Leaf:
        return Leaf(
            path=path,
            array=self.array(tensor),
            factors=self.factors_of(tensor),
            is_output=is_output,
        )

    def _value_name(self, tensors: list[Tensor], leaves: list[Leaf]) -> str:
        for leaf in leaves:
            if not leaf.is_output:
                return leaf.path
        inside = {tensor.index for tensor in tensors}
        for decision in self.draft.decisions:
            for number, out in enumerate(decision.equation.outs):
                if out.index in inside:
                    return (
                        f"{decision.name}:{number}" if number else decision.name + ":"
                    )
        for leaf in leaves:
            return leaf.path
        for eq in self.draft.follows:
            if eq.outs[0].index in inside:
                return f"{eq.name or eq.source} {eq.primitive}"
        return "value"

    def _reduction(self, eq: Equation, dims: tuple[int, ...]) -> Reduction:
        own, result = self.factors_of(eq.ins[0]), self.array(eq.outs[0])
        values = dataclasses.replace(result, itemsize=eq.ins[0].itemsize)
        return Reduction(
            array=result,
            gathered=(values, result) if eq.primitive in ARGUMENTS else (),
            factors=self.factors_of(eq.outs[0]),
            reduced=tuple(f for f in (own[dim] for dim in dims) if f is not None),
            trips=eq.trips,
        )
