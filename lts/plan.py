"""The public `Plan`: an assignment with metrics, bound and provenance.

A plan is what a search returns and what `plan.json` holds. Its methods only call the
rooms below: `apply` puts its shardings into a function, `verify` compiles it, `phase`
gives the same for one phase of a served model.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from lts.applied import AppliedStep
from lts.assignment import Assignment
from lts.compiler import Compiler
from lts.hardware import Cluster
from lts.metrics import Metrics
from lts.operations import Operation
from lts.phase import ModelSource, PhasePlan
from lts.pipeline import PipelinedStep
from lts.report.explain import explain_text
from lts.report.html import plan_html
from lts.report.text import plan_text
from lts.verify import Verification
from lts.workload import Workload

FORMAT = 2
"""Version of plan.json; a reader refuses others."""

SERVINGS = ("colocated", "pools")
"""Prefill and decode on the same GPUs, or each on instances of its own."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Plan:
    """How to split a program over a cluster; see the module docstring.

    Attributes:
      cluster: that it was made for.
      workload: None for a plain function.
      serving: "colocated": all phases on one mesh with one layout of the weights;
        "pools": each on instances of its own.
      metrics: predicted.
      objective: tokens/s/GPU, or 1 / step time of a plain function.
      bound: proven bound on the objective; `gap_kind` says how it was proven.
      method, seed, budget, evaluations: how it was found.
      phases: by name; the last is the main one.
      model: None for functions of one's own.
      notes: what the tracer could not know.
      operations: what is done with every operator, by phase in program order.
      origin: of a function that the command line found, how to find it again.
    """

    cluster: Cluster
    workload: Workload | None
    serving: str
    metrics: Metrics
    objective: float
    bound: float
    gap_kind: str
    method: str
    seed: int
    budget: int
    evaluations: int
    phases: Mapping[str, PhasePlan]
    model: ModelSource | None = None
    notes: tuple[str, ...] = field(default=())
    operations: tuple[Operation, ...] = ()
    origin: Mapping[str, str] | None = None

    @property
    def gap(self) -> float:
        """Relative distance of the objective from its bound: 0 is proven optimal."""
        return max(0.0, 1.0 - self.objective / self.bound)

    def phase(self, name: str) -> PhasePlan:
        """One phase.

        Raises:
          ValueError: if there is none of that name.
        """
        if name not in self.phases:
            raise ValueError(
                f"the plan has no phase {name!r}; it has {', '.join(self.phases)}"
            )
        return self.phases[name]

    @property
    def main_phase(self) -> PhasePlan:
        """The last phase: decode of a served model, else the only one."""
        return list(self.phases.values())[-1]

    @property
    def assignment(self) -> Assignment:
        """Degrees, and what every mesh axis shards, operator by operator.

        With pools, those of the main phase.
        """
        main = self.main_phase.assignment
        if self.serving == "pools":
            return main
        states = {
            name: phase.assignment.states[name] for name, phase in self.phases.items()
        }
        return dataclasses.replace(main, states=states)

    @property
    def degrees(self) -> Mapping[str, int]:
        """pp, dp, tp, cp, moe_tp, moe_ep; with pools, of one decode instance."""
        return self.main_phase.degrees

    @property
    def in_specs(self) -> Any:
        """Specs of the main phase's arguments; see `PhasePlan.in_specs`."""
        return self.main_phase.in_specs

    @property
    def out_specs(self) -> Any:
        """Specs of the main phase's result."""
        return self.main_phase.out_specs

    def mesh(self, devices: Sequence[Any] | None = None) -> Mesh:
        """The mesh of the main phase (colocated: of all); see `PhasePlan.mesh`."""
        return self.main_phase.mesh(devices)

    def _phase_of(self, function: Callable[..., Any] | None) -> PhasePlan:
        if len(self.phases) == 1:
            return self.main_phase
        name = getattr(function, "__name__", "")
        if name not in self.phases:
            raise ValueError(
                f"which phase is {name or function!r}? The plan has "
                f"{', '.join(self.phases)}: use plan.phase(name)"
            )
        return self.phases[name]

    def apply(
        self, function: Callable[..., Any], *, donate: Sequence[str] | None = None
    ) -> AppliedStep | PipelinedStep:
        """`function`, jitted, with the plan's shardings inside.

        Of a served model, the phase is the one that the function is named after.
        """
        return self._phase_of(function).apply(function, donate=donate)

    def device_put(self, args: Any, kwargs: Mapping[str, Any] | None = None) -> Any:
        """Arguments of the main phase, put on the mesh as planned."""
        return self.main_phase.device_put(args, kwargs)

    def bind(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
    ) -> "Plan":
        """The plan with pytrees for a function of one's own; see `PhasePlan.bind`."""
        phase = self._phase_of(function).bind(function, args, kwargs)
        return dataclasses.replace(self, phases={**self.phases, phase.name: phase})

    def verify(
        self,
        function: Callable[..., Any] | None = None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        target: str = "cpu",
    ) -> Verification:
        """Compile all phases (of a function: its own); see `PhasePlan.verify`."""
        if function is not None:
            phases = [self._phase_of(function)]
        else:
            phases = list(self.phases.values())
        with Compiler(target) as compiler:
            found = [
                phase.verify_with(compiler, function, args, kwargs) for phase in phases
            ]
        return Verification(reports=tuple(found))

    def explain(self, name: str | None = None) -> str:
        """Why an operator is as it is: source, specs, time and collectives, as text.

        Args:
          name: of an operator, `file.py:line`, or the path of an argument; None lists
            all operators.

        Raises:
          ValueError: if the plan has nothing of that name; with those that are close.
        """
        return explain_text(self.to_dict(), name)

    def save(self, path: str | Path) -> None:
        """Write plan.json; the same plan gives the same bytes."""
        text = json.dumps(self.to_dict(), indent=1, sort_keys=True) + "\n"
        Path(path).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "Plan":
        """Read a plan.json.

        Raises:
          ValueError: if the file is not one of this version's plans.
        """
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ValueError(f"cannot read plan '{path}': {error.strerror}") from None
        except ValueError as error:
            raise ValueError(f"plan '{path}' is not JSON: {error}") from None
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            found = data.get("format") if isinstance(data, dict) else None
            raise ValueError(
                f"'{path}' is not a plan of format {FORMAT} (found {found}); write it "
                "with lts search --out"
            )
        return cls.from_dict(data)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data, without times of the search; see docs/schemas.md."""
        return {
            "format": FORMAT,
            "cluster": self.cluster.to_dict(),
            "workload": None if self.workload is None else self.workload.to_dict(),
            "model": None if self.model is None else self.model.to_dict(),
            "serving": self.serving,
            "degrees": dict(self.degrees),
            "metrics": self.metrics.to_dict(),
            "objective": self.objective,
            "bound": self.bound,
            "gap": self.gap,
            "gap_kind": self.gap_kind,
            "search": {
                "method": self.method,
                "seed": self.seed,
                "budget": self.budget,
                "evaluations": self.evaluations,
            },
            "phases": {name: p.to_dict() for name, p in self.phases.items()},
            "phase_order": list(self.phases),
            "notes": list(self.notes),
            "operations": [operation.to_dict() for operation in self.operations],
            "origin": None if self.origin is None else dict(self.origin),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Plan":
        """The plan that `to_dict` wrote.

        Raises:
          ValueError: if a field is missing or malformed.
        """
        try:
            return _plan_from_dict(data)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"malformed plan: {error} is missing or wrong") from error

    def _repr_html_(self) -> str:
        return plan_html(self.to_dict())

    def __repr__(self) -> str:
        return plan_text(self.to_dict())


def _plan_from_dict(data: Mapping[str, Any]) -> Plan:
    if data["serving"] not in SERVINGS:
        raise ValueError(f"serving {data['serving']!r}")
    workload = None if data["workload"] is None else Workload(**data["workload"])
    model = None
    if data["model"] is not None:
        if workload is None:
            raise ValueError("workload of a served model")
        model = ModelSource.from_dict(data["model"], workload)
    phases = {}
    for name in data["phase_order"]:
        own = model
        if own is not None and name == "prefill" and data["serving"] == "pools":
            own = own.reading()
        phases[name] = PhasePlan.from_dict(name, data["phases"][name], own)
        if own is not None:
            problem = own.stage_problem(1)
            args = problem.args(name, phases[name].batch)
            phases[name] = phases[name].bind(problem.function(name), args)
    search = data["search"]
    if not data["bound"] > 0:
        raise ValueError(f"bound {data['bound']}")
    return Plan(
        cluster=Cluster.from_dict(data["cluster"]),
        workload=workload,
        serving=data["serving"],
        metrics=Metrics.from_dict(data["metrics"]),
        objective=data["objective"],
        bound=data["bound"],
        gap_kind=data["gap_kind"],
        method=search["method"],
        seed=search["seed"],
        budget=search["budget"],
        evaluations=search["evaluations"],
        phases=phases,
        model=model,
        notes=tuple(data["notes"]),
        operations=tuple(map(Operation.from_dict, data.get("operations", ()))),
        origin=data.get("origin"),
    )
