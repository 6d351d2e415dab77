"""Fits of operator models: robust least squares in the log, folds over shapes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from lts.cost.operators.base import Operator, Sizes
from lts.hardware import Chip

_SOFT = 0.05
"""Relative error from which a point pulls less (soft L1): outliers are autotuning."""
_MOST_STEPS = 200
_LEAST_GAIN = 1e-5
"""Relative gain of the loss below which a fit stops: errors of held-out points stay the
same, and it takes a third less time than at the default of 1e-8."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Series:
    """Measured points of one operator on one chip.

    Attributes:
      key: of the fit, as in `lts.calibration`.
      operator: its model.
      sizes: each `[points]`.
      time_s: measured, `[points]`.
      shapes: number of the shape that a point belongs to, int `[points]`: points of one
        shape are held out together.
    """

    key: str
    operator: Operator
    sizes: Sizes
    time_s: np.ndarray
    shapes: np.ndarray

    def at(self, points: np.ndarray) -> "Series":
        """The same with some points only; bool or int `points`."""
        return Series(
            key=self.key,
            operator=self.operator,
            sizes={name: size[points] for name, size in self.sizes.items()},
            time_s=self.time_s[points],
            shapes=self.shapes[points],
        )


def shape_numbers(*columns: np.ndarray) -> np.ndarray:
    """Equal numbers for points that agree in all columns; int `[points]`."""
    stacked = np.stack([np.unique(c, return_inverse=True)[1] for c in columns])
    return np.unique(stacked, axis=1, return_inverse=True)[1].ravel()


def fit(series: Series, chip: Chip) -> dict[str, float]:
    """Values of the parameters that come closest to the measured points.

    Least squares of `log(predicted / measured)` with a soft L1 loss; deterministic.
    """
    parameters = series.operator.parameters
    logs = np.array([p.low > 0 for p in parameters])

    def coded(numbers: list[float]) -> np.ndarray:
        raw = np.array(numbers, float)
        return np.where(logs, np.log(np.where(logs, raw, 1.0)), raw)

    def decoded(code: np.ndarray) -> dict[str, float]:
        raw = np.where(logs, np.exp(np.where(logs, code, 0.0)), code)
        return {p.name: float(v) for p, v in zip(parameters, raw, strict=True)}

    def residuals(code: np.ndarray) -> np.ndarray:
        found = series.operator.time_s(series.sizes, decoded(code), chip)
        return np.log(found / series.time_s)

    low = coded([p.low for p in parameters])
    high = coded([p.high for p in parameters])
    start = np.clip(coded([p.start for p in parameters]), low, high)
    found = least_squares(
        residuals,
        start,
        bounds=(low, high),
        loss="soft_l1",
        f_scale=_SOFT,
        x_scale=np.maximum(np.abs(high - low) / 10, 1e-12),
        max_nfev=_MOST_STEPS,
        ftol=_LEAST_GAIN,
    )
    return decoded(found.x)


def folds(series: Series, count: int, seed: int = 0) -> Iterator[np.ndarray]:
    """Points held out in each of `count` folds, bool `[points]`; whole shapes."""
    rng = np.random.default_rng(seed)
    numbers = np.unique(series.shapes)
    fold_of = dict(
        zip(numbers, rng.permutation(np.arange(len(numbers)) % count), strict=True)
    )
    found = np.array([fold_of[shape] for shape in series.shapes])
    for number in range(count):
        yield found == number


def held_out_s(series: Series, chip: Chip, count: int = 5) -> np.ndarray:
    """Each point as predicted by a fit that did not see its shape; `[points]`."""
    predicted = np.zeros(len(series.time_s))
    for held in folds(series, count):
        values = fit(series.at(~held), chip)
        part = series.at(held)
        predicted[held] = series.operator.time_s(part.sizes, values, chip)
    return predicted


def errors(predicted_s: np.ndarray, measured_s: np.ndarray) -> Mapping[str, float]:
    """Median and 90th percentile of the relative error, and the median bias."""
    relative = predicted_s / measured_s - 1
    return {
        "median": float(np.median(np.abs(relative))),
        "p90": float(np.quantile(np.abs(relative), 0.9)),
        "bias": float(np.median(relative)),
    }
