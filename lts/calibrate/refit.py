"""Fits of a few parameters to a few points, drawn to values from another chip.

`lts.calibrate.fit` finds all parameters of an operator from thousands of points. Here
there are about ten and a timer that may be noisy: a handful of parameters move by
factors from their reference, each held back by a normal prior in the logarithm.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import least_squares

from lts.calibrate.fit import Series, errors, folds
from lts.cost.operators.base import Values
from lts.hardware import Chip

_NOISE = 0.1
"""Relative error of a point that counts as much as a prior's width. Beyond it a point
pulls no harder (soft L1), while priors do: one bad point moves nothing far."""
_TIME_WIDTH, _SHARE_WIDTH = 0.5, 0.2
"""Widths of the priors, natural logarithms: of seconds and rates, of fractions."""
_FREEDOM = 100.0
"""Factor within which seconds and rates stay of their reference; and how far fractions
may fall below their bounds, which are those of data center GPUs."""
_INSIDE = 0.1
"""How far from a bound a fit starts, in widths; at the bound itself it is stuck."""
_MOST_STEPS = 100


def scaled(
    values: Values, free: Sequence[str], chip: Chip, reference: Chip
) -> dict[str, float]:
    """Values of a reference chip for another one, before anything is fitted to it.

    Fractions are kept. Free parameters that are rates of a streaming multiprocessor
    follow its share of the memory's bandwidth, seconds its arithmetic, and launches the
    time of a launch.
    """
    rate = chip.hbm_bandwidth_bytes_per_s / reference.hbm_bandwidth_bytes_per_s
    speed = chip.peak("bfloat16") / reference.peak("bfloat16")
    multiprocessors = chip.num_sms / reference.num_sms
    factors = {}
    for name in free:
        if name.endswith("bytes_per_s"):
            factors[name] = rate / multiprocessors
        elif name == "launch_s":
            factors[name] = chip.op_launch_s / reference.op_launch_s
        elif name.endswith("_s"):
            factors[name] = multiprocessors / speed
    return {name: value * factors.get(name, 1.0) for name, value in values.items()}


def refit(
    series: Series,
    chip: Chip,
    reference: Values,
    free: Sequence[str],
    *,
    looseness: float = 1.0,
) -> dict[str, float]:
    """Values for all parameters, of which the free ones come close to the points.

    Args:
      reference: of all parameters; centre of the priors.
      free: parameters that may move.
      looseness: factor of the priors' widths.
    """
    centre = np.array([reference[name] for name in free])
    times = np.array([name.endswith("_s") for name in free])
    width = looseness * np.where(times, _TIME_WIDTH, _SHARE_WIDTH)
    bounds = {p.name: (p.low, p.high) for p in series.operator.parameters}
    low, high = np.array([bounds[name] for name in free]).T
    least = np.log(np.where(times, 1.0, low / centre) / _FREEDOM) / width
    # values in files are rounded, some of them beyond a bound
    most = np.log(np.where(times, _FREEDOM, np.maximum(high / centre, 1.0))) / width

    def values_of(code: np.ndarray) -> dict[str, float]:
        moved = centre * np.exp(width * code)
        return {**reference, **dict(zip(free, map(float, moved), strict=True))}

    def residuals(code: np.ndarray) -> np.ndarray:
        found = series.operator.time_s(series.sizes, values_of(code), chip)
        error = np.log(found / series.time_s) / _NOISE
        soft = np.sign(error) * np.sqrt(2 * (np.sqrt(1 + error**2) - 1))
        return np.concatenate([soft, code])

    found = least_squares(
        residuals,
        np.minimum(0.0, most - _INSIDE),
        bounds=(least, most),
        max_nfev=_MOST_STEPS,
    )
    return values_of(found.x)


def refit_errors(
    series: Series,
    chip: Chip,
    reference: Values,
    free: Sequence[str],
    *,
    looseness: float = 1.0,
) -> Mapping[str, float]:
    """`errors` of points that their refit did not see, every fifth at a time."""
    predicted = np.zeros(len(series.time_s))
    for held in folds(series, min(5, len(series.time_s))):
        values = refit(series.at(~held), chip, reference, free, looseness=looseness)
        part = series.at(held)
        predicted[held] = series.operator.time_s(part.sizes, values, chip)
    return errors(predicted, series.time_s)
