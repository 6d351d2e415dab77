"""`search` and `price`: the two ways to a `Plan`."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from lts.build_plan import Context, plan_of, why_infeasible
from lts.degrees import by_hand, by_specs
from lts.hardware import Cluster
from lts.mesh import Degrees, MeshAxis
from lts.methods import METHODS, run
from lts.models import Decoder, load
from lts.phase import ModelSource
from lts.plan import SERVINGS, Plan
from lts.pools import price_pools, search_pools
from lts.prepare import (
    NoFeasiblePlanError,
    Prepared,
    prepare_function,
    prepare_problem,
)
from lts.problem import Problem
from lts.workload import Workload

DEFAULT_METHOD = "learn_to_shard"
DEFAULT_BUDGET = 30_000

Target = str | os.PathLike[str] | Decoder | Problem | Callable[..., Any]


def search(
    target: Target,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    cluster: Cluster | None = None,
    workload: Workload | None = None,
    mesh: Mesh | None = None,
    pin: Mapping[str, PartitionSpec] | None = None,
    method: str = DEFAULT_METHOD,
    budget: int = DEFAULT_BUDGET,
    seed: int = 0,
    serving: str = "colocated",
    weight_dtype: str | None = None,
    kv_dtype: str | None = None,
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
      cluster: to plan for; None with `mesh` means as many H100s as it has devices.
      mesh: search on this mesh; its axes are given, stages are 1.
      pin: per argument path, a spec that it must have; needs `mesh`.
      method: a name of `lts.methods.METHODS`.
      budget: candidates to score.
      seed: same seed, same plan.
      serving: "colocated": prefill and decode on the same GPUs; "pools": each on
        instances of its own, whose sizes and number are found too.
      weight_dtype, kv_dtype: None for the config's own.
      max_stages: pipeline stages at most; 1 for plans that run as one program.
      on_unknown: "error", or "replicate" for primitives without a rule.
      on_progress: called with evaluations and the best log objective.

    Raises:
      ValueError: for bad input; the message says what to do.
      NoFeasiblePlanError: if no plan keeps the limits.
      UnsupportedOpError: for a primitive without a rule.
    """
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; there are {', '.join(METHODS)}")
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
        raise ValueError(f"budget must be a positive integer, got {budget!r}")
    source = _source(
        target,
        args,
        kwargs,
        cluster=cluster,
        workload=workload,
        mesh=mesh,
        pin=pin,
        serving=serving,
        weight_dtype=weight_dtype,
        kv_dtype=kv_dtype,
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
    evaluator = prepared.evaluator
    found = run(
        METHODS[method](evaluator, budget),
        evaluator,
        budget=budget,
        key=jax.random.key(seed),
        on_progress=on_progress,
    )
    if found.violation > 0:
        raise NoFeasiblePlanError(why_infeasible(prepared, found.picks))
    provenance = {
        "method": method,
        "seed": seed,
        "budget": budget,
        "evaluations": found.evaluations,
    }
    return plan_of(prepared, found.picks, source.context, provenance)


def price(
    target: Target,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    cluster: Cluster | None = None,
    workload: Workload | None = None,
    mesh: Mesh | None = None,
    degrees: Mapping[str, Any] | None = None,
    specs: Mapping[str, PartitionSpec] | None = None,
    serving: str = "colocated",
    weight_dtype: str | None = None,
    kv_dtype: str | None = None,
    on_unknown: str = "error",
) -> Plan:
    """Price a layout that already runs, without searching.

    Args:
      target, args, kwargs, cluster, workload, serving, weight_dtype, kv_dtype: as
        `search`.
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
    source = _source(
        target,
        args,
        kwargs,
        cluster=cluster,
        workload=workload,
        mesh=mesh,
        pin=None,
        serving=serving,
        weight_dtype=weight_dtype,
        kv_dtype=kv_dtype,
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
    if degrees is not None:
        picks = by_hand(prepared.space, degrees)
    else:
        picks = by_specs(prepared.space, specs or {})
    outcome = prepared.evaluator.outcome(picks[:, None])
    if float(outcome.violation[0]) > 0:
        raise NoFeasiblePlanError(why_infeasible(prepared, picks))
    provenance = {"method": "price", "seed": 0, "budget": 1, "evaluations": 1}
    return plan_of(prepared, picks, source.context, provenance)


@dataclass(frozen=True, eq=False, kw_only=True)
class _Source:
    """What is to be planned, and for which cluster; `degrees` of a given mesh."""

    context: Context
    cluster: Cluster
    degrees: tuple[Degrees, ...] | None

    def most_stages(self, asked: int | None) -> int | None:
        """Pipeline stages at most: one where layers differ, which no stages share."""
        model = self.context.model
        if model is None or model.model.stageable_layers > 1:
            return asked
        return 1 if asked is None else min(asked, 1)

    def prepared(
        self,
        pin: Mapping[str, PartitionSpec] | None,
        max_stages: int | None,
        on_unknown: str,
    ) -> Prepared:
        """Ready to be searched, its phases on one mesh."""
        context = self.context
        options: dict[str, Any] = {
            "degrees": self.degrees,
            "pins": pin,
            "on_unknown": on_unknown,
        }
        if context.call is not None:
            return prepare_function(*context.call, self.cluster, **options)
        assert context.problem is not None and context.workload is not None
        return prepare_problem(
            context.problem,
            context.workload,
            self.cluster,
            max_stages=self.most_stages(max_stages),
            **options,
        )


def _source(
    target: Target,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    *,
    cluster: Cluster | None,
    workload: Workload | None,
    mesh: Mesh | None,
    pin: Mapping[str, PartitionSpec] | None,
    serving: str,
    weight_dtype: str | None,
    kv_dtype: str | None,
) -> _Source:
    if serving not in SERVINGS:
        raise ValueError(f"serving is {serving!r}; there are {', '.join(SERVINGS)}")
    if serving == "pools" and mesh is not None:
        raise ValueError("pools have a mesh each, which is found; drop mesh=")
    if pin and mesh is None:
        raise ValueError("pin needs mesh=: specs name the axes of a mesh of yours")
    degrees: tuple[Degrees, ...] | None = None
    devices = None
    if mesh is not None:
        devices = tuple(mesh.devices.flat)
        cluster = cluster or _cluster_of(mesh)
        degrees = (_degrees_of(mesh, cluster),)
    if cluster is None:
        raise ValueError("no cluster: pass cluster=lts.Cluster.parse('h100:1x8')")
    model = None
    if isinstance(target, str | os.PathLike):
        target = load(target)
    if isinstance(target, Decoder):
        if workload is None:
            raise ValueError(
                f"{target.name} is a model to serve: pass workload=lts.Workload("
                "input_len=..., output_len=...)"
            )
        model = ModelSource(
            model=target,
            workload=workload,
            weight_dtype=weight_dtype,
            kv_dtype=kv_dtype,
        )
        target = model.stage_problem(1)
    if isinstance(target, Problem):
        if workload is None:
            raise ValueError(f"{target.name} is to be served: pass workload=")
        if args is not None or kwargs:
            raise ValueError("a model to serve brings its own arguments; drop args")
        context = Context(
            workload=workload, problem=target, model=model, devices=devices
        )
        return _Source(context=context, cluster=cluster, degrees=degrees)
    if workload is not None:
        raise ValueError(
            "a workload needs a model to serve; wrap functions in lts.Problem, or drop "
            "workload to minimise one function's step time"
        )
    if serving == "pools":
        raise ValueError("pools serve a model; a function has one phase: drop serving=")
    call = (target, tuple(args or ()), dict(kwargs or {}))
    context = Context(call=call, devices=devices)
    return _Source(context=context, cluster=cluster, degrees=degrees)


def _cluster_of(mesh: Mesh) -> Cluster:
    gpus = min(mesh.size, 8)
    if mesh.size % gpus:
        raise ValueError(
            f"a mesh of {mesh.size} devices fills no number of 8-GPU nodes; pass "
            "cluster="
        )
    return Cluster.preset("h100", nodes=mesh.size // gpus, gpus_per_node=gpus)


def _degrees_of(mesh: Mesh, cluster: Cluster) -> Degrees:
    """The user's mesh; inner axes lie inside a node as far as they fill it."""
    if mesh.size != cluster.num_gpus:
        raise ValueError(
            f"the mesh has {mesh.size} devices, the cluster {cluster} "
            f"{cluster.num_gpus}; they must be equal"
        )
    filled, inside = 1, {}
    for name in reversed(mesh.axis_names):
        filled *= mesh.shape[name]
        inside[name] = filled <= cluster.gpus_per_node
    return Degrees(
        stages=1,
        axes=tuple(
            MeshAxis(name=name, size=mesh.shape[name], inside=inside[name])
            for name in mesh.axis_names
        ),
    )
