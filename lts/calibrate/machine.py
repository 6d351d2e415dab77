"""Measures the chips at hand and makes a cluster and a calibration of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import yaml

from lts.calibrate.chips import (
    COPIES,
    FP8,
    FP8_DTYPE,
    PRODUCTS,
    Machine,
    chip_of,
    link_of,
    machine,
)
from lts.calibrate.clock import Clock, Stopwatch
from lts.calibrate.fit import Series, errors
from lts.calibrate.measure import LEAST_POINTS, Measured, measure, series_of, start_of
from lts.calibrate.probes import families
from lts.calibrate.probes.products import COPY_WIDTH
from lts.calibrate.refit import refit, refit_errors, scaled
from lts.calibration import Calibration, Fit, load, to_dict
from lts.cost.operators.base import Values
from lts.cost.operators.elementwise import KINDS
from lts.hardware import Chip, Cluster, Link

REFERENCE = "h100"
"""Preset whose values an unknown chip starts from."""

_BUDGET_S, _QUICK_BUDGET_S = 120.0, 12.0
_SLOW = 30.0
"""How much slower than the reference a device that is no GPU is expected to be."""
_LOOSE = 4.0
"""Factor of the priors' widths for a chip that is not the reference."""
_LEAST_GAIN = 1.1
"""Of float8 products over bfloat16: below it XLA has only widened them."""
_NO_USE = "measured on {}, which are no GPUs: of no use for planning GPUs"


@dataclass(frozen=True, kw_only=True)
class Row:
    """An operator that was measured.

    Attributes:
      key: of its fit.
      unit: "FLOP" or "B", of the rate.
      best_rate: per second.
      ways: points by implementation, the quickest of each size.
      reference_error: median relative error of the values that the fit started from.
      fit: what was fitted; None of too few points.
      points: measured and predicted, each with its sizes.
    """

    key: str
    unit: str
    best_rate: float
    ways: Mapping[str, int]
    reference_error: float
    fit: Fit | None
    points: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """A cluster as measured; notes say what was left out."""

    cluster: Cluster
    calibration: Calibration
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, strings and numbers, as `lts calibrate --json` prints them."""
        rows = [
            {
                "key": row.key,
                "unit": row.unit,
                "best_rate": row.best_rate,
                "ways": dict(row.ways),
                "reference_error": row.reference_error,
                "median_error": row.fit and row.fit.median_error,
                "p90_error": row.fit and row.fit.p90_error,
                "points": [dict(point) for point in row.points],
            }
            for row in self.rows
        ]
        cluster = self.cluster.to_dict()
        return {"cluster": cluster, "operators": rows, "notes": list(self.notes)}


def calibrate(
    *,
    name: str,
    today: str,
    quick: bool = False,
    budget_s: float | None = None,
    clock: Clock | None = None,
    on_family: Callable[[str], None] | None = None,
) -> Calibrated:
    """Measure the devices of this process.

    Args:
      name: of the cluster.
      today: date, for the records.
      quick: fewer sizes.
      budget_s: for measurements, beside compilation; else two minutes, quick a tenth.
      clock: what times a program; else the wall clock.
      on_family: called with the key of what is measured next.

    Raises:
      ValueError: if there are no devices of one kind in one process, or products or
        copies do not run on them.
    """
    found = machine(REFERENCE)
    reference = found.reference
    helds = (load(reference.chip.calibration), load(REFERENCE))
    fp8 = found.is_gpu and (
        not found.is_known or FP8_DTYPE in dict(reference.chip.peak_flops_per_s)
    )
    measured = {
        one.family.key: one
        for one in measure(
            families(found.devices, quick=quick, fp8=fp8),
            clock or Stopwatch(),
            helds,
            reference,
            budget_s=budget_s or (_QUICK_BUDGET_S if quick else _BUDGET_S),
            slowdown=1.0 if found.is_gpu else _SLOW,
            on_family=on_family,
        )
    }
    notes = [] if found.is_gpu else [_NO_USE.format(f"{found.kind} devices")]
    notes += [fault for one in measured.values() for fault in one.faults]
    for key in COPIES, PRODUCTS:
        if len(measured[key].points) < LEAST_POINTS:
            why = "; ".join(measured[key].faults)
            raise ValueError(
                f"cannot measure products or copies on {found.kind}: {why}"
            )
    if FP8 in measured and (
        measured[FP8].best_rate < _LEAST_GAIN * measured[PRODUCTS].best_rate
    ):
        del measured[FP8]
        notes.append("float8 products are no faster than bfloat16 ones: left out")
    chip, intra = chip_of(found, measured, today), link_of(found, measured, today)
    rows = _rows(found, measured, helds, chip, intra, today)
    notes += [
        f"{row.key} is not fitted: {len(row.points)} points"
        for row in rows
        if row.fit is None
    ]
    cluster = Cluster(
        name=name,
        chip=chip,
        nodes=1,
        gpus_per_node=len(found.devices),
        intra=intra,
        inter=replace(
            reference.inter, source=f"Not measured; of preset {reference.name}."
        ),
    )
    # other operators keep the preset's fits, which are of this very chip
    own = helds[0].fits if found.is_known else {}
    own = {**own, **{row.key: row.fit for row in rows if row.fit is not None}}
    return Calibrated(
        cluster=cluster,
        calibration=Calibration(chip=chip.name, fits=own),
        rows=tuple(rows),
        notes=tuple(notes),
    )


def calibration_path(out: Path) -> Path:
    """Where the calibration of the cluster file `out` is written."""
    return out.with_name(f"{out.stem}.calibration.yaml")


def write(found: Calibrated, out: Path) -> Cluster:
    """Write a cluster file and, beside it, the calibration that its chip names.

    Returns:
      The cluster as `Cluster.load(out)` gives it.

    Raises:
      ValueError: if a file cannot be written.
    """
    beside = calibration_path(out)
    chip = replace(found.cluster.chip, calibration=beside.name)
    files = {
        beside: to_dict(found.calibration),
        out: replace(found.cluster, chip=chip).to_dict(),
    }
    for path, data in files.items():
        text = yaml.safe_dump(data, sort_keys=False, width=88)
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ValueError(f"cannot write '{path}': {error.strerror}") from error
    return Cluster.load(out)


def _rows(
    found: Machine,
    measured: Mapping[str, Measured],
    helds: Sequence[Calibration],
    chip: Chip,
    link: Link,
    today: str,
) -> list[Row]:
    """Fits of everything measured; copies first, which the others' chains contain.

    Args:
      helds: where fits start from, the best first.
    """
    rows: list[Row] = []
    copies: Values = {}

    def local_s(nbytes: np.ndarray) -> np.ndarray:
        per_row = KINDS["kv_write"].element_bytes * COPY_WIDTH
        width = np.full(nbytes.shape, float(COPY_WIDTH))
        sizes = {"rows": nbytes / per_row, "width": width}
        return measured[COPIES].family.operator.time_s(sizes, copies, chip)

    for key in sorted(measured, key=lambda key: key != COPIES):
        one = measured[key]
        if not one.points:
            continue
        start, origin = start_of(one.family, helds)
        if not found.is_known:
            start = scaled(start, one.family.free, chip, found.reference.chip)
        series = series_of(one, link, local_s if copies else np.zeros_like)
        rows.append(_row(found, one, series, start, origin, chip, today))
        if key == COPIES:
            fit = rows[-1].fit
            copies = fit.values if fit else start
    return rows


def _row(
    found: Machine,
    one: Measured,
    series: Series,
    start: Values,
    origin: str,
    chip: Chip,
    today: str,
) -> Row:
    operator, free = one.family.operator, one.family.free
    before = operator.time_s(series.sizes, start, chip)
    ways = {
        way: sum(point.way == way for point in one.points)
        for way in sorted({point.way for point in one.points})
    }
    fit, predicted = None, before
    if len(one.points) >= LEAST_POINTS:
        loose = 1.0 if found.is_known else _LOOSE
        values = refit(series, chip, start, free, looseness=loose)
        error = refit_errors(series, chip, start, free, looseness=loose)
        predicted = operator.time_s(series.sizes, values, chip)
        fit = Fit(
            values={name: float(f"{value:.3e}") for name, value in values.items()},
            median_error=float(f"{error['median']:.3e}"),
            p90_error=float(f"{error['p90']:.3e}"),
            points=len(one.points),
            source=(
                f"lts calibrate on {found.kind} with jax {jax.__version__}: "
                f"{', '.join(free)} ({', '.join(ways)}); other values of {origin}"
            ),
            date=today,
        )
    points = tuple(
        {
            "sizes": {**point.probe.sizes},
            "way": point.way,
            "time_s": float(time_s),
            "predicted_s": float(predicted_s),
        }
        for point, time_s, predicted_s in zip(
            one.points, series.time_s, predicted, strict=True
        )
    )
    return Row(
        key=one.family.key,
        unit=one.family.unit,
        best_rate=one.best_rate,
        ways=ways,
        reference_error=errors(before, series.time_s)["median"],
        fit=fit,
        points=points,
    )
