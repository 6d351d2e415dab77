"""Serving as two pools: prefill and decode each on instances of their own.

The GPUs of a cluster are divided into `c_p` prefill instances of `g_p` GPUs and `c_d`
decode instances of `g_d`. Every instance holds all weights, in a layout of its own
phase; the KV caches of prompts go from one to the other. `search_pools` finds sizes,
counts and layouts together, `price_pools` prices layouts that are given.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping

import jax

from lts.build_plan import Context
from lts.degrees import by_hand
from lts.hardware import Cluster
from lts.plan import Plan
from lts.pools.plan import plan_of_pools
from lts.pools.prepare import pool_phases, prepare_pools
from lts.pools.search import search_phases

Degrees = Mapping[str, int]


def search_pools(
    context: Context,
    cluster: Cluster,
    *,
    method: str,
    budget: int,
    seed: int,
    max_stages: int | None,
    on_unknown: str,
    on_progress: Callable[[int, float], None] | None,
) -> Plan:
    """The best plan that a method finds; arguments as `lts.search`.

    Raises:
      NoFeasiblePlanError: if no two pools hold the model and keep the limits.
    """
    contexts = _contexts(context)
    assert context.workload is not None
    prepared = prepare_pools(
        {phase: own.problem for phase, own in contexts.items() if own.problem},
        context.workload,
        cluster,
        engine=context.engine,
        max_stages=max_stages,
        on_unknown=on_unknown,
    )
    found = search_phases(
        prepared,
        method=method,
        budget=budget,
        key=jax.random.key(seed),
        on_progress=on_progress,
    )
    provenance = {
        "method": method,
        "seed": seed,
        "budget": budget,
        "evaluations": found.evaluations,
    }
    return plan_of_pools(prepared, found.candidates, contexts, provenance)


def price_pools(
    context: Context,
    cluster: Cluster,
    degrees: Degrees | Mapping[str, Degrees],
    *,
    max_stages: int | None,
    on_unknown: str,
) -> Plan:
    """The plan of given degrees, with as many instances as serve most.

    Args:
      degrees: of an instance, for both phases or by phase.

    Raises:
      ValueError: for degrees that no instance has.
      NoFeasiblePlanError: if a limit is missed.
    """
    contexts = _contexts(context)
    assert context.workload is not None
    given = _by_phase(degrees, tuple(contexts))
    prepared = prepare_pools(
        {phase: own.problem for phase, own in contexts.items() if own.problem},
        context.workload,
        cluster,
        engine=context.engine,
        sizes={phase: _num_gpus(own) for phase, own in given.items()},
        max_stages=max_stages,
        on_unknown=on_unknown,
    )
    candidates = {
        phase: by_hand(own.space, given[phase])[:, None]
        for phase, own in prepared.items()
    }
    provenance = {
        "method": "price",
        "seed": 0,
        "budget": len(candidates),
        "evaluations": len(candidates),
    }
    return plan_of_pools(prepared, candidates, contexts, provenance)


def _contexts(context: Context) -> dict[str, Context]:
    """The context of every phase; prefill has caches of prompts only, if it may."""
    assert context.workload is not None
    found = dict.fromkeys(pool_phases(context.workload), context)
    if context.model is not None:
        model = context.model.reading()
        found["prefill"] = dataclasses.replace(
            context, model=model, problem=model.stage_problem(1)
        )
    return found


def _by_phase(
    degrees: Degrees | Mapping[str, Degrees], phases: tuple[str, ...]
) -> dict[str, Degrees]:
    nested = {p: own for p, own in degrees.items() if isinstance(own, Mapping)}
    flat = {n: value for n, value in degrees.items() if not isinstance(value, Mapping)}
    if not nested:
        return dict.fromkeys(phases, flat)
    if flat or set(nested) != set(phases):
        raise ValueError(
            f"degrees by phase must be given for {' and '.join(phases)}, got "
            f"{', '.join(map(repr, degrees))}"
        )
    return nested


def _num_gpus(degrees: Degrees) -> int:
    """GPUs of an instance: experts fold those that the other degrees have."""
    for name, value in degrees.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a positive integer, got {value!r}")
    folds = (("dp", "tp", "cp"), ("moe_tp", "moe_ep"))
    ways = [math.prod(degrees.get(name, 1) for name in names) for names in folds]
    return degrees.get("pp", 1) * max(ways)
