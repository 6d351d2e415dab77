"""Tables over degrees and choices from which a candidate is priced by look-ups.

For every node, `node_time_s[choice, batch]`; for every edge, seconds as a function of
the array's layout at both ends and its bytes: one table serves all arrays
(`lts.cost.reshards`). All tables of one kind lie in one flat array with an offset per
owner, so that scoring is a few gathers however large the program
(`lts.evaluate.flat`). Edges that carry the same array to the same layout are one
reshard.

Batches are per pipeline stage: a stage works on `concurrency / stages` sequences.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from lts.cost.memory import (
    Lying,
    expert_bytes,
    is_looped,
    leaf_bytes,
    lying,
    output_bytes,
)
from lts.cost.nodes import node_time_s
from lts.cost.pricing import Pricing
from lts.cost.reshards import Reshards, reshards
from lts.cost.sharding import Sharding, shard
from lts.graph import Edge, Node, NodeKind, OpGraph
from lts.hardware import Cluster
from lts.space import Space

DECODE = "decode"
"""Phase that generates a token per sequence."""


@dataclass(kw_only=True)
class Flat:
    """Tables of several owners in one array, rows `[total, width]`, by offset."""

    rows: list[np.ndarray] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    total: int = 0

    def add(self, table: np.ndarray) -> int:
        """Append a table `[rows, width]` or `[rows]`; returns its offset."""
        self.rows.append(table)
        self.offsets.append(self.total)
        self.total += len(table)
        return self.offsets[-1]

    def array(self, dtype: type[np.number] = np.float32) -> np.ndarray:
        """All rows, one below the other."""
        return np.concatenate(self.rows).astype(dtype) if self.rows else np.zeros(0)


@dataclass(frozen=True, eq=False, kw_only=True)
class EdgeRecord:
    """One edge in tables: variables at its ends, layouts of its array, its bytes."""

    edge: Edge
    source: int
    target: int
    source_codes: np.ndarray  # [choices of the source] layout code
    target_codes: np.ndarray  # [choices of the target]
    nbytes: float  # of one trip, where the batch does not change it
    bytes_per_sequence: float  # of one trip, where it does
    first_like: int  # number of the first edge with the same array and source


@dataclass(frozen=True, eq=False, kw_only=True)
class PhaseTables:
    """Tables of one phase.

    Attributes:
      batches: sequences per stage and call; int `[degrees, batches]`.
      variables: variable of every node; int `[nodes]`.
      node_time_s: per node `[degrees, choices, batches]`.
      expert_bytes: buffers of every mixture of experts likewise, None of other nodes.
      lying: what lies in memory at every moment.
      shares: of each of its shares, `[degrees, choices]`.
      stream_bytes: of the residual stream per node likewise, or None.
      edges: in graph order.
    """

    graph: OpGraph
    batches: np.ndarray
    variables: np.ndarray
    node_time_s: tuple[np.ndarray, ...]
    expert_bytes: tuple[np.ndarray | None, ...]
    lying: Lying
    shares: tuple[np.ndarray, ...]
    stream_bytes: tuple[np.ndarray | None, ...]
    edges: tuple[EdgeRecord, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class CostTables:
    """Everything that a candidate's price is made of.

    Attributes:
      reshards: prices of changes of layout.
      looped_bytes, outer_bytes: weights inside and outside the layer stack, per
        variable `[degrees, choices]`.
      cache_bytes: per variable and sequence `[degrees, choices]`.
      held_bytes: arguments and results of a plain function, likewise.
    """

    space: Space
    pricing: Pricing
    phases: Mapping[str, PhaseTables]
    reshards: Reshards
    looped_bytes: Mapping[int, np.ndarray]
    outer_bytes: Mapping[int, np.ndarray]
    cache_bytes: Mapping[int, np.ndarray]
    held_bytes: Mapping[int, np.ndarray]

    @property
    def cluster(self) -> Cluster:
        """The chips and links."""
        return self.pricing.cluster


def member_states(space: Space, variable: int, node: Node) -> np.ndarray:
    """States of a node's own factors under every choice of its variable.

    Returns:
      host int `[choices, axes]`.
    """
    own = {factor.name: i + 1 for i, factor in enumerate(node.factors)}
    names = [factor.name for factor in space.variables[variable].factors]
    table = np.array([0, *(own[name] for name in names)])
    return table[space.choice_states(variable)]


def edge_states(
    edge: Edge, nodes: tuple[Node, ...], states: np.ndarray, at_source: bool
) -> np.ndarray:
    """States of an edge's array, from the states of the node at one end.

    Args:
      states: of the node's factors; int `[choices, axes]`.

    Returns:
      States of the array, numbered over `edge.dims`: their number + 1 for a partial
      sum.
    """
    dims = edge.dims
    node = nodes[edge.source if at_source else edge.target]
    factors = edge.source_factors if at_source else edge.target_factors
    table = np.zeros(1 + len(node.factors), np.int64)
    for place, dim in enumerate(dims):
        factor = factors[dim]
        if factor is not None:
            table[factor + 1] = place + 1
    for i, factor in enumerate(node.factors):
        if factor.both:  # an array has one of the two at most
            table[i + 1] = max(table[part + 1] for part in factor.both)
    if at_source:
        for i, factor in enumerate(node.factors):
            if factor.reduction:
                table[i + 1] = len(dims) + 1
    return table[states]


def _coded(states: np.ndarray, base: int) -> np.ndarray:
    return (states * base ** np.arange(states.shape[-1])).sum(-1)


def _edge_record(
    number: int,
    edge: Edge,
    graph: OpGraph,
    variables: np.ndarray,
    own_states: list[np.ndarray],
    traced_batch: int,
    first: dict[tuple, int],
) -> EdgeRecord:
    source = edge_states(edge, graph.nodes, own_states[edge.source], True)
    target = edge_states(edge, graph.nodes, own_states[edge.target], False)
    rank = len(edge.dims)
    nbytes, grows = edge.array.nbytes, edge.array.batch_power > 0
    return EdgeRecord(
        edge=edge,
        source=int(variables[edge.source]),
        target=int(variables[edge.target]),
        source_codes=_coded(source, rank + 2),
        target_codes=_coded(target, rank + 1),
        nbytes=0.0 if grows else nbytes,
        bytes_per_sequence=nbytes / traced_batch if grows else 0.0,
        first_like=first.setdefault((edge.source, edge.tensor), number),
    )


def build_tables(
    space: Space,
    pricing: Pricing,
    batches: Mapping[str, np.ndarray],
    traced_batch: int,
    hubs: Mapping[str, int],
) -> CostTables:
    """Price every node and edge under all degrees, choices and batches.

    Args:
      batches: per phase, sequences per stage and call; int `[degrees, batches]`.
      traced_batch: the batch at which the graphs were traced.
      hubs: per phase, the index of the residual stream, if there is one.
    """
    variable_of = {
        member: i for i, v in enumerate(space.variables) for member in v.members
    }
    phases: dict[str, PhaseTables] = {}
    memory: dict[str, dict[int, np.ndarray]] = {
        "looped": {},
        "outer": {},
        "cache": {},
        "held": {},
    }
    *_, last = space.graphs
    for phase, graph in space.graphs.items():
        variables = np.array([variable_of[phase, n.index] for n in graph.nodes])
        states = [
            member_states(space, int(v), node)
            for v, node in zip(variables, graph.nodes, strict=True)
        ]
        shardings = [
            shard(node, own, space.degrees, batches[phase], traced_batch)
            for node, own in zip(graph.nodes, states, strict=True)
        ]
        first: dict[tuple, int] = {}
        hub = hubs.get(phase)
        pairs = list(zip(graph.nodes, shardings, strict=True))
        held = lying(graph, traced_batch, engine=pricing.engine is not None)
        phases[phase] = PhaseTables(
            graph=graph,
            batches=batches[phase],
            variables=variables,
            node_time_s=tuple(
                (
                    node_time_s(n, s, pricing) + _hosted_s(n, s, graph, phase, pricing)
                ).astype(np.float32)
                for n, s in pairs
            ),
            expert_bytes=tuple(expert_bytes(n, s) for n, s in pairs),
            lying=held,
            shares=tuple(shardings[n].shares(factors) for n, factors in held.shares),
            stream_bytes=tuple(
                _stream_bytes(n, s) if n.index == hub else None for n, s in pairs
            ),
            edges=tuple(
                _edge_record(
                    number, edge, graph, variables, states, traced_batch, first
                )
                for number, edge in enumerate(graph.edges)
            ),
        )
        if phase == last:
            _add_memory(memory, graph, variables, shardings, phases[phase])
    return CostTables(
        space=space,
        pricing=pricing,
        phases=phases,
        reshards=reshards(
            (len(r.edge.dims) for found in phases.values() for r in found.edges),
            space.degrees,
            pricing,
        ),
        looped_bytes=memory["looped"],
        outer_bytes=memory["outer"],
        cache_bytes=memory["cache"],
        held_bytes=memory["held"],
    )


def _hosted_s(
    node: Node, sharding: Sharding, graph: OpGraph, phase: str, pricing: Pricing
) -> np.ndarray | float:
    """Host time of the sequences that a rank decodes, at the caches that hold them."""
    if pricing.engine is None or phase != DECODE or node.kind is not NodeKind.CACHE:
        return 0.0
    caches = sum(value.kind is NodeKind.CACHE for value in graph.values)
    ways = np.ones(sharding.ways.shape[:2])
    for i, factor in enumerate(node.factors):
        if factor.batched:
            ways = ways * sharding.ways[:, :, i]
    sequences = sharding.batches[:, None, :] / ways[:, :, None]
    return pricing.engine.sequence_s * sequences / caches


def _stream_bytes(node: Node, sharding: Sharding) -> np.ndarray:
    assert node.array is not None
    return sharding.local_bytes(node.array, node.array_factors)


def _add_memory(
    memory: dict[str, dict[int, np.ndarray]],
    graph: OpGraph,
    variables: np.ndarray,
    shardings: list[Sharding],
    tables: PhaseTables,
) -> None:
    for node, sharding in zip(graph.nodes, shardings, strict=True):
        if node.is_op:
            continue
        nbytes, variable = leaf_bytes(node, sharding), int(variables[node.index])
        if node.kind is NodeKind.PARAMETER:
            kind = "looped" if is_looped(node, graph) else "outer"
            memory[kind][variable] = nbytes[..., 0]
        elif node.kind is NodeKind.CACHE:
            per_sequence = nbytes[..., 0] / tables.batches[:, None, 0]
            memory["cache"][variable] = per_sequence
        else:
            held = nbytes + output_bytes(node, sharding)
            memory["held"][variable] = held[..., 0]


def batch_ladder(mesh_size: int, top: int) -> list[int]:
    """Batches up to `top`, steps of at most 10%, with all small multiples of the mesh.

    >>> batch_ladder(4, 30)
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 22, 24, \
26, 28, 30]
    """
    rungs, rung = set(range(1, min(10, top) + 1)), 10
    while rung <= top:
        rungs.add(rung)
        rung += 2 ** int(math.log2(rung / 10))
    rungs |= {mesh_size * k for k in range(1, 11) if mesh_size * k <= top}
    return sorted(rungs | {max(1, top)})


def padded(rows: list[list[int]]) -> np.ndarray:
    """Rows of unequal length as `[rows, longest]`; the last entry is repeated."""
    width = max(map(len, rows))
    return np.array([row + row[-1:] * (width - len(row)) for row in rows], np.int64)
