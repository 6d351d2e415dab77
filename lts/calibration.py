"""Fitted parameters of operator models: of which chip, from which data, how good.

One YAML file per measured chip in `calibrations/`, written by
`python -m experiments.fit_silicon`; `lts calibrate` writes one for the chips at hand:

    chip: H100-SXM5-80GB
    fits:
      gemm/bfloat16:
        values: {launch_s: 2.1e-06, ...}   # SI units, or fractions of a specification
        median_error: 0.041                # relative, of points held out of the fit
        p90_error: 0.13
        points: 10448
        source: "..."
        date: 2026-12-01

Values are fractions of the chip's specification wherever they can be, so that a chip
that was not measured takes those of its nearest relative (`Chip.calibration`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

FOLDER = Path(__file__).with_name("calibrations")


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Parameters of one operator model on one chip.

    Attributes:
      values: by name; SI units or fractions.
      median_error, p90_error: relative, of points that were held out of the fit.
      points: measured points behind it.
      source: of the measurements.
      date: of the fit.
    """

    values: Mapping[str, float]
    median_error: float
    p90_error: float
    points: int
    source: str
    date: str


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Fits of one chip, by operator: `gemm/bfloat16`, `all_reduce/nccl/8`, ..."""

    chip: str
    fits: Mapping[str, Fit]

    def fit(self, key: str) -> Fit:
        """The fit of an operator.

        Raises:
          ValueError: if there is none.
        """
        if key not in self.fits:
            raise ValueError(
                f"no fitted model {key!r} for {self.chip}; there are: "
                f"{', '.join(sorted(self.fits))}. Name another calibration in the "
                "chip's `calibration`, or measure with `lts calibrate`."
            )
        return self.fits[key]


def is_path(name: str) -> bool:
    """Whether a calibration is a file of the user's, not one that comes with lts."""
    return name.lower().endswith((".yaml", ".yml"))


def load(name: str) -> Calibration:
    """The calibration of a chip: a name in `calibrations/`, or the path of a YAML file.

    Raises:
      ValueError: if there is none, or a file is not of this schema.
    """
    if not is_path(name):
        return _shipped(name)
    try:
        return _read(name, Path(name).stat().st_mtime_ns)
    except OSError as error:
        raise ValueError(
            f"cannot read calibration '{name}': {error.strerror}"
        ) from error
    except (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"'{name}' is no calibration: {reason}") from error


@cache
def _shipped(name: str) -> Calibration:
    path = FOLDER / f"{name}.yaml"
    if not path.exists():
        known = ", ".join(sorted(found.stem for found in FOLDER.glob("*.yaml")))
        raise ValueError(f"unknown calibration {name!r}; there are: {known}")
    return from_dict(yaml.safe_load(path.read_text(encoding="utf-8")))


@cache
def _read(path: str, _written_ns: int) -> Calibration:
    """A file as it was written at some time: it may be written again."""
    return from_dict(yaml.safe_load(Path(path).read_text(encoding="utf-8")))


def from_dict(data: Mapping) -> Calibration:
    """A calibration from the mapping that a file of this schema holds."""
    fits = {
        key: Fit(**{**fit, "date": str(fit["date"]), "values": dict(fit["values"])})
        for key, fit in data["fits"].items()
    }
    for key, fit in fits.items():
        for name, value in fit.values.items():
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"{key}: {name} must be a number, got {value!r}")
    return Calibration(chip=data["chip"], fits=fits)


def to_dict(calibration: Calibration) -> dict:
    """The mapping that `from_dict` reads."""
    return {
        "chip": calibration.chip,
        "fits": {
            key: {**vars(fit), "values": dict(fit.values)}
            for key, fit in sorted(calibration.fits.items())
        },
    }
