"""Cost tables as flat arrays, and where in them everything lies."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lts.cost.collective import hand_over_time_s
from lts.cost.profile import Profile
from lts.cost.reshards import KNOTS
from lts.cost.serving import depth_of
from lts.cost.steady import Depth
from lts.cost.tables import CostTables, EdgeRecord, Flat, PhaseTables
from lts.space import Space


@dataclass(frozen=True, kw_only=True)
class PhaseLayout:
    """Of one phase."""

    node_offsets: np.ndarray  # [nodes] into the rows of the node tables
    variables: np.ndarray  # [nodes]
    choices: np.ndarray  # [nodes] of their variables
    lying: np.ndarray  # [moments, shares + edges, 2] bytes: fixed, per sequence
    share_nodes: np.ndarray  # [shares] node in whose layout arrays lie
    share_offsets: np.ndarray
    from_op: np.ndarray  # [edges] whether an op gives the array
    experts: np.ndarray  # mixtures of experts
    expert_offsets: np.ndarray
    running: np.ndarray  # [moments, experts] whether one runs then
    stream: np.ndarray  # the residual stream, if any
    stream_offsets: np.ndarray
    edge_offsets: np.ndarray  # [edges] into the sets of hops of their rank
    edge_trips: np.ndarray  # [edges]
    edge_sizes: np.ndarray  # [edges] number of their size in bytes
    code_offsets: np.ndarray  # [2, edges]
    ends: np.ndarray  # [2, edges] variables
    codes: np.ndarray  # [2, edges] number of layout codes
    earlier: np.ndarray  # [edges, earlier] edges with the same array; `edges` for none
    depth: Depth


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where everything lies in the flat arrays; host arrays, constants of the jit."""

    num_axes: int
    first_role: int
    first_override: int
    bases: np.ndarray  # [variables]
    groups: np.ndarray  # [variables, rows]
    inherit_offsets: np.ndarray  # [variables, rows]
    repair_offsets: np.ndarray  # [variables]
    choices: np.ndarray  # [variables]
    memory: Mapping[str, tuple[np.ndarray, np.ndarray]]  # variables, offsets
    phases: Mapping[str, PhaseLayout]
    engine: Profile | None


def _rank_offsets(tables: CostTables) -> dict[int, int]:
    """Where the hop sets of every rank begin in one flat array."""
    flat = Flat()
    return {rank: flat.add(sets.ravel()) for rank, sets in tables.reshards.sets.items()}


def _size(edge: EdgeRecord) -> tuple[float, float]:
    return edge.nbytes, edge.bytes_per_sequence


def _between_knots(nbytes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The knot below each byte count, and how far it is to the next, 0 to 1."""
    below = np.searchsorted(KNOTS, nbytes, side="right") - 1
    below = np.clip(below, 0, len(KNOTS) - 2)
    share = (nbytes - KNOTS[below]) / (KNOTS[below + 1] - KNOTS[below])
    return below.astype(np.int32), np.clip(share, 0.0, None).astype(np.float32)


def _flatten_phase(
    tables: PhaseTables, rank_offsets: Mapping[int, int], axes: int
) -> tuple[dict[str, np.ndarray], PhaseLayout]:
    nodes, experts, stream, parts = Flat(), Flat(), Flat(), Flat()
    width = tables.batches.shape[1]
    for table in tables.node_time_s:
        nodes.add(table.reshape(-1, width))
    for flat, source in (
        (experts, tables.expert_bytes),
        (stream, tables.stream_bytes),
    ):
        for table in source:
            if table is not None:
                flat.add(table.reshape(-1, width))
    for table in tables.shares:
        parts.add(table.ravel())
    codes = (Flat(), Flat())
    for edge in tables.edges:
        codes[0].add(edge.source_codes)
        codes[1].add(edge.target_codes)
    count, ranks = len(tables.edges), [len(edge.edge.dims) for edge in tables.edges]
    earlier: list[list[int]] = [
        [j for j in range(i) if tables.edges[j].first_like == edge.first_like]
        for i, edge in enumerate(tables.edges)
    ]
    depth = max(map(len, earlier), default=0)
    table = np.full((count, depth), count)
    for i, row in enumerate(earlier):
        table[i, : len(row)] = row
    sizes = sorted({_size(edge) for edge in tables.edges})
    nbytes = [fixed + more * tables.batches for fixed, more in sizes]
    # [degrees, sizes, batches]
    knots, shares = _between_knots(np.stack(nbytes, 1) if nbytes else np.zeros((0, 0)))
    arrays = {
        "knots": knots,
        "shares": shares,
        "node_s": nodes.array(),
        "experts": experts.array(),
        "parts": parts.array(),
        "stream": stream.array(),
        "source_codes": codes[0].array(np.int32),
        "target_codes": codes[1].array(np.int32),
        "batches": tables.batches.astype(np.int32),
    }
    layout = PhaseLayout(
        node_offsets=np.array(nodes.offsets),
        variables=tables.variables,
        choices=np.array([table.shape[1] for table in tables.node_time_s]),
        lying=tables.lying.bytes.astype(np.float32),
        share_nodes=np.array([node for node, _ in tables.lying.shares], np.int64),
        share_offsets=np.array(parts.offsets, np.int64),
        from_op=tables.lying.from_op,
        experts=_present(tables.expert_bytes),
        expert_offsets=np.array(experts.offsets),
        running=tables.lying.experts[:, None] == _present(tables.expert_bytes),
        stream=_present(tables.stream_bytes),
        stream_offsets=np.array(stream.offsets),
        edge_offsets=np.array([rank_offsets[r] for r in ranks], np.int64),
        edge_trips=np.array([e.edge.trips for e in tables.edges], np.float32),
        edge_sizes=np.array([sizes.index(_size(e)) for e in tables.edges], np.int64),
        code_offsets=np.array([codes[0].offsets, codes[1].offsets]),
        ends=np.array(
            [[e.source for e in tables.edges], [e.target for e in tables.edges]]
        ),
        codes=np.array([[(r + 2) ** axes, (r + 1) ** axes] for r in ranks])
        .reshape(-1, 2)
        .T,
        earlier=table,
        depth=depth_of(tables.graph),
    )
    return arrays, layout


def _present(tables: tuple[np.ndarray | None, ...]) -> np.ndarray:
    found = [i for i, table in enumerate(tables) if table is not None]
    return np.array(found, np.int64)


MEMORY = ("looped", "outer", "cache", "held")


def _memory_tables(tables: CostTables) -> dict[str, Mapping[int, np.ndarray]]:
    found = (
        tables.looped_bytes,
        tables.outer_bytes,
        tables.cache_bytes,
        tables.held_bytes,
    )
    return dict(zip(MEMORY, found, strict=True))


def _flat_space(space: Space) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    inherit, repair = Flat(), Flat()
    width = space.inherited[0].shape[1]
    nothing = inherit.add(np.zeros(width, np.int32))
    depth = max(1, *(len(v.groups) for v in space.variables))
    groups = np.zeros((len(space.variables), depth), np.int64)
    offsets = np.full_like(groups, nothing)
    for i, (variable, table) in enumerate(
        zip(space.variables, space.inherited, strict=True)
    ):
        for row, group in enumerate(variable.groups):
            groups[i, row] = group
            offsets[i, row] = inherit.add(table[row])
        repair.add(space.repaired[i].ravel())
    arrays = {"inherit": inherit.array(np.int32), "repair": repair.array(np.int32)}
    places = {
        "groups": groups,
        "inherit_offsets": offsets,
        "repair_offsets": np.array(repair.offsets),
    }
    return arrays, places


def flat_arrays(tables: CostTables) -> dict[str, Any]:
    """All that scoring looks up, by name."""
    arrays: dict[str, Any] = dict(_flat_space(tables.space)[0])
    reshards, offsets = tables.reshards, _rank_offsets(tables)
    sets = [found.ravel() for found in reshards.sets.values()]
    arrays["sets"] = np.concatenate(sets or [np.zeros(0, np.int32)])
    arrays["pattern"] = reshards.pattern.astype(np.int32)
    arrays["reshard_s"] = reshards.time_s.astype(np.float32)
    moved = np.stack([reshards.given, reshards.taken])
    arrays["moved"] = moved.astype(np.float32)
    for phase, found in tables.phases.items():
        arrays[phase] = _flatten_phase(found, offsets, tables.space.num_axes)[0]
    for kind, found in _memory_tables(tables).items():
        flat = Flat()
        for table in found.values():
            flat.add(table.ravel())
        arrays[kind] = flat.array()
    degrees = tables.space.degrees
    hand_over = [hand_over_time_s(KNOTS, d, tables.pricing) for d in degrees]
    arrays["hand_over_s"] = np.array(hand_over, np.float32)
    arrays["stages"] = np.array([d.stages for d in degrees], np.int32)
    arrays["num_gpus"] = np.array([d.num_gpus for d in degrees], np.int32)
    return arrays


def layout_of(tables: CostTables) -> Layout:
    """Where it lies."""
    space = tables.space
    places, offsets = _flat_space(space)[1], _rank_offsets(tables)
    memory = {}
    for kind, found in _memory_tables(tables).items():
        flat = Flat()
        for table in found.values():
            flat.add(table.ravel())
        memory[kind] = (np.array([*found], np.int64), np.array(flat.offsets, np.int64))
    return Layout(
        num_axes=space.num_axes,
        first_role=space.first_role,
        first_override=space.first_override,
        bases=np.array([1 + len(v.factors) for v in space.variables]),
        choices=np.array([space.num_choices(i) for i in range(len(space.variables))]),
        memory=memory,
        engine=tables.pricing.engine,
        phases={
            phase: _flatten_phase(found, offsets, space.num_axes)[1]
            for phase, found in tables.phases.items()
        },
        **places,
    )
