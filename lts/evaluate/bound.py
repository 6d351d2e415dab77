"""A proven bound on the objective: every node at its best choice, reshards free.

For given degrees and batch no plan is faster than the sum of its nodes' least times,
nor smaller than the sum of its values' least bytes. So the best outcome of those sums
over all degrees and batches bounds every candidate of the space. The bound is loose
where communication matters.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from lts.cost.serving import (
    Outcome,
    Step,
    colocated_outcome,
    plain_outcome,
    prefill_outcome,
)
from lts.cost.tables import CostTables, PhaseTables
from lts.workload import Workload

RELAXED = "relaxed"
"""Name of this bound in `Plan.gap_kind`."""


def _least_step(found: PhaseTables) -> Step:
    time_s = sum(table.min(1) for table in found.node_time_s)
    peak = np.zeros(found.batches.shape)
    for table in found.activation_bytes:
        if table is not None:
            peak = np.maximum(peak, table.min(1))
    return Step(
        time_s=jnp.asarray(time_s, jnp.float32),
        activation_bytes=jnp.asarray(peak, jnp.float32),
        batches=jnp.asarray(found.batches),
    )


def relaxed_outcome(tables: CostTables, workload: Workload | None) -> Outcome:
    """Outcome of the relaxation for every degrees; `[degrees]` each."""

    def least(found, combine=sum):
        tables_ = [table.min(1) for table in found.values()]
        width = len(tables.space.degrees)
        return np.asarray(combine(tables_) if tables_ else np.zeros(width), np.float32)

    steps = {phase: _least_step(found) for phase, found in tables.phases.items()}
    usable = float(tables.cluster.usable_bytes)
    if workload is None:
        (step,) = steps.values()
        held = least(tables.held_bytes) + least(tables.looped_bytes)
        held = held + least(tables.outer_bytes)
        return jax.jit(plain_outcome)(step, held, usable)
    stages = np.asarray([d.stages for d in tables.space.degrees], np.int32)
    outer = np.where(
        stages > 1,
        least(tables.outer_bytes, lambda rows: np.max(rows, 0)),
        least(tables.outer_bytes),
    )
    common = (
        least(tables.looped_bytes) / stages + outer,
        least(tables.cache_bytes) / stages,
        stages,
    )
    limits = {
        "workload": workload,
        "num_gpus": tables.cluster.num_gpus,
        "usable_bytes": usable,
    }
    if workload.prefill_only:
        priced = jax.jit(functools.partial(prefill_outcome, **limits))
        return priced(steps["prefill"], *common)
    priced = jax.jit(functools.partial(colocated_outcome, **limits))
    return priced(steps["decode"], steps["prefill"], *common)


def relaxed_bound(tables: CostTables, workload: Workload | None) -> float:
    """Bound on the objective of every candidate; -inf if none can be feasible."""
    found = relaxed_outcome(tables, workload)
    feasible = np.asarray(found.violation) <= 0
    return float(np.where(feasible, np.asarray(found.objective), -np.inf).max())
