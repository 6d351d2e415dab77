"""One phase of a plan: its specs, and how to apply and verify it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from lts.applied import AppliedStep, auto_mesh, put
from lts.assignment import Assignment
from lts.compiler import Compiler
from lts.cost.predict import predicted_collectives
from lts.models import Decoder, config_from_dict, config_to_dict
from lts.pipeline import PipelinedStep
from lts.problem import Problem, argument_names, zoo_problem
from lts.tracing import argument_paths
from lts.verify import Report, compare, compile_step, predicted_bytes
from lts.workload import Workload

Specs = Mapping[str, PartitionSpec]

_NUMBERS = (
    "batch",
    "step_time_s",
    "requests_per_s",
    "peak_bytes",
    "weight_bytes",
    "cache_bytes",
)
"""Fields of a `PhasePlan` that a file has as they are."""


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """The model that a plan serves, so that it can be built again."""

    model: Decoder
    workload: Workload
    weight_dtype: str | None
    kv_dtype: str | None

    def stage_problem(self, stages: int) -> Problem:
        """The problem of one pipeline stage: its share of the layers.

        Raises:
          ValueError: if the layers do not divide, or differ.
        """
        self.model.check_stages(stages)
        config = self.model.config
        own = dataclasses.replace(
            config, layers=config.layers[: config.num_hidden_layers // stages]
        )
        return zoo_problem(
            Decoder(config=own, layers=self.model.layers),
            self.workload,
            weight_dtype=self.weight_dtype,
            kv_dtype=self.kv_dtype,
        )

    def reading(self) -> "ModelSource":
        """The model as a prefill pool has it: its caches hold prompts only."""
        workload = dataclasses.replace(self.workload, output_len=0)
        return dataclasses.replace(self, workload=workload)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "name": self.model.name,
            "config": config_to_dict(self.model.config),
            "layers": self.model.layers,
            "weight_dtype": self.weight_dtype,
            "kv_dtype": self.kv_dtype,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], workload: Workload) -> "ModelSource":
        """The source that `to_dict` wrote."""
        return cls(
            model=Decoder(
                config=config_from_dict(data["config"]), layers=data["layers"]
            ),
            workload=workload,
            weight_dtype=data["weight_dtype"],
            kv_dtype=data["kv_dtype"],
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class PhasePlan:
    """One phase of a plan: its specs, and how to apply and verify it.

    Attributes:
      name: of the phase.
      assignment: degrees, and what every mesh axis shards in this phase.
      degrees: as `Plan.degrees`, of one instance.
      instances: meshes that run it, each with all weights; 1 if phases are colocated.
      batch: sequences that one call works on (per pipeline stage).
      step_time_s: of one call.
      requests_per_s: that all instances can serve; None for a plain function.
      peak_bytes: per GPU; `weight_bytes` and `cache_bytes` are parts of it.
      arguments, results: spec by path.
      dims: names of the dims of every argument, by path.
      donated: names of arguments that `apply` donates.
      weights: names of the arguments that hold parameters.
      trees: structures of (args, kwargs) and of the result; None until bound.
      devices: of the mesh that was searched on; None for all of jax's. Not saved.
    """

    name: str
    assignment: Assignment
    degrees: Mapping[str, int]
    instances: int
    batch: int
    step_time_s: float
    requests_per_s: float | None
    peak_bytes: float
    weight_bytes: float
    cache_bytes: float
    arguments: Specs
    results: Specs
    dims: Mapping[str, Sequence[str]]
    donated: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    trees: tuple[Any, Any] | None = None
    devices: tuple[Any, ...] | None = None
    model: ModelSource | None = None

    @property
    def gpus(self) -> int:
        """GPUs of one instance."""
        return self.assignment.degrees.num_gpus

    def _tree(self, number: int, specs: Specs) -> Any:
        if self.trees is None:
            raise ValueError(
                "this plan was loaded from a file and knows its specs by path only; "
                "plan.bind(function, args) gives the pytrees back"
            )
        return jax.tree.unflatten(self.trees[number], list(specs.values()))

    @property
    def in_specs(self) -> Any:
        """Specs as the positional arguments; with keyword arguments (args, kwargs).

        Raises:
          ValueError: for a plan of an own function that was loaded and not bound.
        """
        args, kwargs = self._tree(0, self.arguments)
        return (args, kwargs) if kwargs else args

    @property
    def out_specs(self) -> Any:
        """Specs as the function's result.

        Raises:
          ValueError: for a plan of an own function that was loaded and not bound.
        """
        return self._tree(1, self.results)

    def mesh(self, devices: Sequence[Any] | None = None) -> Mesh:
        """The mesh, with Auto axes, over `devices`, in order.

        Default: those of the mesh that was searched on, else all of jax's.

        Pipeline stages are its first axis, "pp"; each stage runs on its own part.

        Raises:
          ValueError: if there are too few devices.
        """
        degrees = self.assignment.degrees
        stages = {"pp": degrees.stages} if degrees.stages > 1 else {}
        mesh = auto_mesh(self._devices(devices), {**stages, **degrees.shape})
        assert isinstance(mesh, Mesh)
        return mesh

    def _devices(self, devices: Sequence[Any] | None) -> list[Any]:
        degrees = self.assignment.degrees
        devices = self.devices if devices is None else devices
        found = list(jax.devices() if devices is None else devices)
        if len(found) < degrees.num_gpus:
            raise ValueError(
                f"the plan needs {degrees.num_gpus} devices ({degrees.stages} stages x "
                f"{degrees.shape}), found {len(found)}; to try it without GPUs, call "
                f"jax.config.update('jax_num_cpu_devices', {degrees.num_gpus}) first"
            )
        return found[: degrees.num_gpus]

    def apply(
        self, function: Callable[..., Any], *, donate: Sequence[str] | None = None
    ) -> AppliedStep | PipelinedStep:
        """`function`, jitted, with this phase's shardings inside.

        With pipeline stages, `function` must be the phase of the zoo model (or of the
        config.json) that the plan is of; there is then a jit per stage.

        Args:
          donate: names of arguments to donate; None for the cache of a served model.
        """
        if self.assignment.degrees.stages > 1:
            return self._pipelined()
        return AppliedStep(
            function=function,
            assignment=self.assignment,
            phase=self.name,
            dims=self.dims,
            mesh=self.mesh(),
            donated=self.donated if donate is None else tuple(donate),
            weights=self.weights,
        )

    def _pipelined(self) -> PipelinedStep:
        degrees = self.assignment.degrees
        if self.model is None:
            raise ValueError(
                f"the plan has {degrees.stages} pipeline stages, and a function of "
                "one's own cannot be cut into them; search with max_stages=1"
            )
        return PipelinedStep(
            model=self.model.model,
            assignment=self.assignment,
            phase=self.name,
            dims=self.dims,
            devices=self._devices(None),
        )

    def device_put(self, args: Any, kwargs: Mapping[str, Any] | None = None) -> Any:
        """`args` on the mesh, as planned; with `kwargs`, the pair of both.

        With pipeline stages, parameters and cache become lists over stages.
        """
        if self.assignment.degrees.stages > 1:
            return self._pipelined().device_put(args)
        pair = (tuple(args), dict(kwargs or {}))
        if self.trees is not None and jax.tree.structure(pair) != self.trees[0]:
            raise ValueError(
                "these arguments have another structure than those that the plan is "
                "for; put them with step = plan.apply(...); step.device_put(*args)"
            )
        placed = put(pair, list(self.arguments.values()), self.mesh())
        return placed if kwargs else placed[0]

    def bind(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
    ) -> "PhasePlan":
        """The phase with the structures of a function's arguments and result.

        Raises:
          ValueError: if the paths of the arguments are not those of the plan.
        """
        kwargs = dict(kwargs or {})
        names = argument_names(function, len(args))
        paths = argument_paths(args, kwargs, names)
        if paths != list(self.arguments):
            raise ValueError(
                f"cannot bind: the plan has arguments {', '.join(self.arguments)}; "
                f"these have {', '.join(paths)}"
            )
        shapes = jax.eval_shape(function, *args, **kwargs)
        trees = jax.tree.structure((tuple(args), kwargs)), jax.tree.structure(shapes)
        return dataclasses.replace(self, trees=trees)

    def verify(
        self,
        function: Callable[..., Any] | None = None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        target: str = "cpu",
    ) -> Report:
        """Compile the phase and compare collectives and bytes with the prediction.

        Args:
          function, args, kwargs: what to compile; nothing for a model that the plan
            knows. With pipeline stages, one stage is compiled.
          target: "cpu": forced CPU devices; "h100": GPUs, which need not be there. Both
            in a subprocess.

        Raises:
          ValueError: for another target, or if there is nothing to compile.
          RuntimeError: if the compilation fails, or the target's compiler has to be
            installed first.
        """
        with Compiler(target) as compiler:  # refuses what cannot be, before any work
            return self.verify_with(compiler, function, args, kwargs)

    def verify_with(
        self,
        compiler: Compiler,
        function: Callable[..., Any] | None = None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> Report:
        """`verify` by a compiler that runs already: starting one takes seconds."""
        if function is None:
            if self.model is None:
                raise ValueError(
                    "the plan is of a function of your own: plan.verify(function, args)"
                )
            problem = self.model.stage_problem(self.assignment.degrees.stages)
            function = problem.function(self.name)
            args = problem.args(self.name, self.batch)
        degrees = self.assignment.degrees
        mesh = auto_mesh(None, degrees.shape)
        step = AppliedStep(
            function=function,
            assignment=self.assignment,
            phase=self.name,
            dims=self.dims,
            mesh=mesh,
            donated=self.donated,
            weights=self.weights,
        )
        found = step.prepared(tuple(args or ()), dict(kwargs or {}))
        program = compile_step(found.step, found.leaves, degrees.mesh_size, compiler)
        predicted = predicted_collectives(
            found.graph, found.states, degrees.axes, scatters=False
        )
        held = predicted_bytes(found, degrees, self.donated)
        return compare(self.name, program, predicted, held, degrees.shape)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data, without the trees."""
        return {
            "assignment": self.assignment.to_dict(),
            "degrees": dict(self.degrees),
            "instances": self.instances,
            "gpus": self.gpus,
            **{name: getattr(self, name) for name in _NUMBERS},
            "in_specs": [[p, _spec_to_list(s)] for p, s in self.arguments.items()],
            "out_specs": [[p, _spec_to_list(s)] for p, s in self.results.items()],
            "dims": {path: list(names) for path, names in self.dims.items()},
            "donated": list(self.donated),
            "weights": list(self.weights),
        }

    @classmethod
    def from_dict(
        cls,
        name: str,
        data: Mapping[str, Any],
        model: ModelSource | None,
    ) -> "PhasePlan":
        """The phase that `to_dict` wrote, not bound."""
        return cls(
            name=name,
            assignment=Assignment.from_dict(data["assignment"]),
            degrees=data["degrees"],
            instances=data["instances"],
            **{field: data[field] for field in _NUMBERS},
            arguments={p: _spec_from_list(s) for p, s in data["in_specs"]},
            results={p: _spec_from_list(s) for p, s in data["out_specs"]},
            dims={path: tuple(names) for path, names in data["dims"].items()},
            donated=tuple(data["donated"]),
            weights=_names(data["weights"]),
            model=model,
        )


def _names(found: str | Sequence[str]) -> tuple[str, ...]:
    """Names of arguments; earlier files have one, "" for none."""
    return tuple(found) if not isinstance(found, str) else (found,) * bool(found)


def _spec_to_list(spec: PartitionSpec) -> list[Any]:
    return [list(e) if isinstance(e, tuple) else e for e in spec]


def _spec_from_list(entries: Sequence[Any]) -> PartitionSpec:
    return PartitionSpec(*(tuple(e) if isinstance(e, list) else e for e in entries))
