"""Compile a sharded step with XLA and compare what it emits with what was predicted.

The step is lowered on an abstract mesh and exported; a subprocess compiles it for
forced CPU devices, or for GPUs that need not be there. Collectives are read from the
HLO right after SPMD partitioning, which is the same for both, those in a loop times its
trips. Nothing is allocated or run.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from lts.compiler import CompiledProgram, Compiler, platform_of
from lts.cost.predict import Predicted
from lts.hlo import list_collectives

Key = tuple[str, tuple[str, ...], int]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One kind of collective: how often it was predicted, and how often emitted.

    `nbytes` is the result on one device; `reasons` say where predictions come from.
    """

    phase: str
    kind: str
    axes: tuple[str, ...]
    nbytes: int
    predicted: int
    emitted: int
    reasons: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether prediction and compiler agree."""
        return self.predicted == self.emitted


@dataclass(frozen=True, kw_only=True)
class Report:
    """What XLA made of a step.

    Attributes:
      phase: of the plan.
      target: that was compiled for.
      rows: collectives, those that differ first.
      argument_bytes: per device, predicted and compiled.
      output_bytes, temp_bytes, alias_bytes, peak_bytes: per device, compiled; what is
        temporary, and with it the peak, is as the target has it.
      warnings: reshards that XLA could do only by replicating an array.
      unknown_trips: collectives in loops whose trip count the compiler did not show;
        they are counted once.
    """

    phase: str
    target: str
    rows: tuple[Row, ...]
    predicted_argument_bytes: int
    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    alias_bytes: int
    peak_bytes: int
    warnings: tuple[str, ...]
    unknown_trips: int

    @property
    def ok(self) -> bool:
        """Whether every collective and the argument bytes are as predicted."""
        return not self.differing and (
            self.predicted_argument_bytes == self.argument_bytes
        )

    @property
    def differing(self) -> tuple[Row, ...]:
        """Rows in which prediction and compiler differ."""
        return tuple(row for row in self.rows if not row.agrees)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "phase": self.phase,
            "target": self.target,
            "ok": self.ok,
            "argument_bytes": self.argument_bytes,
            "predicted_argument_bytes": self.predicted_argument_bytes,
            "output_bytes": self.output_bytes,
            "temp_bytes": self.temp_bytes,
            "alias_bytes": self.alias_bytes,
            "peak_bytes": self.peak_bytes,
            "unknown_trips": self.unknown_trips,
            "warnings": list(self.warnings),
            "rows": [
                {
                    "kind": row.kind,
                    "axes": list(row.axes),
                    "nbytes": row.nbytes,
                    "predicted": row.predicted,
                    "emitted": row.emitted,
                    "reasons": list(row.reasons),
                }
                for row in self.rows
            ],
        }


@dataclass(frozen=True, kw_only=True)
class Verification:
    """Reports of all phases of a plan."""

    reports: tuple[Report, ...]

    @property
    def ok(self) -> bool:
        """Whether every phase is as predicted."""
        return all(report.ok for report in self.reports)

    @property
    def rows(self) -> tuple[Row, ...]:
        """Rows of all phases."""
        return tuple(row for report in self.reports for row in report.rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {"ok": self.ok, "phases": [r.to_dict() for r in self.reports]}


def compile_step(
    step: Any, leaves: Sequence[Any], num_devices: int, compiler: Compiler
) -> CompiledProgram:
    """Compile a jitted step (over an abstract mesh).

    Args:
      step: `jax.jit` of a function of flat arguments, `keep_unused=True`.
      leaves: abstract flat arguments.
    """
    platforms = (platform_of(compiler.target),)
    # what `lts.local_updates` asks of XLA; a stable call, but on no list of these
    order = jax.export.DisabledSafetyCheck.custom_call("LayoutConstraint")
    export = jax.export.export(step, platforms=platforms, disabled_checks=[order])
    exported = export(*leaves)
    return compiler.compile(exported.serialize(), num_devices)


def compare(
    phase: str,
    program: CompiledProgram,
    predicted: Sequence[Predicted],
    predicted_argument_bytes: int,
    mesh_shape: dict[str, int],
) -> Report:
    """The report of a compiled program against its prediction."""
    emitted = list_collectives(program.after_spmd, mesh_shape)
    found: Counter[Key] = Counter()
    for collective in emitted:
        key = (collective.kind, collective.axes, collective.nbytes)
        found[key] += collective.count
    hoped: Counter[Key] = Counter()
    reasons: dict[Key, list[str]] = {}
    for row in predicted:
        key = (row.kind, row.axes, row.nbytes)
        hoped[key] += row.count
        reasons.setdefault(key, []).append(row.reason)
    rows = [
        Row(
            phase=phase,
            kind=key[0],
            axes=key[1],
            nbytes=key[2],
            predicted=hoped[key],
            emitted=found[key],
            reasons=tuple(reasons.get(key, ())),
        )
        for key in sorted({*found, *hoped})
    ]
    return Report(
        phase=phase,
        target=program.target,
        rows=tuple(sorted(rows, key=lambda row: row.agrees)),
        predicted_argument_bytes=predicted_argument_bytes,
        argument_bytes=program.argument_bytes,
        output_bytes=program.output_bytes,
        temp_bytes=program.temp_bytes,
        alias_bytes=program.alias_bytes,
        peak_bytes=program.peak_bytes,
        warnings=program.warnings,
        unknown_trips=sum(not c.trips_known for c in emitted),
    )
