"""The plan of two pools; or why there is none."""

import math
from collections.abc import Mapping
from typing import Any

from lts.build_plan import (
    Context,
    Running,
    nearest_misses,
    notes_of,
    phase_operations,
    phase_plan,
)
from lts.cost.breakdown import breakdown, error_of, memory_parts
from lts.cost.serving import served_tokens
from lts.evaluate.bound import RELAXED
from lts.plan import Metrics, Plan
from lts.pools.pairs import Candidates, Pool, best_pools, least_ttft, pools_bound
from lts.prepare import NoFeasiblePlanError, Prepared
from lts.workload import Workload


def plan_of_pools(
    prepared: Mapping[str, Prepared],
    candidates: Candidates,
    contexts: Mapping[str, Context],
    provenance: Mapping[str, Any],
) -> Plan:
    """The plan of the best pools that candidates make.

    Args:
      candidates: per phase, ones of different sizes, or one that misses a limit.
      contexts: per phase; that of decode is the plan's.

    Raises:
      NoFeasiblePlanError: if no two of them serve within the limits.
    """
    *_, context = contexts.values()
    workload = context.workload
    assert workload is not None
    found = best_pools(prepared, candidates, workload)
    cluster = prepared["prefill"].evaluator.tables.cluster
    if found is None:
        misses = _missing_phases(prepared, candidates)
        misses = misses or _missing_pair(prepared, candidates, workload)
        raise NoFeasiblePlanError(f"no feasible plan on {cluster} as pools; {misses}")
    phases, parts = {}, ()
    for phase, own in prepared.items():
        pool = found.pools[phase]
        running = _running(own, pool)
        rows = breakdown(own.evaluator.tables, pool.picks, {phase: running.place})
        phases[phase] = phase_plan(
            own, phase, pool.picks, running, rows, contexts[phase]
        )
        parts = (*parts, *rows)
    *_, main = found.pools.values()
    *_, (last, own) = prepared.items()
    pricing = own.evaluator.tables.pricing
    fullest = max(phases.values(), key=lambda phase: phase.peak_bytes)
    objective = found.requests_per_s * served_tokens(workload) / cluster.num_gpus
    in_flight = int(main.outcome.concurrency) * main.instances
    metrics = Metrics(
        step_time_s=float(main.outcome.step_time_s),
        ttft_s=float(found.pools["prefill"].outcome.ttft_s),
        tpot_s=float(main.outcome.tpot_s) if "decode" in phases else None,
        kv_transfer_s=found.kv_transfer_s,
        tokens_per_s_per_gpu=objective,
        concurrency=min(in_flight, workload.concurrency or in_flight),
        peak_bytes=fullest.peak_bytes,
        weight_bytes=fullest.weight_bytes,
        cache_bytes=fullest.cache_bytes,
        error=error_of(parts, last, pricing),
        engine=pricing.engine_name,
        breakdown=parts,
    )
    return Plan(
        cluster=cluster,
        workload=workload,
        serving="pools",
        metrics=metrics,
        objective=objective,
        bound=max(objective, pools_bound(prepared, workload)),
        gap_kind=RELAXED,
        phases=phases,
        operations=tuple(
            operation
            for phase, own in prepared.items()
            for operation in phase_operations(own, phases[phase])
        ),
        model=context.model,
        notes=(
            *context.notes,
            *(note for own in prepared.values() for note in notes_of(own)),
        ),
        **provenance,
    )


def _running(prepared: Prepared, pool: Pool) -> Running:
    memory = memory_parts(prepared.evaluator.tables, pool.picks)
    return Running(
        place=int(pool.outcome.places[0]),
        instances=pool.instances,
        requests_per_s=pool.requests_per_s,
        peak_bytes=float(pool.outcome.peak_bytes),
        weight_bytes=memory["weights"],
        cache_bytes=memory["cache_per_sequence"] * int(pool.outcome.concurrency),
    )


def _missing_phases(prepared: Mapping[str, Prepared], candidates: Candidates) -> str:
    """Which phases have no feasible candidate, and what would do; "" if none."""
    misses = []
    for phase, own in prepared.items():
        picks = candidates[phase]
        if float(own.evaluator.outcome(picks).violation[0]) > 0:
            found = nearest_misses(own, picks[:, 0])
            misses.append(f"to {phase}, the nearest misses {found}")
    return "; ".join(misses)


def _missing_pair(
    prepared: Mapping[str, Prepared], candidates: Candidates, workload: Workload
) -> str:
    """Why no two candidates that are feasible alone are so together."""
    num_gpus = prepared["prefill"].evaluator.tables.cluster.num_gpus
    least = {
        phase: min(own.space.degrees[d].num_gpus for d in candidates[phase][0])
        for phase, own in prepared.items()
    }
    needed = sum(least.values())
    if needed > num_gpus:
        needs = " and ".join(f"{gpus} to {phase}" for phase, gpus in least.items())
        return (
            f"within the limits, instances need {needed} GPUs at least ({needs}), of "
            f"{num_gpus}; add GPUs, or relax the limits"
        )
    ttft_s, handed_s = least_ttft(prepared, candidates, workload)
    limit_s = workload.ttft_s
    if limit_s is not None and ttft_s > limit_s:
        return (
            f"the nearest misses TTFT: {ttft_s * 1e3:.1f} ms, {handed_s * 1e3:.1f} ms "
            f"of it KV transfer, against a limit of {limit_s * 1e3:g} ms; --ttft-ms "
            f"{math.ceil(ttft_s * 1e3)} would do"
        )
    return (
        f"no number of instances divides {workload.concurrency} requests in flight so "
        "that decode keeps its limits; try another concurrency"
    )
