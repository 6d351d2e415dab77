"""From the candidate that a search found to a `Plan`; or to why there is none."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from lts.apply import matched_states, phase_specs, without_unit_axes
from lts.cost.breakdown import Part, breakdown, memory_parts
from lts.cost.serving import served_tokens
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

    @property
    def notes(self) -> tuple[str, ...]:
        """What the published model has beside what is planned."""
        return () if self.model is None else self.model.model.config.notes


@dataclass(frozen=True, kw_only=True)
class Running:
    """How instances run a phase: the place of its batch in the grid, and their memory.

    `cache_bytes` are of all requests in flight; the bytes are per GPU.
    """

    place: int
    instances: int
    requests_per_s: float | None
    peak_bytes: float
    weight_bytes: float
    cache_bytes: float


def plan_of(
    prepared: Prepared,
    picks: np.ndarray,
    context: Context,
    provenance: Mapping[str, Any],
) -> Plan:
    """The plan of a feasible candidate: of a function, or colocated.

    Args:
      picks: host int32 `[genes]`.
      provenance: `method`, `seed`, `budget` and `evaluations` of the plan.
    """
    evaluator, space = prepared.evaluator, prepared.space
    outcome = jax.tree.map(
        lambda x: np.asarray(x)[0], evaluator.outcome(picks[:, None])
    )
    main, last = outcome.places[0], list(space.graphs)[-1]
    memory = memory_parts(evaluator.tables, picks)
    workload, cluster = context.workload, evaluator.tables.cluster
    objective = float(outcome.objective)
    concurrency = None if workload is None else int(outcome.concurrency)
    requests_per_s = None
    if workload is not None:
        requests_per_s = objective * cluster.num_gpus / served_tokens(workload)
    places = {
        phase: int(main if phase == last else outcome.places[1])
        for phase in space.graphs
    }
    parts = breakdown(evaluator.tables, picks, places)
    phases = {}
    for phase, place in places.items():
        running = Running(
            place=place,
            instances=1,
            requests_per_s=requests_per_s,
            peak_bytes=float(outcome.peak_bytes),
            weight_bytes=memory["weights" if workload is not None else "arguments"],
            cache_bytes=memory["cache_per_sequence"] * (concurrency or 0),
        )
        phases[phase] = phase_plan(prepared, phase, picks, running, parts, context)
    metrics = Metrics(
        step_time_s=float(outcome.step_time_s),
        ttft_s=_number(outcome.ttft_s),
        tpot_s=_number(outcome.tpot_s),
        tokens_per_s_per_gpu=None if workload is None else objective,
        concurrency=concurrency,
        peak_bytes=phases[last].peak_bytes,
        weight_bytes=phases[last].weight_bytes,
        cache_bytes=phases[last].cache_bytes,
        breakdown=parts,
    )
    return Plan(
        cluster=cluster,
        workload=workload,
        serving="colocated",
        metrics=metrics,
        objective=objective,
        bound=max(objective, relaxed_bound(evaluator.tables, workload)),
        gap_kind=RELAXED,
        phases=phases,
        model=context.model,
        notes=(*context.notes, *notes_of(prepared)),
        **provenance,
    )


def _number(value: Any) -> float | None:
    return None if np.isnan(value) else float(value)


def notes_of(prepared: Prepared) -> tuple[str, ...]:
    """What the tracer could not know, by phase."""
    return tuple(
        f"{phase}: {note}"
        for phase, graph in prepared.graphs.items()
        for note in graph.notes
    )


def phase_plan(
    prepared: Prepared,
    phase: str,
    picks: np.ndarray,
    running: Running,
    parts: Sequence[Part],
    context: Context,
) -> PhasePlan:
    """One phase of a candidate; `parts` say where the time of its step goes."""
    tables, space = prepared.evaluator.tables, prepared.space
    traced, graph = prepared.traced[phase], prepared.graphs[phase]
    whole = without_unit_axes(space.decode(picks))
    assignment = dataclasses.replace(whole, states={phase: whole.states[phase]})
    states = matched_states(graph, assignment.states[phase])
    specs = phase_specs(traced, graph, states, assignment)
    numbers = dataclasses.asdict(running)
    place, problem = numbers.pop("place"), context.problem
    plan = PhasePlan(
        name=phase,
        assignment=assignment,
        degrees=named_degrees(space, picks),
        batch=int(tables.phases[phase].batches[int(picks[0]), place]),
        step_time_s=sum(part.time_s for part in parts if part.phase == phase),
        arguments=dict(zip(traced.in_paths, specs.arguments, strict=True)),
        results=dict(zip(traced.out_paths, specs.results, strict=True)),
        dims=dim_names({phase: graph}),
        donated=(problem.cache,) if problem is not None else (),
        weights=problem.weights if problem is not None else "",
        model=context.model,
        devices=context.devices,
        **numbers,
    )
    if problem is not None:
        args = problem.args(phase, plan.batch)
        return plan.bind(problem.function(phase), args)
    assert context.call is not None and phase == STEP
    return plan.bind(*context.call)


def why_infeasible(prepared: Prepared, picks: np.ndarray) -> str:
    """Which limit binds, and the smallest relaxation."""
    cluster = prepared.evaluator.tables.cluster
    misses = nearest_misses(prepared, picks)
    return f"no feasible plan on {cluster}; the nearest misses {misses}"


def nearest_misses(prepared: Prepared, picks: np.ndarray) -> str:
    """Which limits a candidate misses, by how much, and what would do."""
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
    return "; and ".join(misses)
