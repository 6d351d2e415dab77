"""What every operator model is: a function of sizes, parameters, and a floor."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from lts.hardware import Chip

Sizes = Mapping[str, np.ndarray]
Values = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One fitted number: where a fit starts, and within which bounds it stays.

    Positive bounds: the fit moves it by factors (in the log), else by steps.
    """

    name: str
    start: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Operator:
    """An operator model.

    Attributes:
      name: as in the keys of a calibration, before the first `/`.
      parameters: what is fitted.
      time_s: seconds from sizes, values of the parameters, and the chip; monotone in
        every size, continuous up to the rounding of sizes to integers, and never below
        `bound_s`.
      bound_s: what no kernel can beat: arithmetic over peak or compulsory bytes over
        the memory's or link's bandwidth, whichever is longer.
    """

    name: str
    parameters: tuple[Parameter, ...]
    time_s: Callable[[Sizes, Values, Chip], np.ndarray]
    bound_s: Callable[[Sizes, Chip], np.ndarray]
