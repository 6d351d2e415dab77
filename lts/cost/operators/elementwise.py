"""Kernels that stream rows of numbers through one chip, calibrated.

RMSNorm, SiLU-and-multiply, RoPE and residual add were measured. Embedding look-up,
KV-cache write and sampling were not: they take the values of the measured kernel that
`KINDS` names, with bytes of their own. Time of `rows` rows of `width` elements is

    launch + ((waves * width * element)^p + memory^p)^(1/p)

    waves    rows over the rows that all SMs hold at once, at least 1: one thread block
             walks along a row, so few wide rows are slow
    memory   bytes at the rate of L2, but those that it does not hold at that of HBM

Source: forms chosen by fits on measured rows (`lts.calibrate.tables.elementwise`),
which are of vLLM's kernels of 2024 in float16.
"""

from dataclasses import dataclass

import numpy as np

from lts.cost.operators.base import Operator, Parameter, Sizes, Values
from lts.hardware import Chip

_L2_SHARPNESS = 4


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kernel.

    Attributes:
      element_bytes: read and written per element of a row, 2-byte dtypes.
      fit: key of the fit whose values it takes.
      measured: the fit is on this kernel itself; else its provenance is `scaled`.
    """

    element_bytes: float
    fit: str
    measured: bool = True


KINDS = {
    "add": Kind(element_bytes=6.0, fit="elementwise/add"),
    "rms_norm": Kind(element_bytes=4.0, fit="elementwise/rms_norm"),
    "rope": Kind(element_bytes=4.0, fit="elementwise/rope"),
    "silu_and_mul": Kind(element_bytes=6.0, fit="elementwise/silu_and_mul"),
    "embedding": Kind(element_bytes=4.0, fit="elementwise/add", measured=False),
    "kv_write": Kind(element_bytes=4.0, fit="elementwise/add", measured=False),
    # logits read, written as float32, and read once more for the largest
    "sampling": Kind(element_bytes=10.0, fit="elementwise/add", measured=False),
}


def elementwise_time_s(
    rows: np.ndarray, width: np.ndarray, *, kind: str, values: Values, chip: Chip
) -> np.ndarray:
    """Seconds of one kernel; sizes broadcast against each other.

    Args:
      rows: tokens; need not be whole.
      width: elements of a row: hidden size (add, rms_norm, embedding), columns of the
        product (silu_and_mul), query and key heads times head size (rope), numbers
        written per token (kv_write), vocabulary (sampling).
      kind: a key of `KINDS`; its `fit` names the values.
      values: of `PARAMETERS`.
      chip: what it runs on.
    """
    rows, width = np.broadcast_arrays(np.asarray(rows, float), np.asarray(width, float))
    nbytes = KINDS[kind].element_bytes * rows * width
    waves = np.maximum(rows / (values["rows_per_sm"] * chip.num_sms), 1.0)
    walk = waves * width * values["element_s"]
    cached_s = 1 / (values["l2_bytes_per_s"] * chip.num_sms)
    hbm_s = 1 / (values["hbm"] * chip.hbm_bandwidth_bytes_per_s)
    fill = (nbytes / (values["in_l2"] * chip.l2_bytes)) ** _L2_SHARPNESS
    missed = nbytes * fill / (1 + fill)
    memory = nbytes * cached_s + missed * max(hbm_s - cached_s, 0.0)
    p = values["norm"]
    time = values["launch_s"] + (walk**p + memory**p) ** (1 / p)
    return np.maximum(time, bound_s(rows, width, kind=kind, chip=chip))


def bound_s(
    rows: np.ndarray, width: np.ndarray, *, kind: str, chip: Chip
) -> np.ndarray:
    """Floor: the bytes that L2 cannot hold at HBM's rate."""
    nbytes = KINDS[kind].element_bytes * np.asarray(rows, float) * width
    return np.maximum(nbytes - chip.l2_bytes, 0.0) / chip.hbm_bandwidth_bytes_per_s


PARAMETERS = (
    Parameter(name="launch_s", start=1.5e-6, low=5e-7, high=1e-5),
    Parameter(name="element_s", start=3e-10, low=1e-12, high=1e-8),
    Parameter(name="rows_per_sm", start=2.0, low=0.5, high=16.0),
    Parameter(name="in_l2", start=0.5, low=0.02, high=2.0),
    Parameter(name="l2_bytes_per_s", start=3e10, low=5e9, high=2e11),
    Parameter(name="hbm", start=0.85, low=0.2, high=1.0),
    Parameter(name="norm", start=2.0, low=1.0, high=12.0),
)


def _operator(kind: str) -> Operator:
    def time_s(sizes: Sizes, values: Values, chip: Chip) -> np.ndarray:
        return elementwise_time_s(
            sizes["rows"], sizes["width"], kind=kind, values=values, chip=chip
        )

    def floor_s(sizes: Sizes, chip: Chip) -> np.ndarray:
        return bound_s(sizes["rows"], sizes["width"], kind=kind, chip=chip)

    return Operator(
        name="elementwise", parameters=PARAMETERS, time_s=time_s, bound_s=floor_s
    )


ELEMENTWISE = {kind: _operator(kind) for kind in KINDS}
"""The operator of each kind."""
