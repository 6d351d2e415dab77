"""From the candidate that a search found to a `Plan`; or to why there is none."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from lts.cost.breakdown import Part, breakdown, error_of, memory_parts
from lts.cost.serving import served_tokens
from lts.degrees import named_degrees
from lts.evaluate.bound import RELAXED, relaxed_bound
from lts.metrics import Metrics, ShapeMetrics
from lts.operations import Operation, operations_of
from lts.phase import ModelSource, PhasePlan
from lts.plain import PlainFunction
from lts.plan import Plan
from lts.prepare import Prepared, gigabytes
from lts.problem import STEP, TRACED_BATCH, Problem
from lts.rescale import at_batch
from lts.specs import matched_states, phase_specs, without_unit_axes
from lts.tracing.labels import dim_names
from lts.workload import Workload


@dataclass(frozen=True, eq=False, kw_only=True)
class Context:
    """What a plan remembers of its problem.

    Attributes:
      workload: None for a plain function.
      problem: what is served, or None.
      model: where it came from, if lts can build it again.
      plain: a plain function with its arguments, or None.
      devices: of the mesh that was given, in order.
      engine: profile of what serves it; None for the geometric middle.
    """

    workload: Workload | None = None
    problem: Problem | None = None
    model: ModelSource | None = None
    plain: PlainFunction | None = None
    devices: tuple[Any, ...] | None = None
    engine: str | None = None

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
    alone_s: Mapping[str, float] | None = None,
) -> Plan:
    """The plan of a feasible candidate: of a function, or colocated.

    Args:
      picks: host int32 `[genes]`.
      provenance: `method`, `seed`, `budget` and `evaluations` of the plan.
      alone_s: of a function at several shapes, the least step time that was found for
        each alone, by phase.
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
    plain, phases, operations = context.plain, {}, []
    for phase, place in places.items():
        if plain is not None and phase != STEP:
            continue  # a shape of the function: its layouts are those of the first
        weights, cache = _held(memory, workload, concurrency)
        running = Running(
            place=place,
            instances=1,
            requests_per_s=requests_per_s,
            peak_bytes=float(outcome.peak_bytes),
            weight_bytes=weights,
            cache_bytes=cache,
        )
        phases[phase] = phase_plan(prepared, phase, picks, running, parts, context)
        operations += phase_operations(prepared, phases[phase])
    main_phase = list(phases.values())[-1]
    metrics = Metrics(
        step_time_s=float(outcome.step_time_s),
        ttft_s=_number(outcome.ttft_s),
        tpot_s=_number(outcome.tpot_s),
        tokens_per_s_per_gpu=None if workload is None else objective,
        concurrency=concurrency,
        peak_bytes=main_phase.peak_bytes,
        weight_bytes=main_phase.weight_bytes,
        cache_bytes=main_phase.cache_bytes,
        error=error_of(parts, last, evaluator.tables.pricing),
        engine=evaluator.tables.pricing.engine_name,
        breakdown=tuple(part for part in parts if part.phase in phases),
        shapes=() if plain is None else shape_metrics(plain, parts, alone_s or {}),
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
        notes=(*context.notes, *notes_of(prepared), *_state_notes(prepared)),
        operations=tuple(operations),
        **provenance,
    )


def _held(
    memory: Mapping[str, float], workload: Workload | None, concurrency: int | None
) -> tuple[float, float]:
    """Bytes per GPU of weights (of a function: of all but its state), and of caches."""
    if workload is None:
        held = memory["weights"] + memory["arguments"]
        return held, memory["cache_per_sequence"]
    return memory["weights"], memory["cache_per_sequence"] * (concurrency or 0)


def shape_metrics(
    plain: PlainFunction, parts: Sequence[Part], alone_s: Mapping[str, float]
) -> tuple[ShapeMetrics, ...]:
    """Step times of a function at every shape; none if it has but one.

    Args:
      alone_s: as `plan_of`. The plan of all shapes is one of each alone, too.
    """
    shapes = {phase: plain.shapes(phase) for phase in plain.phases}
    if len(shapes) == 1:
        return ()
    differing = [
        path
        for path in shapes[STEP]
        if len({own.get(path) for own in shapes.values()}) > 1
    ]
    found = []
    for phase, own in shapes.items():
        step_time_s = sum(part.time_s for part in parts if part.phase == phase)
        alone = alone_s.get(phase)
        found.append(
            ShapeMetrics(
                name=phase,
                arguments={path: own[path] for path in differing},
                step_time_s=step_time_s,
                alone_s=None if alone is None else min(alone, step_time_s),
            )
        )
    return tuple(found)


def phase_operations(prepared: Prepared, phase: PhasePlan) -> tuple[Operation, ...]:
    """What a phase of a plan does with every operator."""
    graph, assignment = prepared.graphs[phase.name], phase.assignment
    states = matched_states(graph, assignment.states[phase.name])
    if prepared.evaluator.workload is not None:
        graph = at_batch(graph, phase.batch, TRACED_BATCH)
    return operations_of(phase.name, graph, states, assignment.degrees.axes)


def _state_notes(prepared: Prepared) -> tuple[str, ...]:
    return tuple(
        f"state {name!r} does not come back: no result has its shapes; it is only "
        "read, and not donated"
        for name, pairs in prepared.state.items()
        if not pairs
    )


def _number(value: Any) -> float | None:
    return None if np.isnan(value) else float(value)


def notes_of(prepared: Prepared) -> tuple[str, ...]:
    """What the tracer could not know, by phase."""
    return tuple(
        f"{phase}: {note}"
        for phase, graph in prepared.graphs.items()
        if "#" not in phase  # a further shape of the same function
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
    at_phases = [phase] if context.plain is None else [*whole.states, phase]
    own = {name: s for at in at_phases for name, s in whole.states[at].items()}
    assignment = dataclasses.replace(whole, states={phase: own})
    states = matched_states(graph, assignment.states[phase])
    specs = phase_specs(traced, graph, states, assignment)
    numbers = dataclasses.asdict(running)
    place, problem = numbers.pop("place"), context.problem
    donated, weights = _kinds(prepared, context)
    plan = PhasePlan(
        name=phase,
        assignment=assignment,
        degrees=named_degrees(space, picks),
        batch=int(tables.phases[phase].batches[int(picks[0]), place]),
        step_time_s=sum(part.time_s for part in parts if part.phase == phase),
        arguments=dict(zip(traced.in_paths, specs.arguments, strict=True)),
        results=dict(zip(traced.out_paths, specs.results, strict=True)),
        dims=dim_names({at: prepared.graphs[at] for at in (phase, *at_phases)}),
        donated=donated,
        weights=weights,
        model=context.model,
        devices=context.devices,
        **numbers,
    )
    if problem is not None:
        args = problem.args(phase, plan.batch)
        return plan.bind(problem.function(phase), args)
    assert context.plain is not None and phase == STEP
    return plan.bind(context.plain.function, *context.plain.phases[phase])


def _kinds(
    prepared: Prepared, context: Context
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the arguments to donate, and of those that hold parameters."""
    if context.problem is not None:
        return (context.problem.cache,), (context.problem.weights,)
    assert context.plain is not None
    donated = tuple(name for name, pairs in prepared.state.items() if pairs)
    return donated, context.plain.weights


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
        requests = 1.0 if workload is None else float(found.concurrency)
        terms = {
            "weights": memory["weights"],
            "state" if workload is None else "KV cache": memory["cache_per_sequence"]
            * requests,
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
