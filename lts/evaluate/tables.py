"""The table evaluator: prices candidates by look-ups, many at a time, under `jit`.

A batch of candidates is `[genes, candidates]`. Genes become states, states become
choices, and choices index the flat tables of `lts.cost.tables`. One compiled function
serves all degrees and all batches of the grid.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from lts.cost.reshards import KNOTS
from lts.cost.serving import Outcome, Priced, Step, engine_step, outcome_of
from lts.cost.tables import CostTables
from lts.evaluate.base import Scores
from lts.evaluate.flat import Layout, flat_arrays, layout_of
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
        arrays = flat_arrays(self.tables)
        if self.transfer_s is not None:
            arrays["transfer_s"] = self.transfer_s.astype(np.float32)
        return jax.tree.map(jnp.asarray, arrays)

    @functools.cached_property
    def _outcome(self):
        price = functools.partial(
            _outcome,
            layout=layout_of(self.tables),
            workload=self.workload,
            cluster=self.tables.cluster,
        )

        return jax.jit(price)

    @functools.cached_property
    def _priced(self):
        return jax.jit(functools.partial(_priced, layout=layout_of(self.tables)))

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


def _choices(arrays: dict[str, Any], picks: jax.Array, layout: Layout) -> jax.Array:
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


def _interpolated(rows: jax.Array, nbytes: jax.Array) -> jax.Array:
    """Seconds at some bytes, `[candidates, n]`, of rows `[candidates, knots]`."""
    return jax.vmap(lambda row, x: jnp.interp(x, KNOTS.astype(np.float32), row))(
        rows, nbytes
    )


def _phase_step(
    arrays: dict[str, Any],
    phase: str,
    choices: jax.Array,
    degrees: jax.Array,
    layout: Layout,
) -> Step:
    """Time and activations of one phase at every batch."""
    own, at = arrays[phase], layout.phases[phase]
    batches = own["batches"][degrees]  # [candidates, batches]
    row = (
        degrees[None] * at.choices[:, None] + choices[at.variables]
    )  # [nodes, candidates]
    time_s = own["node_s"][at.node_offsets[:, None] + row].sum(0)
    shares = own["parts"][at.share_offsets[:, None] + row[at.share_nodes]]
    handed_over = jnp.zeros(batches.shape)
    if len(at.stream):
        stream = own["stream"][at.stream_offsets[:, None] + row[at.stream]].sum(0)
        handed_over = jnp.where(arrays["stages"][degrees][:, None] > 1, stream, 0.0)
        hand_over_s = _interpolated(arrays["hand_over_s"][degrees], stream)
        time_s = time_s + hand_over_s * arrays["stages"][degrees][:, None]
    if len(at.edge_offsets):
        source = own["source_codes"][at.code_offsets[0][:, None] + choices[at.ends[0]]]
        target = own["target_codes"][at.code_offsets[1][:, None] + choices[at.ends[1]]]
        pattern = arrays["pattern"][degrees]
        cell = (pattern[None] * at.codes[0][:, None] + source) * at.codes[1][
            :, None
        ] + target
        number = arrays["sets"][at.edge_offsets[:, None] + cell]
        moved = arrays["moved"][at.from_op[:, None].astype(int), degrees[None], number]
        shares = jnp.concatenate([shares, moved])
        none = jnp.full((1, target.shape[1]), -1, target.dtype)
        before = jnp.concatenate([target, none])[at.earlier]  # [edges, earlier, n]
        fresh = ~(before == target[:, None]).any(1)
        rows = arrays["reshard_s"][degrees[None], number]  # [edges, candidates, knots]
        rows = rows * (fresh * at.edge_trips[:, None])[:, :, None]
        count = int(at.edge_sizes.max()) + 1
        rows = jax.ops.segment_sum(rows, at.edge_sizes, count).swapaxes(0, 1)
        below, share = own["knots"][degrees], own["shares"][degrees]
        low = jnp.take_along_axis(rows, below, 2)  # [candidates, sizes, batches]
        high = jnp.take_along_axis(rows, below + 1, 2)
        time_s = time_s + (low + share * (high - low)).sum(1)
    peak = handed_over
    if len(at.lying):
        # [moments, candidates, 2]
        held = jnp.einsum("mac,an->mnc", at.lying, shares)
        lying = held[..., :1] + held[..., 1:] * batches[None]
        if len(at.experts):
            buffers = own["experts"][at.expert_offsets[:, None] + row[at.experts]]
            running = at.running.astype(np.float32)
            lying = lying + jnp.einsum("mx,xnb->mnb", running, buffers)
        peak = peak + lying.max(0)
    return Step(time_s=time_s, activation_bytes=peak, batches=batches)


def _priced(arrays: dict[str, Any], picks: jax.Array, *, layout: Layout) -> Priced:
    degrees, choices = picks[0], _choices(arrays, picks, layout)

    def held(kind: str, combine=jnp.sum) -> jax.Array:
        variables, offsets = layout.memory[kind]
        if not len(variables):
            return jnp.zeros(picks.shape[1])
        row = degrees[None] * layout.choices[variables][:, None] + choices[variables]
        return combine(arrays[kind][offsets[:, None] + row], axis=0)

    stages = arrays["stages"][degrees]
    outer = jnp.where(stages > 1, held("outer", jnp.max), held("outer"))
    steps = {
        phase: _phase_step(arrays, phase, choices, degrees, layout)
        for phase in layout.phases
    }
    if layout.engine is not None:
        steps = {
            phase: engine_step(
                step, phase, stages, layout.phases[phase].depth, layout.engine
            )
            for phase, step in steps.items()
        }
    return Priced(
        steps=steps,
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
    layout: Layout,
    workload: Workload | None,
    cluster: Cluster,
) -> Outcome:
    priced, usable = _priced(arrays, picks, layout=layout), float(cluster.usable_bytes)
    moving = "transfer_s" in arrays
    transfer_s = arrays["transfer_s"][picks[0]] if moving else 0.0
    return outcome_of(priced, workload, usable, transfer_s, layout.engine)
