"""Where the time and memory of one candidate go: rows for people."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np

from lts.cost.collective import hand_over_time_s
from lts.cost.estimates import (
    ACROSS_GENERATIONS,
    BOUND,
    SCALED,
    Estimate,
    combined,
    of_collectives,
    of_node,
)
from lts.cost.pricing import Pricing
from lts.cost.serving import Step, depth_of, engine_step
from lts.cost.tables import CostTables, PhaseTables


@dataclass(frozen=True, kw_only=True)
class Part:
    """One node, reshard or hand-over of a plan.

    Attributes:
      phase: of the program.
      name: of the node, or `source -> target` of a reshard.
      kind: "op", "value" (elementwise kernels and reductions), "reshard", or
        "hand-over" (from one pipeline stage to the next), or "engine" (launches and
        host work of a step).
      time_s: seconds per step, all trips.
      states: what each mesh axis shards; for a reshard None.
      error: relative, of points that were held out of the fit behind it.
      provenance: "measured" on this chip, "scaled" from another chip or kernel, or
        "bound" (achieved rates alone).
    """

    phase: str
    name: str
    kind: str
    time_s: float
    states: tuple[str | None, ...] | None = None
    error: float = 0.0
    provenance: str = BOUND


def breakdown(
    tables: CostTables, picks: np.ndarray, places: dict[str, int]
) -> tuple[Part, ...]:
    """Parts of a candidate, in program order; parts that take no time are left out.

    Args:
      picks: host `[genes]`.
      places: per phase, the index of its batch in the grid.
    """
    space, d = tables.space, int(picks[0])
    choices = space.choices(picks)
    served: list[Part] = []
    for phase, found in tables.phases.items():
        place, parts = places[phase], []
        for node, variable, table in zip(
            found.graph.nodes, found.variables, found.node_time_s, strict=True
        ):
            choice = choices[variable]
            own = space.variables[variable]
            states = space.choice_states(int(variable))[choice]
            parts.append(
                Part(
                    phase=phase,
                    name=node.name,
                    kind="op" if node.is_op else "value",
                    time_s=float(table[d, choice, place]),
                    **of_node(node, tables.pricing)._asdict(),
                    states=tuple(
                        None if s == 0 else own.factors[s - 1].name for s in states
                    ),
                )
            )
        seen: set[tuple[int, int]] = set()
        batch = float(found.batches[d, place])
        for edge in found.edges:
            source = int(edge.source_codes[choices[edge.source]])
            target = int(edge.target_codes[choices[edge.target]])
            if (edge.first_like, target) in seen:
                continue
            seen.add((edge.first_like, target))
            nbytes = edge.nbytes + edge.bytes_per_sequence * batch
            rank = len(edge.edge.dims)
            time_s = tables.reshards.of(rank, d, source, target, nbytes)
            time_s *= edge.edge.trips
            nodes = edge.edge.source, edge.edge.target
            ends = (found.graph.nodes[i].name for i in nodes)
            parts.append(
                Part(
                    phase=phase,
                    name=" -> ".join(ends),
                    kind="reshard",
                    time_s=time_s,
                    **of_collectives(
                        tables.reshards.crosses(rank, d, source, target),
                        tables.pricing,
                    )._asdict(),
                )
            )
        hand_over_s = _hand_over_s(tables, found, d, choices, place)
        parts.append(
            Part(
                phase=phase,
                name="from stage to stage",
                kind="hand-over",
                time_s=hand_over_s,
                **of_collectives(
                    not space.degrees[d].stages_inside, tables.pricing
                )._asdict(),
            )
        )
        served += _as_served(tables, phase, d, place, parts)
    return tuple(part for part in served if part.time_s > 0)


def _as_served(
    tables: CostTables, phase: str, d: int, place: int, parts: list[Part]
) -> list[Part]:
    """Parts of a phase as its engine runs them, and what it adds.

    An engine's factor of prefill is of all parts, so that each is what it takes.
    """
    engine, found = tables.pricing.engine, tables.phases[phase]
    if engine is None:
        return parts
    total = sum(part.time_s for part in parts)
    step = Step(
        time_s=jnp.array([[total]]),
        activation_bytes=jnp.zeros((1, 1)),
        batches=jnp.asarray(found.batches[d : d + 1, place : place + 1]),
    )
    stages = jnp.array([tables.space.degrees[d].stages])
    whole = engine_step(step, phase, stages, depth_of(found.graph), engine)
    factor = engine.prefill if phase == "prefill" else 1.0
    added = Part(
        phase=phase,
        name="launches and host",
        kind="engine",
        time_s=float(whole.time_s[0, 0]) - factor * total,
        error=engine.tpot_error or ACROSS_GENERATIONS,
        provenance=SCALED,
    )
    return [*(replace(part, time_s=factor * part.time_s) for part in parts), added]


def _hand_over_s(
    tables: CostTables, found: PhaseTables, d: int, choices: np.ndarray, place: int
) -> float:
    """Seconds that the residual stream takes from stage to stage, over all stages."""
    degrees = tables.space.degrees[d]
    nbytes = sum(
        table[d, choices[variable], place]
        for table, variable in zip(found.stream_bytes, found.variables, strict=True)
        if table is not None
    )
    time_s = hand_over_time_s(np.asarray(nbytes), degrees, tables.pricing)
    return float(time_s * degrees.stages)


def memory_parts(tables: CostTables, picks: np.ndarray) -> dict[str, float]:
    """Bytes per GPU: `weights`, `cache_per_sequence`, `arguments` (plain functions)."""
    space, d = tables.space, int(picks[0])
    choices, stages = space.choices(picks), space.degrees[d].stages

    def total(found) -> list[float]:
        return [float(table[d, choices[v]]) for v, table in found.items()]

    outer = total(tables.outer_bytes)
    return {
        "weights": sum(total(tables.looped_bytes)) / stages
        + (max(outer, default=0.0) if stages > 1 else sum(outer)),
        "cache_per_sequence": sum(total(tables.cache_bytes)) / stages,
        "arguments": sum(total(tables.held_bytes)),
    }


def error_of(parts: Sequence[Part], phase: str, pricing: Pricing) -> float:
    """Relative error bar of a step: its parts err alike, an engine's as a whole."""
    own = [part for part in parts if part.phase == phase]
    estimates = [Estimate(part.error, part.provenance) for part in own]
    found = combined([part.time_s for part in own], estimates)
    engine = pricing.engine
    return max(found, (engine and engine.tpot_error) or 0.0)
