"""From the candidate that a search found to a `Plan`; or to why there is none."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from lts.apply import matched_states, phase_specs, without_unit_axes
from lts.assignment import Assignment
from lts.cost.breakdown import breakdown, memory_parts
from lts.degrees import named_degrees
from lts.evaluate.bound import RELAXED, relaxed_bound
from lts.phase import ModelSource, PhasePlan
from lts.plan import Metrics, Plan
from lts.prepare import Prepared, gigabytes
from lts.problem import STEP, Problem
from lts.tracing.labels import dim_names
from lts.workload import Workload


@dataclass(frozen=True, eq=False, kw_only=True)
class Context:
    """What a plan remembers of its problem.

    Attributes:
      workload: None for a plain function.
      problem: what is served, or None.
      model: where it came from, if lts can build it again.
      call: a plain function, its arguments and keyword arguments.
      devices: of the mesh that was given, in order.
    """

    workload: Workload | None = None
    problem: Problem | None = None
    model: ModelSource | None = None
    call: tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]] | None = None
    devices: tuple[Any, ...] | None = None


def plan_of(
    prepared: Prepared,
    picks: np.ndarray,
    context: Context,
    provenance: Mapping[str, Any],
) -> Plan:
    """The plan of a feasible candidate.

    Args:
      picks: host int32 `[genes]`.
      provenance: `method`, `seed`, `budget` and `evaluations` of the plan.
    """
    evaluator, space = prepared.evaluator, prepared.space
    outcome = jax.tree.map(
        lambda x: np.asarray(x)[0], evaluator.outcome(picks[:, None])
    )
    assignment = without_unit_axes(space.decode(picks))
    main, last = outcome.places[0], list(space.graphs)[-1]
    places = {
        phase: int(main if phase == last else outcome.places[1])
        for phase in space.graphs
    }
    parts = breakdown(evaluator.tables, picks, places)
    degrees = int(picks[0])
    phases = {}
    for phase in space.graphs:
        batch = int(evaluator.tables.phases[phase].batches[degrees, places[phase]])
        seconds = sum(part.time_s for part in parts if part.phase == phase)
        phases[phase] = _phase_plan(
            prepared, phase, assignment, batch, seconds, context
        )
    memory = memory_parts(evaluator.tables, picks)
    served = context.workload is not None
    objective = float(outcome.objective)
    concurrency = int(outcome.concurrency) if served else None
    metrics = Metrics(
        step_time_s=float(outcome.step_time_s),
        ttft_s=_number(outcome.ttft_s),
        tpot_s=_number(outcome.tpot_s),
        tokens_per_s_per_gpu=objective if served else None,
        concurrency=concurrency,
        peak_bytes=float(outcome.peak_bytes),
        weight_bytes=memory["weights"] if served else memory["arguments"],
        cache_bytes=memory["cache_per_sequence"] * (concurrency or 0),
        breakdown=parts,
    )
    return Plan(
        cluster=evaluator.tables.cluster,
        workload=context.workload,
        assignment=assignment,
        degrees=named_degrees(space, picks),
        metrics=metrics,
        objective=objective,
        bound=max(objective, relaxed_bound(evaluator.tables, context.workload)),
        gap_kind=RELAXED,
        phases=phases,
        model=context.model,
        notes=tuple(
            f"{phase}: {note}"
            for phase, graph in prepared.graphs.items()
            for note in graph.notes
        ),
        **provenance,
    )


def _number(value: Any) -> float | None:
    return None if np.isnan(value) else float(value)


def _phase_plan(
    prepared: Prepared,
    phase: str,
    assignment: Assignment,
    batch: int,
    seconds: float,
    context: Context,
) -> PhasePlan:
    traced, graph = prepared.traced[phase], prepared.graphs[phase]
    states = matched_states(graph, assignment.states[phase])
    specs = phase_specs(traced, graph, states, assignment)
    problem = context.problem
    plan = PhasePlan(
        name=phase,
        assignment=assignment,
        batch=batch,
        step_time_s=seconds,
        arguments=dict(zip(traced.in_paths, specs.arguments, strict=True)),
        results=dict(zip(traced.out_paths, specs.results, strict=True)),
        dims=dim_names({phase: graph}),
        donated=(problem.cache,) if problem is not None else (),
        model=context.model,
        devices=context.devices,
    )
    if problem is not None:
        return plan.bind(problem.function(phase), problem.args(phase, batch))
    assert context.call is not None and phase == STEP
    return plan.bind(*context.call)


def why_infeasible(prepared: Prepared, picks: np.ndarray) -> str:
    """Which limit binds, and the smallest relaxation."""
    evaluator = prepared.evaluator
    workload, cluster = evaluator.workload, evaluator.tables.cluster
    found = jax.tree.map(lambda x: np.asarray(x)[0], evaluator.outcome(picks[:, None]))
    misses = []
    if found.peak_bytes > cluster.usable_bytes:
        memory = memory_parts(evaluator.tables, picks)
        cache = memory["cache_per_sequence"] * np.nan_to_num(found.concurrency)
        terms = {
            "weights": memory["weights"],
            "KV cache": cache,
            "arguments": memory["arguments"],
        }
        terms["activations"] = float(found.peak_bytes) - sum(terms.values())
        largest = max(terms, key=lambda name: terms[name])
        misses.append(
            f"memory: {gigabytes(found.peak_bytes)} per GPU, mostly {largest} "
            f"({gigabytes(terms[largest])}), of {gigabytes(cluster.usable_bytes)} "
            "usable; add GPUs or shorten the context"
        )
    if workload is not None:
        for name, reached, limit in (
            ("TTFT", found.ttft_s, workload.ttft_s),
            ("TPOT", found.tpot_s, workload.tpot_s),
        ):
            if limit is not None and reached > limit:
                misses.append(
                    f"{name}: {reached * 1e3:.1f} ms against a limit of "
                    f"{limit * 1e3:g} ms; --{name.lower()}-ms "
                    f"{math.ceil(reached * 1e3)} would do"
                )
    if not misses:
        misses.append("no batch that the layout divides; try another concurrency")
    return f"no feasible plan on {cluster}; the nearest misses " + "; and ".join(misses)
