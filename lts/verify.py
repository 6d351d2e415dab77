"""Compile a sharded step with XLA and compare what it emits with what was predicted.

The step is lowered on an abstract mesh and exported; a subprocess compiles it for
forced CPU devices, or for GPUs that need not be there. Collectives are read from the
HLO right after SPMD partitioning, which is the same for both, those in a loop times its
trips. Nothing is allocated or run.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from lts.applied import Lowerable, auto_mesh
from lts.compiler import CompiledProgram, Compiler, platform_of
from lts.cost.predict import Predicted, predicted_scratch_bytes
from lts.hlo import list_collectives
from lts.mesh import Degrees

Key = tuple[str, tuple[str, ...], int]

_POINTER_BYTES = 8  # several results come as a tuple of pointers


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
class HeldBytes:
    """Bytes of one device; `output` includes what aliases arguments."""

    argument: int
    output: int
    alias: int
    temp: int

    @property
    def peak(self) -> int:
        """Most that is held at once."""
        return self.argument + self.output - self.alias + self.temp


@dataclass(frozen=True, kw_only=True)
class Report:
    """What XLA made of a step.

    Attributes:
      phase: of the plan.
      target: that was compiled for.
      rows: collectives, those that differ first.
      predicted: bytes that a GPU should hold; what is temporary is an estimate.
      argument_bytes, output_bytes, temp_bytes, alias_bytes, peak_bytes: per device,
        compiled; what is temporary, and with it the peak, is as the target has it.
      warnings: reshards that XLA could do only by replicating an array.
      unknown_trips: collectives in loops whose trip count the compiler did not show;
        they are counted once.
    """

    phase: str
    target: str
    rows: tuple[Row, ...]
    predicted: HeldBytes
    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    alias_bytes: int
    peak_bytes: int
    warnings: tuple[str, ...]
    unknown_trips: int

    @property
    def predicted_argument_bytes(self) -> int:
        """Arguments per device, as predicted."""
        return self.predicted.argument

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
            **{
                f"predicted_{name}_bytes": getattr(self.predicted, name)
                for name in ("argument", "output", "temp", "alias", "peak")
            },
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


def predicted_bytes(
    found: Lowerable, degrees: Degrees, donated: Sequence[str]
) -> HeldBytes:
    """What one device should hold of a step.

    Args:
      donated: names of arguments whose buffers results of their kind take.
    """
    mesh = auto_mesh(None, degrees.shape)

    def local(arrays: Sequence[Any], specs: Sequence[PartitionSpec]) -> list[int]:
        return [
            array.dtype.itemsize
            * math.prod(NamedSharding(mesh, spec).shard_shape(array.shape))
            for array, spec in zip(arrays, specs, strict=True)
        ]

    specs, traced = found.specs, found.traced
    arguments = local(found.leaves, (*specs.arguments, *specs.closed_over))
    returned = traced.closed.out_avals
    results = local(returned, specs.results)
    pointers = _POINTER_BYTES * len(results) if len(results) > 1 else 0
    free = Counter(
        (array.shape, array.dtype, spec)
        for array, spec in zip(returned, specs.results, strict=True)
    )
    alias = 0
    for path, leaf, spec, nbytes in zip(
        traced.in_paths, found.leaves, specs.arguments, arguments, strict=False
    ):
        kind = (leaf.shape, leaf.dtype, spec)
        if path.split("/")[0] in donated and free[kind]:
            free[kind] -= 1
            alias += nbytes
    return HeldBytes(
        argument=sum(arguments),
        output=sum(results) + pointers,
        alias=alias,
        temp=round(predicted_scratch_bytes(found.graph, found.states, degrees)),
    )


def compare(
    phase: str,
    program: CompiledProgram,
    predicted: Sequence[Predicted],
    held: HeldBytes,
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
        predicted=held,
        argument_bytes=program.argument_bytes,
        output_bytes=program.output_bytes,
        temp_bytes=program.temp_bytes,
        alias_bytes=program.alias_bytes,
        peak_bytes=program.peak_bytes,
        warnings=program.warnings,
        unknown_trips=sum(not c.trips_known for c in emitted),
    )
