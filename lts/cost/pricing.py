"""What prices depend on beside the program and its layout."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from lts.calibration import Calibration, Fit, load
from lts.cost.profile import Profile
from lts.hardware import Chip, Cluster

REFERENCE = "h100"
"""Calibration that stands in for what another one has not."""


@dataclass(frozen=True, kw_only=True)
class Pricing:
    """How the work of one program is priced.

    Attributes:
      cluster: the chips and links.
      engine: what serves a model; None for a function that XLA runs as it is.
      skew: of a mixture of experts, tokens of the busiest device over the mean.
      one_byte: form of products whose weights have a byte per element: "fp8" (a scale
        per matrix or channel), "fp8_block", or "w8" (widened as they are loaded, as
        XLA does).
      context: positions that a decode step attends to at most; caches may be longer.
    """

    cluster: Cluster
    engine: Profile | None = None
    skew: float = 1.0
    one_byte: str = "w8"
    context: float = math.inf

    @property
    def chip(self) -> Chip:
        """The GPU."""
        return self.cluster.chip

    @property
    def engine_name(self) -> str | None:
        """Of the profile; None without an engine."""
        return None if self.engine is None else self.engine.name

    @property
    def calibration(self) -> Calibration:
        """Fitted models of the chip, or of its nearest relative."""
        return load(self.chip.calibration)

    def fit(self, key: str) -> Fit:
        """Of the chip, or of the reference for what its calibration has not."""
        held = self.calibration
        return held.fit(key) if key in held.fits else load(REFERENCE).fit(key)

    def values(self, key: str) -> Mapping[str, float]:
        """Fitted values of an operator."""
        return self.fit(key).values

    def is_measured(self, key: str) -> bool:
        """Whether the fit is on measurements of this very chip."""
        held = self.calibration
        return key in held.fits and held.chip == self.chip.name

    def factor(self, kind: str) -> float:
        """What the engine makes of an operator's time; `kind` as in `Profile`."""
        return 1.0 if self.engine is None else float(getattr(self.engine, kind))

    @property
    def exposed(self) -> float:
        """Share of the time of collectives that no compute hides."""
        return 1 - self.cluster.overlap_fraction

    @property
    def launch_s(self) -> float:
        """Of a kernel that does little; engines count launches by layers instead."""
        return self.chip.op_launch_s if self.engine is None else 0.0

    @property
    def collectives(self) -> str:
        """Who sums and gathers; engines have kernels of their own for short sums."""
        switched = "PCIe" not in self.cluster.intra.name
        return "best" if self.engine is not None and switched else "nccl"

    def chip_for(self, dtype: str, wanted: str) -> Chip:
        """The chip with the arithmetic of `wanted` where a model reads `dtype`.

        So that a form fitted in one dtype prices another that the chip has units for.
        """
        if dtype == wanted:
            return self.chip
        peaks = dict(self.chip.peak_flops_per_s)
        peaks[dtype] = peaks.get(wanted, peaks["float32"])
        return replace(self.chip, peak_flops_per_s=tuple(peaks.items()))
