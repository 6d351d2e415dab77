"""`search` and `price`: the two ways to a `Plan`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from lts.build_plan import plan_of, why_infeasible
from lts.degrees import by_hand, by_specs
from lts.hardware import Cluster
from lts.methods import METHODS, run
from lts.methods.base import Found
from lts.plan import Plan
from lts.pools import price_pools, search_pools
from lts.prepare import NoFeasiblePlanError, Prepared
from lts.source import Names, Own, Target, source_of
from lts.tracing import Trips, warn_closed_over
from lts.workload import Workload

DEFAULT_METHOD = "learn_to_shard"
DEFAULT_BUDGET = 30_000


def search(
    target: Target,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    cluster: Cluster | None = None,
    workload: Workload | None = None,
    shapes: Iterable[Any] = (),
    weights: Names = (),
    state: Names | Mapping[str, str] = (),
    trips: Trips = None,
    mesh: Mesh | None = None,
    pin: Mapping[str, PartitionSpec] | None = None,
    method: str = DEFAULT_METHOD,
    budget: int = DEFAULT_BUDGET,
    seed: int = 0,
    serving: str = "colocated",
    weight_dtype: str | None = None,
    kv_dtype: str | None = None,
    engine: str | None = None,
    max_stages: int | None = None,
    on_unknown: str = "error",
    on_progress: Callable[[int, float], None] | None = None,
) -> Plan:
    """Find how to shard a function, or a model to serve.

    Args:
      target: a function (with `args`, `kwargs`: arrays or `ShapeDtypeStruct`s; the
        objective is its step time), or a zoo name, the path of a Hugging Face
        config.json, a `Decoder` or a `Problem` (with `workload`; the objective is
        generated tokens/s/GPU within its limits, read tokens/s/GPU if it generates
        none).
      shapes: of a function, arguments of further calls, each a tuple as `args`, or a
        pair (args, kwargs). There is one plan for all, whose layouts divide every
        shape; the objective is the mean step time, and `plan.metrics.shapes` has the
        step time at each beside that of the best plan found for this shape alone
        (which costs as many candidates again).
      weights: of a function, names of the arguments that hold parameters.
      state: of a function, names of the arguments that come back changed (caches,
        carries): they leave in the layout they came in, count once in memory, and are
        donated by `plan.apply`. A mapping says as which result, {"cache": "out/1"},
        where several have its shapes.
      trips: how often while loops run whose count does not show: of all, or by
        `file.py:line` or named scope.
      cluster: to plan for; None with `mesh` means as many H100s as it has devices.
      mesh: search on this mesh; its axes are given, stages are 1.
      pin: per argument path, a spec that it must have; needs `mesh`.
      method: a name of `lts.methods.METHODS`.
      budget: candidates to score.
      seed: same seed, same plan.
      serving: "colocated": prefill and decode on the same GPUs; "pools": each on
        instances of its own, whose sizes and number are found too.
      weight_dtype, kv_dtype: None for the config's own.
      engine: what serves the model, a name of `lts.cost.profile.names()`
        ("vllm-2025", ...); None for the geometric middle of those measured.
      max_stages: pipeline stages at most; 1 for plans that run as one program.
      on_unknown: "error", or "replicate" for primitives without a rule.
      on_progress: called with evaluations and the best log objective.

    Raises:
      ValueError: for bad input; the message says what to do.
      NoFeasiblePlanError: if no plan keeps the limits.
      UnsupportedOpError: for a primitive without a rule.

    Warns:
      ClosedOverWarning: if the function closes over arrays, with their size.
    """
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; there are {', '.join(METHODS)}")
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
        raise ValueError(f"budget must be a positive integer, got {budget!r}")
    source = source_of(
        target,
        args,
        kwargs,
        cluster=cluster,
        workload=workload,
        own=Own(shapes=shapes, weights=weights, state=state, trips=trips),
        mesh=mesh,
        pin=pin,
        serving=serving,
        weight_dtype=weight_dtype,
        kv_dtype=kv_dtype,
        engine=engine,
    )
    if serving == "pools":
        return search_pools(
            source.context,
            source.cluster,
            method=method,
            budget=budget,
            seed=seed,
            max_stages=source.most_stages(max_stages),
            on_unknown=on_unknown,
            on_progress=on_progress,
        )
    prepared = source.prepared(pin, max_stages, on_unknown)
    _warn(prepared)
    found = _found(prepared, method, budget, seed, on_progress)
    if found.violation > 0:
        raise NoFeasiblePlanError(why_infeasible(prepared, found.picks))
    alone_s = {}
    for phase, other in source.alone(pin, on_unknown).items():
        share = max(1, budget // len(prepared.graphs))
        best = _found(other, method, share, seed, None)
        if best.violation <= 0:
            alone_s[phase] = 1 / best.objective
    provenance = {
        "method": method,
        "seed": seed,
        "budget": budget,
        "evaluations": found.evaluations,
    }
    return plan_of(prepared, found.picks, source.context, provenance, alone_s)


def _warn(prepared: Prepared) -> None:
    """Warn the caller of `search` or `price` of closed-over arrays, once."""
    for traced in prepared.traced.values():
        if traced.closed_over:
            warn_closed_over(traced, stacklevel=3)
            return


def _found(
    prepared: Prepared,
    method: str,
    budget: int,
    seed: int,
    on_progress: Callable[[int, float], None] | None,
) -> Found:
    return run(
        METHODS[method](prepared.evaluator, budget),
        prepared.evaluator,
        budget=budget,
        key=jax.random.key(seed),
        on_progress=on_progress,
    )


def price(
    target: Target,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    cluster: Cluster | None = None,
    workload: Workload | None = None,
    shapes: Iterable[Any] = (),
    weights: Names = (),
    state: Names | Mapping[str, str] = (),
    trips: Trips = None,
    mesh: Mesh | None = None,
    degrees: Mapping[str, Any] | None = None,
    specs: Mapping[str, PartitionSpec] | None = None,
    serving: str = "colocated",
    weight_dtype: str | None = None,
    kv_dtype: str | None = None,
    engine: str | None = None,
    on_unknown: str = "error",
) -> Plan:
    """Price a layout that already runs, without searching.

    Args:
      target, args, kwargs, cluster, workload, shapes, weights, state, trips, serving,
      weight_dtype, kv_dtype, engine: as `search`.
      degrees: of "pp", "dp", "tp", "cp", "moe_tp", "moe_ep"; what is left over is data
        parallel. With pools those of an instance, which has their product of GPUs; for
        both phases, or {"prefill": {...}, "decode": {...}}.
      mesh, specs: or a mesh, and specs of arguments by path over its axes; operators
        follow their weights.

    Raises:
      ValueError: if neither or both of degrees and specs are given, or they do not fit.
      NoFeasiblePlanError: if the layout breaks a limit; the message says by how much.
    """
    if (degrees is None) == (specs is None):
        raise ValueError("price needs degrees={'tp': 8, 'pp': 2} or specs={path: spec}")
    source = source_of(
        target,
        args,
        kwargs,
        cluster=cluster,
        workload=workload,
        own=Own(shapes=shapes, weights=weights, state=state, trips=trips),
        mesh=mesh,
        pin=None,
        serving=serving,
        weight_dtype=weight_dtype,
        kv_dtype=kv_dtype,
        engine=engine,
    )
    if serving == "pools":
        if degrees is None:
            raise ValueError("specs name the axes of one mesh; pools take degrees=")
        return price_pools(
            source.context,
            source.cluster,
            degrees,
            max_stages=source.most_stages(None),
            on_unknown=on_unknown,
        )
    prepared = source.prepared(None, None, on_unknown)
    _warn(prepared)
    if degrees is not None:
        picks = by_hand(prepared.space, degrees)
    else:
        picks = by_specs(prepared.space, specs or {})
    outcome = prepared.evaluator.outcome(picks[:, None])
    if float(outcome.violation[0]) > 0:
        raise NoFeasiblePlanError(why_infeasible(prepared, picks))
    provenance = {"method": "price", "seed": 0, "budget": 1, "evaluations": 1}
    return plan_of(prepared, picks, source.context, provenance)
