"""The table evaluator: prices candidates by look-ups, many at a time, under `jit`.

A batch of candidates is `[genes, candidates]`. Genes become states, states become
choices, and choices index the flat tables of `lts.cost.tables`. One compiled function
serves all degrees and all batches of the grid.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from lts.cost.collective import hand_over_cost
from lts.cost.serving import Outcome, Priced, Step, outcome_of
from lts.cost.tables import CostTables, Flat, PhaseTables
from lts.evaluate.base import Scores
from lts.hardware import Cluster
from lts.space import INHERIT, Space
from lts.workload import Workload

CHUNKS = (64, 1024)
"""Candidates priced at once: two shapes, so at most two compiles; the larger bounds the
memory of the gathers."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TableEvaluator:
    """Scores candidates of `space` by its cost tables.

    `workload` None means a plain function, whose objective is 1 / step time. Tables of
    one phase are those of a pool; of prefill, `transfer_s` is then the least that it
    takes to hand over the caches of a call, host `[degrees, batches]`.
    """

    tables: CostTables
    workload: Workload | None
    transfer_s: np.ndarray | None = None

    @property
    def space(self) -> Space:
        """The space that candidates are from."""
        return self.tables.space

    @functools.cached_property
    def _arrays(self) -> dict[str, Any]:
        arrays = _flat_arrays(self.tables)
        if self.transfer_s is not None:
            arrays["transfer_s"] = self.transfer_s.astype(np.float32)
        return jax.tree.map(jnp.asarray, arrays)

    @functools.cached_property
    def _outcome(self):
        price = functools.partial(
            _outcome,
            layout=_layout(self.tables),
            workload=self.workload,
            cluster=self.tables.cluster,
        )

        return jax.jit(price)

    @functools.cached_property
    def _priced(self):
        return jax.jit(functools.partial(_priced, layout=_layout(self.tables)))

    def outcome(self, picks: ArrayLike) -> Outcome:
        """Metrics of candidates at their best batch.

        Args:
          picks: int32 `[genes, candidates]`.
        """
        return self._in_chunks(self._outcome, picks)

    def priced(self, picks: ArrayLike) -> Priced:
        """Costs of a served model at every batch; `picks` as `outcome`."""
        return self._in_chunks(self._priced, picks)

    def _in_chunks(self, price: Callable[..., Any], picks: ArrayLike) -> Any:
        genes = jnp.asarray(picks, jnp.int32)
        for gene, value in self.space.pinned:
            genes = genes.at[gene].set(value)
        count = genes.shape[1]
        size = next((size for size in CHUNKS if count <= size), CHUNKS[-1])
        genes = jnp.pad(genes, ((0, 0), (0, -count % size)))
        parts = [
            price(self._arrays, genes[:, start : start + size])
            for start in range(0, genes.shape[1], size)
        ]
        return jax.tree.map(lambda *found: jnp.concatenate(found)[:count], *parts)

    def evaluate(self, picks: jax.Array) -> Scores:
        """Objective and violation of candidates; counts one evaluation each."""
        found = self.outcome(picks)
        return Scores(objective=found.objective, violation=found.violation)


@dataclass(frozen=True, kw_only=True)
class _PhaseLayout:
    node_offsets: np.ndarray  # [nodes] into the rows of the node tables
    variables: np.ndarray  # [nodes]
    choices: np.ndarray  # [nodes] of their variables
    active: np.ndarray  # nodes with activations
    active_offsets: np.ndarray
    stream: np.ndarray  # the residual stream, if any
    stream_offsets: np.ndarray
    edge_offsets: np.ndarray  # [edges] into the prices of reshards
    edge_trips: np.ndarray  # [edges]
    edge_bytes: np.ndarray  # [edges]
    bytes_per_sequence: np.ndarray  # [edges]
    code_offsets: np.ndarray  # [2, edges]
    ends: np.ndarray  # [2, edges] variables
    codes: np.ndarray  # [2, edges] number of layout codes
    earlier: np.ndarray  # [edges, earlier] edges with the same array; `edges` for none


@dataclass(frozen=True, kw_only=True)
class _Layout:
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
    phases: Mapping[str, _PhaseLayout]


def _reshard_tables(tables: CostTables) -> tuple[dict[int, int], Flat, Flat]:
    """Prices of all ranks in one array each, and their offset by identity."""
    fixed, slope, offsets = Flat(), Flat(), dict[int, int]()
    for found in tables.phases.values():
        for edge in found.edges:
            if id(edge.prices) not in offsets:
                offsets[id(edge.prices)] = fixed.add(edge.prices.fixed_s.ravel())
                slope.add(edge.prices.s_per_byte.ravel())
    return offsets, fixed, slope


def _flatten_phase(
    tables: PhaseTables, prices: Mapping[int, int]
) -> tuple[dict[str, np.ndarray], _PhaseLayout]:
    nodes, active, stream = Flat(), Flat(), Flat()
    width = tables.batches.shape[1]
    for table in tables.node_time_s:
        nodes.add(table.reshape(-1, width))
    for flat, source in (
        (active, tables.activation_bytes),
        (stream, tables.stream_bytes),
    ):
        for table in source:
            if table is not None:
                flat.add(table.reshape(-1, width))
    codes = (Flat(), Flat())
    for edge in tables.edges:
        codes[0].add(edge.source_codes)
        codes[1].add(edge.target_codes)
    count = len(tables.edges)
    earlier: list[list[int]] = [
        [j for j in range(i) if tables.edges[j].first_like == edge.first_like]
        for i, edge in enumerate(tables.edges)
    ]
    depth = max(map(len, earlier), default=0)
    table = np.full((count, depth), count)
    for i, row in enumerate(earlier):
        table[i, : len(row)] = row
    arrays = {
        "node_s": nodes.array(),
        "active": active.array(),
        "stream": stream.array(),
        "source_codes": codes[0].array(np.int32),
        "target_codes": codes[1].array(np.int32),
        "batches": tables.batches.astype(np.int32),
    }
    layout = _PhaseLayout(
        node_offsets=np.array(nodes.offsets),
        variables=tables.variables,
        choices=np.array([table.shape[1] for table in tables.node_time_s]),
        active=_present(tables.activation_bytes),
        active_offsets=np.array(active.offsets),
        stream=_present(tables.stream_bytes),
        stream_offsets=np.array(stream.offsets),
        edge_offsets=np.array([prices[id(e.prices)] for e in tables.edges], np.int64),
        edge_trips=np.array([e.edge.trips for e in tables.edges], np.float32),
        edge_bytes=np.array([e.nbytes for e in tables.edges], np.float32),
        bytes_per_sequence=np.array(
            [e.bytes_per_sequence for e in tables.edges], np.float32
        ),
        code_offsets=np.array([codes[0].offsets, codes[1].offsets]),
        ends=np.array(
            [[e.source for e in tables.edges], [e.target for e in tables.edges]]
        ),
        codes=np.array([e.prices.fixed_s.shape[1:] for e in tables.edges])
        .reshape(-1, 2)
        .T,
        earlier=table,
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


def _flat_arrays(tables: CostTables) -> dict[str, Any]:
    arrays: dict[str, Any] = dict(_flat_space(tables.space)[0])
    prices, fixed, slope = _reshard_tables(tables)
    arrays["fixed_s"], arrays["s_per_byte"] = fixed.array(), slope.array()
    for phase, found in tables.phases.items():
        arrays[phase] = _flatten_phase(found, prices)[0]
    for kind, found in _memory_tables(tables).items():
        flat = Flat()
        for table in found.values():
            flat.add(table.ravel())
        arrays[kind] = flat.array()
    degrees = tables.space.degrees
    hand_over = [hand_over_cost(d, tables.cluster) for d in degrees]
    fixed_s, s_per_byte = np.array(hand_over, np.float32).T
    arrays["stages"] = np.array([d.stages for d in degrees], np.int32)
    arrays["num_gpus"] = np.array([d.num_gpus for d in degrees], np.int32)
    arrays["hand_over_s"], arrays["hand_over_s_per_byte"] = fixed_s, s_per_byte
    return arrays


def _layout(tables: CostTables) -> _Layout:
    space = tables.space
    places, prices = _flat_space(space)[1], _reshard_tables(tables)[0]
    memory = {}
    for kind, found in _memory_tables(tables).items():
        flat = Flat()
        for table in found.values():
            flat.add(table.ravel())
        memory[kind] = (np.array([*found], np.int64), np.array(flat.offsets, np.int64))
    return _Layout(
        num_axes=space.num_axes,
        first_role=space.first_role,
        first_override=space.first_override,
        bases=np.array([1 + len(v.factors) for v in space.variables]),
        choices=np.array([space.num_choices(i) for i in range(len(space.variables))]),
        memory=memory,
        phases={p: _flatten_phase(t, prices)[1] for p, t in tables.phases.items()},
        **places,
    )


def _choices(arrays: dict[str, Any], picks: jax.Array, layout: _Layout) -> jax.Array:
    """Legal choice of every variable, `[variables, candidates]`."""
    axes, count = layout.num_axes, picks.shape[1]
    roles = picks[layout.first_role : layout.first_override].reshape(-1, axes, count)
    if not len(roles):  # no groups: nothing is inherited
        roles = jnp.zeros((1, axes, count), picks.dtype)
    overrides = picks[layout.first_override :].reshape(-1, axes, count)
    # [variables, rows, axes, candidates]
    at = layout.inherit_offsets[:, :, None, None] + roles[layout.groups]
    given = arrays["inherit"][at]
    inherited = given[:, 0]
    for row in range(1, given.shape[1]):
        inherited = jnp.where(inherited == 0, given[:, row], inherited)
    states = jnp.where(overrides == INHERIT, inherited, overrides - 1)
    powers = layout.bases[:, None] ** np.arange(axes)
    code = (states * powers[:, :, None]).sum(1)
    place = layout.repair_offsets[:, None] + picks[:1] * layout.choices[:, None] + code
    return arrays["repair"][place]


def _phase_step(
    arrays: dict[str, Any],
    phase: str,
    choices: jax.Array,
    degrees: jax.Array,
    layout: _Layout,
) -> Step:
    """Time and activations of one phase at every batch."""
    own, at = arrays[phase], layout.phases[phase]
    batches = own["batches"][degrees]  # [candidates, batches]
    row = (
        degrees[None] * at.choices[:, None] + choices[at.variables]
    )  # [nodes, candidates]
    time_s = own["node_s"][at.node_offsets[:, None] + row].sum(0)
    peak = jnp.zeros(batches.shape)
    if len(at.active):
        peak = own["active"][at.active_offsets[:, None] + row[at.active]].max(0)
    if len(at.stream):
        stream = own["stream"][at.stream_offsets[:, None] + row[at.stream]].sum(0)
        peak = peak + stream
        hand_over_s = (
            arrays["hand_over_s"][degrees][:, None]
            + arrays["hand_over_s_per_byte"][degrees][:, None] * stream
        )
        time_s = time_s + hand_over_s * arrays["stages"][degrees][:, None]
    if len(at.edge_offsets):
        source = own["source_codes"][at.code_offsets[0][:, None] + choices[at.ends[0]]]
        target = own["target_codes"][at.code_offsets[1][:, None] + choices[at.ends[1]]]
        cell = (degrees[None] * at.codes[0][:, None] + source) * at.codes[1][
            :, None
        ] + target
        place = at.edge_offsets[:, None] + cell
        none = jnp.full((1, target.shape[1]), -1, target.dtype)
        before = jnp.concatenate([target, none])[at.earlier]  # [edges, earlier, n]
        fresh = ~(before == target[:, None]).any(1)
        s_per_byte = jnp.where(fresh, arrays["s_per_byte"][place], 0.0)
        fixed_s = jnp.where(fresh, arrays["fixed_s"][place], 0.0)
        fixed_s = at.edge_trips[:, None] * fixed_s
        fixed_s = (fixed_s + at.edge_bytes[:, None] * s_per_byte).sum(0)
        per_sequence_s = (at.bytes_per_sequence[:, None] * s_per_byte).sum(0)
        time_s = time_s + fixed_s[:, None] + per_sequence_s[:, None] * batches
    return Step(time_s=time_s, activation_bytes=peak, batches=batches)


def _priced(arrays: dict[str, Any], picks: jax.Array, *, layout: _Layout) -> Priced:
    degrees, choices = picks[0], _choices(arrays, picks, layout)

    def held(kind: str, combine=jnp.sum) -> jax.Array:
        variables, offsets = layout.memory[kind]
        if not len(variables):
            return jnp.zeros(picks.shape[1])
        row = degrees[None] * layout.choices[variables][:, None] + choices[variables]
        return combine(arrays[kind][offsets[:, None] + row], axis=0)

    stages = arrays["stages"][degrees]
    outer = jnp.where(stages > 1, held("outer", jnp.max), held("outer"))
    return Priced(
        steps={
            phase: _phase_step(arrays, phase, choices, degrees, layout)
            for phase in layout.phases
        },
        held_bytes=held("held"),
        weight_bytes=held("looped") / stages + outer,
        cache_bytes=held("cache") / stages,
        stages=stages,
        num_gpus=arrays["num_gpus"][degrees],
    )


def _outcome(
    arrays: dict[str, Any],
    picks: jax.Array,
    *,
    layout: _Layout,
    workload: Workload | None,
    cluster: Cluster,
) -> Outcome:
    priced, usable = _priced(arrays, picks, layout=layout), float(cluster.usable_bytes)
    moving = "transfer_s" in arrays
    transfer_s = arrays["transfer_s"][picks[0]] if moving else 0.0
    return outcome_of(priced, workload, usable, transfer_s)
