"""What `search` and `price` are asked about, from what users pass them."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jax.sharding import Mesh, PartitionSpec

from lts.build_plan import Context
from lts.hardware import Cluster
from lts.mesh import Degrees, MeshAxis
from lts.models import Decoder, load
from lts.phase import ModelSource
from lts.plain import PlainFunction, plain_function
from lts.plan import SERVINGS
from lts.prepare import Prepared, prepare_plain, prepare_problem
from lts.problem import Problem
from lts.tracing import Trips
from lts.workload import Workload

Names = str | Iterable[str]

Target = str | os.PathLike[str] | Decoder | Problem | Callable[..., Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class Own:
    """What `search` is told of a function of one's own."""

    shapes: Iterable[Any]
    weights: Names
    state: Names | Mapping[str, str]
    trips: Trips

    def check_none(self) -> None:
        """Refuse what a model to serve says itself."""
        for name in ("shapes", "weights", "state"):
            if getattr(self, name):
                raise ValueError(
                    f"{name}= is for functions; a model to serve (lts.Problem) says "
                    f"itself what its arguments are: drop {name}="
                )

    def function(
        self, target: Any, args: Sequence[Any] | None, kwargs: Mapping | None
    ) -> PlainFunction:
        """The function with all that is known of its arguments."""
        return plain_function(
            target, args, kwargs, self.shapes, self.weights, self.state, self.trips
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Source:
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
        if context.plain is not None:
            return prepare_plain(context.plain, self.cluster, **options)
        assert context.problem is not None and context.workload is not None
        return prepare_problem(
            context.problem,
            context.workload,
            self.cluster,
            engine=context.engine,
            max_stages=self.most_stages(max_stages),
            **options,
        )

    def alone(
        self, pin: Mapping[str, PartitionSpec] | None, on_unknown: str
    ) -> dict[str, Prepared]:
        """A function at each of its shapes alone, by phase; none if it has but one."""
        plain = self.context.plain
        if plain is None or len(plain.calls) == 1:
            return {}
        return {
            phase: prepare_plain(
                plain.at(phase),
                self.cluster,
                degrees=self.degrees,
                pins=pin,
                on_unknown=on_unknown,
            )
            for phase in plain.phases
        }


def source_of(
    target: Target,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    *,
    cluster: Cluster | None,
    workload: Workload | None,
    own: Own,
    mesh: Mesh | None,
    pin: Mapping[str, PartitionSpec] | None,
    serving: str,
    weight_dtype: str | None,
    kv_dtype: str | None,
    engine: str | None = None,
) -> Source:
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
        own.check_none()
        if own.trips is not None:
            target = replace(target, trips=own.trips)
        context = Context(
            workload=workload,
            problem=target,
            model=model,
            devices=devices,
            engine=engine,
        )
        return Source(context=context, cluster=cluster, degrees=degrees)
    if workload is not None:
        raise ValueError(
            "a workload needs a model to serve; wrap functions in lts.Problem, or drop "
            "workload to minimise one function's step time"
        )
    if engine is not None:
        raise ValueError("an engine serves models; a function runs alone: drop engine=")
    if serving == "pools":
        raise ValueError("pools serve a model; a function has one phase: drop serving=")
    context = Context(plain=own.function(target, args, kwargs), devices=devices)
    return Source(context=context, cluster=cluster, degrees=degrees)


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
