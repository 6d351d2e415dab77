"""A proven bound on the objective: every node at its best choice, reshards free.

For given degrees and batch no plan is faster than the sum of its nodes' least times,
nor smaller than the sum of its values' least bytes. So the best outcome of those sums
over all degrees and batches bounds every candidate of the space. The bound is loose
where communication matters.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from lts.cost.serving import (
    Outcome,
    Priced,
    Step,
    depth_of,
    engine_step,
    outcome_of,
)
from lts.cost.tables import CostTables, PhaseTables
from lts.workload import Workload

_NO_TIME_S = 1e-30
RELAXED = "relaxed"
"""Name of this bound in `Plan.gap_kind`."""


def _least_step(found: PhaseTables) -> Step:
    time_s = sum(table.min(1) for table in found.node_time_s)
    peak = np.zeros(found.batches.shape)
    if len(found.lying.bytes):  # nothing resharded, buffers of experts left out
        least = np.array([share.min(1) for share in found.shares])
        least = least.reshape(-1, len(peak))  # [shares, degrees]
        fixed, growing = np.einsum(
            "mac,ad->cmd", found.lying.bytes[:, : len(least)], least
        )
        peak = (fixed[..., None] + growing[..., None] * found.batches).max(0)
    return Step(
        time_s=jnp.asarray(time_s, jnp.float32),
        activation_bytes=jnp.asarray(peak, jnp.float32),
        batches=jnp.asarray(found.batches),
    )


def relaxed_outcome(
    tables: CostTables, workload: Workload | None, transfer_s: np.ndarray | None = None
) -> Outcome:
    """Outcome of the relaxation for every degrees; `[degrees]` each.

    Args:
      transfer_s: of a prefill pool, as `TableEvaluator.transfer_s`.
    """

    def least(found, combine=sum):
        tables_ = [table.min(1) for table in found.values()]
        width = len(tables.space.degrees)
        return combine(tables_) if tables_ else np.zeros(width)

    degrees = tables.space.degrees
    stages = jnp.asarray([d.stages for d in degrees], jnp.int32)
    outer = np.where(
        stages > 1,
        least(tables.outer_bytes, lambda rows: np.max(rows, 0)),
        least(tables.outer_bytes),
    )
    steps = {phase: _least_step(found) for phase, found in tables.phases.items()}
    engine = tables.pricing.engine
    if engine is not None:
        # a host that is busy with many tokens would hold the faster plan against itself
        engine = dataclasses.replace(engine, saturation_s=_NO_TIME_S)
        steps = {
            phase: engine_step(
                step, phase, stages, depth_of(tables.phases[phase].graph), engine
            )
            for phase, step in steps.items()
        }
    priced = Priced(
        steps=steps,
        held_bytes=jnp.asarray(least(tables.held_bytes), jnp.float32),
        weight_bytes=jnp.asarray(
            least(tables.looped_bytes) / stages + outer, jnp.float32
        ),
        cache_bytes=jnp.asarray(least(tables.cache_bytes) / stages, jnp.float32),
        stages=jnp.asarray(stages),
        num_gpus=jnp.asarray([d.num_gpus for d in degrees], jnp.int32),
    )
    usable = float(tables.cluster.usable_bytes)
    price = functools.partial(
        outcome_of, workload=workload, usable_bytes=usable, engine=engine
    )
    moving_s = 0.0 if transfer_s is None else transfer_s.astype(np.float32)
    return jax.jit(price)(priced, transfer_s=moving_s)


def relaxed_bound(tables: CostTables, workload: Workload | None) -> float:
    """Bound on the objective of every candidate; -inf if none can be feasible."""
    found = relaxed_outcome(tables, workload)
    feasible = np.asarray(found.violation) <= 0
    return float(np.where(feasible, np.asarray(found.objective), -np.inf).max())
