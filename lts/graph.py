"""The traced program as data: nodes that carry a choice, and edges between them.

A program becomes one `OpGraph`. Its *nodes* are of two kinds, and both are described by
*factors*, the indices of an einsum-like rule `(b, m, k), (b, k, n) -> (b, m, n)`:

- an *op* (contraction, gather, sort, opaque call) computes; its factors may be
  reductions;
- a *value* is a group of arrays that elementwise and layout operations tie together
  (the residual stream; a cache and its updates; a parameter and its slices): they share
  one layout.

A choice of a node says, for every mesh axis, which one factor it shards, or none; an op
may offer two at once (`Factor.both`): experts and the tokens that travel to them. An
*edge* is an array that passes from one node to another; where the layouts that the two
ends ask for differ, it is resharded. So the cost of a program is a sum over nodes and
edges, whatever the program was.

Sizes are those at the traced batch; `batched` factors scale with the serving batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

NONE = 0
"""State of a mesh axis that shards nothing; factor `i` is state `i + 1`."""

EXPERTS = "expert_ffn"
"""Primitive of a mixture of experts, `lts.expert_ffn`."""


class NodeKind(StrEnum):
    """What a node is; arguments are values that the caller passes in."""

    OP = "op"
    ACTIVATION = "activation"
    INPUT = "input"
    PARAMETER = "parameter"
    CACHE = "cache"


@dataclass(frozen=True, kw_only=True)
class Factor:
    """One index of a node.

    Attributes:
      name: name of the class; unique inside its node.
      size: extent at the traced batch.
      units: the number of ways that it is sharded must divide this (heads, not
        elements, where a reshape splits the dim).
      batched: whether the size scales with the serving batch.
      reduction: summed over by an op, so that sharding it leaves partial sums.
      label: class of factors that are tied through the program; equal labels mean
        the same index of the model (heads, feed-forward, ...).
      both: two other factors of the node that an axis shards at once in this state
        (tokens and experts of an expert op); the factor then lies on no dim itself.
    """

    name: str
    size: int
    units: int
    batched: bool = False
    reduction: bool = False
    label: int = -1
    both: tuple[int, int] | None = None


def coverage(factors: Sequence[Factor]) -> np.ndarray:
    """Which factors an axis shards in every state of a node.

    Returns:
      host bool `[1 + factors, factors]`; a factor that is `both` of two shards these.
    """
    table = np.zeros((1 + len(factors), len(factors)), bool)
    for i, factor in enumerate(factors):
        table[i + 1, list(factor.both) if factor.both else i] = True
    return table


@dataclass(frozen=True, kw_only=True)
class Array:
    """Extent of an array: its elements at the traced batch, how they are sharded.

    Attributes:
      shape: global shape at the traced batch.
      itemsize: bytes per element.
      batch_power: 1 if the number of elements scales with the batch, else 0.
    """

    shape: tuple[int, ...]
    itemsize: float
    batch_power: int = 0

    @property
    def nbytes(self) -> float:
        """Bytes of the whole array at the traced batch."""
        size = self.itemsize
        for extent in self.shape:
            size *= extent
        return size


@dataclass(frozen=True, kw_only=True)
class Operand:
    """An operand or result of an op: its array and the factor behind every dim.

    `factors[i]` is the index of the op's factor on dim `i`, or None. `passes` is how
    often its bytes travel between memory and the chip: 0 of a table of which rows are
    read, and of an array that is updated in place; 2 of these rows and updates.
    """

    array: Array
    factors: tuple[int | None, ...]
    value: int
    streamed: bool = True  # False: stays in registers of a fused kernel
    passes: int = 1


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """Elementwise work inside a value: arrays read and written by one fused loop.

    Each entry is an array and, per dim, the factor of the value that lies on it. One
    `in_place` writes a part of a larger array (a cache update).
    """

    arrays: tuple[tuple[Array, tuple[int | None, ...]], ...]
    trips: int
    in_place: bool = False


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """A reduction inside a value: sharding a reduced factor costs an all-reduce.

    `array` is the result; `factors` its dims' factors; `reduced` the factors summed.
    Where `gathered` has arrays, of the result's shape, these are gathered instead: the
    candidates of an argmax, their values and their indices.
    """

    array: Array
    factors: tuple[int | None, ...]
    reduced: tuple[int, ...]
    trips: int
    gathered: tuple[Array, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """A collective that the program itself asks for, inside a `shard_map`.

    Attributes:
      kind: as `lts.cost.collective.STEPS` has it.
      axes: mesh axes over which it goes.
      operand_bytes, result_bytes: on one device.
      trips: of the loops around it, inside the `shard_map`.
    """

    kind: str
    axes: tuple[str, ...]
    operand_bytes: float
    result_bytes: float
    trips: int = 1


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Of a contraction that is a part of a fused attention: what the kernel works on.

    Attributes:
      queries, keys: positions at the traced sizes; one query is a decode step.
      query_factor, key_factor: the op's factors on them, or None.
      query_operand, key_operand: which of the op's arrays (operands, then results) have
        a row per query (queries, or what they attend to) and per key (keys, or values).
      head_dim: summed over for a score.
      latent: whether keys are compressed, with a rotated part beside (two products).
      causal: whether a query sees no key after it.
      window: keys that a query sees at most; 0 for all.
      share: of the kernel's time that is this op's.
    """

    queries: int
    keys: int
    query_factor: int | None
    key_factor: int | None
    query_operand: int
    key_operand: int
    head_dim: int
    latent: bool
    causal: bool
    window: int
    share: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """An argument or result of the program that belongs to a value.

    `factors[i]` is the value's factor on dim `i` of the leaf, or None.
    """

    path: str
    array: Array
    factors: tuple[int | None, ...]
    is_output: bool = False


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node: an op, or a value (a group of arrays with one layout).

    Attributes:
      fixed: mesh axes that the program has bound (`shard_map`): name, size, and the
        state that the axis has in every plan.
      exchanges: collectives of such an op.
      attention: of an op that is a part of a fused attention.
      merged: of a product by a weight, the weights of all products that read the same
        array over its own: compilers and engines run them as one.
    """

    index: int
    name: str
    kind: NodeKind
    factors: tuple[Factor, ...]
    trips: int = 1
    primitive: str = ""
    dtype: str = "float32"  # of the arithmetic of an op
    flops: float = 0.0  # of one execution at the traced batch
    operands: tuple[Operand, ...] = ()
    results: tuple[Operand, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    reductions: tuple[Reduction, ...] = ()
    leaves: tuple[Leaf, ...] = ()
    array: Array | None = None  # of a value: its largest member
    array_factors: tuple[int | None, ...] = ()
    source: str = ""  # file:line in the user's code
    fixed: tuple[tuple[str, int, int], ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    attention: Attention | None = None
    merged: float = 1.0

    @property
    def is_op(self) -> bool:
        """Whether the node computes (else it is a value)."""
        return self.kind is NodeKind.OP


@dataclass(frozen=True, kw_only=True)
class Edge:
    """An array that passes from node `source` to node `target`.

    `source_factors[i]` is the factor of the source on dim `i` of the array, or None;
    `target_factors` likewise. Reduction factors of the source lie on no dim: sharding
    one makes the array a partial sum. `tensor` is equal for edges that carry the same
    array, so that equal reshards of it are counted once; `dims` are those of its dims
    that any of these edges can shard.
    """

    source: int
    target: int
    array: Array
    source_factors: tuple[int | None, ...]
    target_factors: tuple[int | None, ...]
    tensor: int
    dims: tuple[int, ...]
    trips: int = 1


@dataclass(frozen=True, kw_only=True)
class Held:
    """An array that lies in memory for a while, in the layout of value `node`.

    Attributes:
      factors: per dim, the value's factor, or None.
      is_copy: whether it is a slice of a stacked array, which XLA copies and kernels
        of engines read where it lies.
      is_score: whether a fused attention keeps it in registers.
      is_result: whether the program returns it: XLA gives it a buffer of its own.
    """

    node: int
    array: Array
    factors: tuple[int | None, ...]
    is_copy: bool = False
    is_score: bool = False
    is_result: bool = False


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What lies in memory while something runs: numbers of `OpGraph.held`.

    The arrays of the edges in `moved` lie there a second time if they are resharded: in
    the layout of the op at one end, or else of the value that they meet. `experts` is
    the node of a mixture of experts that runs then, which has buffers of its own.
    """

    name: str
    held: tuple[int, ...]
    moved: tuple[int, ...]
    experts: int | None = None


@dataclass(frozen=True, kw_only=True)
class OpGraph:
    """A traced program: nodes, edges, and what no node carries.

    Attributes:
      groups: name and ops of each group that shares roles.
      hub_labels: labels of the residual stream.
      held, moments: arrays that the program makes on its way, and when they lie in
        memory; moments at which no more lies than at another are left out.
      replicated_bytes: traffic of work that depends on no shardable array.
      loop_copy_bytes: what XLA moves on top because layers are scanned: it copies the
        slice of a stacked weight before a contraction reads it, and a stacked cache
        into and out of the loop. Not in any price; unrolled layers have none.
      notes: what the user should know.
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    groups: tuple[tuple[str, tuple[int, ...]], ...]
    hub_labels: frozenset[int] = frozenset()
    held: tuple[Held, ...] = ()
    moments: tuple[Moment, ...] = ()
    replicated_bytes: float = 0.0
    loop_copy_bytes: float = 0.0
    notes: tuple[str, ...] = field(default=())

    @property
    def ops(self) -> tuple[Node, ...]:
        """Nodes that compute, in program order."""
        return tuple(node for node in self.nodes if node.is_op)

    @property
    def values(self) -> tuple[Node, ...]:
        """Nodes that are values, in order of first appearance."""
        return tuple(node for node in self.nodes if not node.is_op)

    @property
    def flops(self) -> float:
        """Arithmetic of all ops, regions times their trips, at the traced batch."""
        return sum(node.flops * node.trips for node in self.ops)

    @property
    def compulsory_bytes(self) -> float:
        """Bytes that any execution moves: arguments read, results written, once each.

        Of a table that is only looked up, the rows; of an argument that is updated in
        place, what is written. At the traced batch, of the whole program.
        """
        return sum(self._read_bytes(v) + self._written_bytes(v) for v in self.values)

    def _read_bytes(self, value: Node) -> float:
        nbytes = sum(leaf.array.nbytes for leaf in value.leaves if not leaf.is_output)
        readers = [self.nodes[e.target] for e in self.edges if e.source == value.index]
        if not readers or any(node.primitive != "gather" for node in readers):
            return nbytes
        looked_up = [
            result.array.nbytes * node.trips
            for node in readers
            if node.operands[0].value == value.index
            for result in node.results
        ]
        return min(nbytes, sum(looked_up)) if looked_up else nbytes

    def _written_bytes(self, value: Node) -> float:
        written = sum(leaf.array.nbytes for leaf in value.leaves if leaf.is_output)
        updates = sum(
            array.nbytes * kernel.trips
            for kernel in value.kernels
            if kernel.in_place
            for array, _ in kernel.arrays[:1]
        )
        is_argument = any(not leaf.is_output for leaf in value.leaves)
        writers = [self.nodes[e.source] for e in self.edges if e.target == value.index]
        in_place = [
            operand.array.nbytes * node.trips
            for node in writers
            if node.results and not node.results[0].passes
            for operand in node.operands
            if operand.passes > 1
        ]
        if in_place or (updates and is_argument):
            return min(written, updates + sum(in_place))
        return written

    def node(self, name: str) -> Node:
        """The node called `name`.

        Raises:
          KeyError: if there is none; the message lists the names.
        """
        for node in self.nodes:
            if node.name == name:
                return node
        known = ", ".join(node.name for node in self.nodes)
        raise KeyError(f"no node {name!r} in the graph; it has: {known}")
