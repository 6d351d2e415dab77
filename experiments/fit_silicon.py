"""Fits the operator models to a folder of measured timings.

    python experiments/fit_silicon.py --data DIR --out DIR [--only PREFIX] [--date DATE]

Writes h100.yaml, h200.yaml and a100.yaml in the schema of `lts/calibration.py`; with
`--out lts/calibrations` they become those that the package ships. Values are rounded to
4 digits. Errors beside them are of points held out of the fit, whole shapes at a time,
in 5 folds. With `--only gemm` the other fits that DIR holds are kept. About 15 minutes
on one core for everything.
"""

import argparse
import time
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import yaml

from lts.calibrate.fit import Series, errors, fit, held_out_s
from lts.calibrate.tables import series, source_of
from lts.calibration import Calibration, Fit, from_dict, to_dict
from lts.hardware import Cluster

FOLDS = 5


def rounded(value: float) -> float:
    """To 4 significant digits."""
    return float(f"{value:.3e}")


def fitted(one: Series, chip_name: str, today: str) -> Fit | None:
    """Values and held-out errors of one series; none of a single shape."""
    count = min(FOLDS, len(np.unique(one.shapes)))
    if count < 2:
        return None
    chip = Cluster.preset(chip_name).chip
    error = errors(held_out_s(one, chip, count), one.time_s)
    return Fit(
        values={name: rounded(value) for name, value in fit(one, chip).items()},
        median_error=rounded(error["median"]),
        p90_error=rounded(error["p90"]),
        points=len(one.time_s),
        source=source_of(one.key),
        date=today,
    )


def earlier(path: Path, chip_name: str, keep: bool) -> Calibration:
    """What a file holds; nothing if there is none, or it is not to be kept."""
    if not (keep and path.exists()):
        return Calibration(chip=Cluster.preset(chip_name).chip.name, fits={})
    return from_dict(yaml.safe_load(path.read_text(encoding="utf-8")))


def main() -> None:
    """Parse the knobs, fit, write after each fit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="fit keys that start with this")
    parser.add_argument("--date", default=date.today().isoformat())
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    calibrations: dict[str, Calibration] = {}
    for name, one in series(args.data):
        if not one.key.startswith(args.only):
            continue
        start = time.perf_counter()
        found = fitted(one, name, args.date)
        if found is None:
            print(f"{name} {one.key:28} not fitted: its points are of one shape")
            continue
        path = args.out / f"{name}.yaml"
        if name not in calibrations:
            calibrations[name] = earlier(path, name, keep=bool(args.only))
        own = calibrations[name]
        calibrations[name] = replace(own, fits={**own.fits, one.key: found})
        text = yaml.safe_dump(to_dict(calibrations[name]), sort_keys=False, width=88)
        path.write_text(text, encoding="utf-8")
        print(
            f"{name} {one.key:28} median {found.median_error:6.1%} "
            f"p90 {found.p90_error:6.1%} of {found.points:6} points held out, "
            f"{time.perf_counter() - start:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
