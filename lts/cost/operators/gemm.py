"""Matrix products `y[m, n] = x[m, k] w[n, k]^T` on one chip, calibrated.

The kernel cuts the result into tiles and, where that fills the chip better, `k` into
splits; the chip works through the tiles in waves of `num_sms`. Time is

    launch + ((waves * tile)^p + memory^p)^(1/p) + quantisation of x (float8 only)

at the quickest of a few tile shapes and splits, with

    tile     the longest of arithmetic, loads of its operands and latency of the loop
             over k, plus writing it out
    waves    tiles over SMs, each rounded up by a ramp: the next whole number is reached
             a fraction of a tile (or wave) after the last
    memory   all bytes through the L2 cache, and those that it does not hold from HBM;
             weights stay there less well than activations

The arithmetic of long products slows down as the chip reaches its power limit. All
parts grow with every size and none jumps.

Source: tiles, waves and split k are those of cuBLAS and CUTLASS (NVIDIA, "Matrix
Multiplication Background User's Guide"); which tiles, the ramps, the p-norm and how
much L2 holds were chosen by fits on measured rows (`lts.calibrate.tables.gemm`).
"""

from dataclasses import dataclass

import numpy as np

from lts.cost.operators.base import Operator, Parameter, Sizes, Values
from lts.hardware import Chip

FUSED_FIXED_S = 5.0e-6
"""Most fixed time of a float8 product whose quantisation is part of the kernel before.

Source: chosen on published serving points, where this and half of the quantisation's
traffic bring the error of the time per token from 5.9% to 5.5%.
"""

_TILES = np.array(
    [
        (64, 16),
        (64, 32),
        (64, 64),
        (64, 128),
        (64, 256),
        (128, 32),
        (128, 64),
        (128, 128),
        (128, 256),
        (256, 32),
        (256, 64),
        (256, 128),
    ],
    float,
)
_SPLITS = (1.0, 2.0, 4.0, 8.0, 16.0)
_TILE_RAMP = 0.05  # of a tile: a size just above a whole number costs the next one
_SUM_BYTES = 4.0  # a partial sum of split k
_OUT_BYTES = 2.0
_QUANTISED_BYTES = 3.0  # per element of x: read in bfloat16, written in float8
_L2_SHARPNESS = 4


@dataclass(frozen=True, kw_only=True)
class Form:
    """A kind of product.

    Attributes:
      dtype: of the arithmetic, as in `Chip.peak`.
      operand_bytes: of one element of x and w.
      quantises: x is quantised from bfloat16 first, in a kernel of its own.
      splits: numbers of parts that k may be cut into.
    """

    dtype: str
    operand_bytes: float
    quantises: bool = False
    splits: tuple[float, ...] = _SPLITS


FORMS = {
    "bfloat16": Form(dtype="bfloat16", operand_bytes=2.0),
    "fp8": Form(dtype="float8_e4m3fn", operand_bytes=1.0, quantises=True),
    # scales per block of k leave no split of k (DeepGEMM)
    "fp8_block": Form(
        dtype="float8_e4m3fn", operand_bytes=1.0, quantises=True, splits=(1.0,)
    ),
}


def gemm_time_s(
    m: np.ndarray,
    n: np.ndarray,
    k: np.ndarray,
    *,
    form: str,
    values: Values,
    chip: Chip,
    fused_quantisation: bool = False,
) -> np.ndarray:
    """Seconds of one product; sizes broadcast against each other.

    Args:
      m, n, k: rows of x, columns of the result, length of the sums; need not be whole.
      form: a key of `FORMS`; its values are those of the fit `gemm/<form>`.
      values: of `parameters(form)`.
      chip: what it runs on.
      fused_quantisation: x arrives quantised by the kernel before, as engines do it:
        the fixed time is at most `FUSED_FIXED_S` and half of the quantisation's bytes
        are moved. No effect in bfloat16.
    """
    kind = FORMS[form]
    m, n, k = np.broadcast_arrays(*(np.asarray(size, float) for size in (m, n, k)))
    compute = _compute_s(m, n, k, kind, values, chip)
    weights = kind.operand_bytes * n * k
    moved = kind.operand_bytes * m * k + _OUT_BYTES * m * n
    memory = _memory_s(weights, "weights", values, chip)
    memory = memory + _memory_s(moved, "activations", values, chip)
    p = values["norm"]
    fixed = values["launch_s"]
    total = (compute**p + memory**p) ** (1 / p)
    if kind.quantises:
        quantised = _QUANTISED_BYTES * m * k
        if fused_quantisation:
            fixed = min(fixed, FUSED_FIXED_S)
            quantised = quantised / 2
        total = total + _memory_s(quantised, "quantisation", values, chip)
    return np.maximum(fixed + total, bound_s(m, n, k, form=form, chip=chip))


def bound_s(
    m: np.ndarray, n: np.ndarray, k: np.ndarray, *, form: str, chip: Chip
) -> np.ndarray:
    """Floor: arithmetic at the peak, or the bytes that L2 cannot hold at HBM's rate."""
    kind = FORMS[form]
    nbytes = kind.operand_bytes * (m * k + n * k) + _OUT_BYTES * m * n
    return np.maximum(
        2 * m * n * k / chip.peak(kind.dtype),
        np.maximum(nbytes - chip.l2_bytes, 0.0) / chip.hbm_bandwidth_bytes_per_s,
    )


def _ramp(x: np.ndarray, width: float) -> np.ndarray:
    """`ceil(x)` with slopes of `width` for steps; at least 1."""
    whole = np.floor(x)
    return np.maximum(whole + np.minimum((x - whole) / width, 1.0), 1.0)


def _compute_s(
    m: np.ndarray, n: np.ndarray, k: np.ndarray, kind: Form, values: Values, chip: Chip
) -> np.ndarray:
    """Waves of tiles, at the best of all tile shapes and splits of k."""
    m, n, k = m[..., None], n[..., None], k[..., None]
    rows, columns = _TILES.T
    area = rows * columns
    sm_flops_per_s = chip.peak(kind.dtype) * values["efficiency"] / chip.num_sms
    tiles = _ramp(m / rows, _TILE_RAMP) * _ramp(n / columns, _TILE_RAMP)
    # per element of k
    step_s = np.maximum(
        np.maximum(
            2 * area / sm_flops_per_s,
            (rows + columns) * kind.operand_bytes / values["sm_bytes_per_s"],
        ),
        values["step_s"],
    )
    out_s = area * values["out_s"]
    best = np.full(m.shape[:-1], np.inf)
    for split in kind.splits:
        waves = _ramp(tiles * (split / chip.num_sms), values["wave_ramp"])
        time = (waves * (step_s * (k / split) + out_s)).min(-1)
        if split > 1:
            summed = _SUM_BYTES * split * (m * n)[..., 0]
            rate = values["sum_bytes_per_s"] * chip.num_sms
            time = time + values["split_s"] + summed / rate
        best = np.minimum(best, time)
    flops = 2 * (m * n * k)[..., 0]
    long = flops / (flops + values["throttle_after_s"] * chip.peak(kind.dtype))
    return best * (1 + values["throttle"] * long)


def _memory_s(nbytes: np.ndarray, what: str, values: Values, chip: Chip) -> np.ndarray:
    """Bytes at the rate of L2, but those that it does not hold at that of HBM."""
    fill = (nbytes / (values[f"{what}_in_l2"] * chip.l2_bytes)) ** _L2_SHARPNESS
    missed = nbytes * fill / (1 + fill)
    name = "quantisation" if what == "quantisation" else "memory"
    cached_s = 1 / (values[f"{name}_l2_bytes_per_s"] * chip.num_sms)
    hbm_s = 1 / (values[f"{name}_hbm"] * chip.hbm_bandwidth_bytes_per_s)
    return nbytes * cached_s + missed * max(hbm_s - cached_s, 0.0)


_COMMON = (
    Parameter(name="launch_s", start=2.7e-6, low=1e-6, high=20e-6),
    Parameter(name="efficiency", start=0.85, low=0.4, high=1.0),
    Parameter(name="sm_bytes_per_s", start=1.2e11, low=2e10, high=1e12),
    Parameter(name="step_s", start=1e-9, low=1e-11, high=2e-8),
    Parameter(name="out_s", start=5e-11, low=1e-12, high=1e-9),
    Parameter(name="wave_ramp", start=0.9, low=0.1, high=1.0),
    Parameter(name="throttle", start=0.12, low=1e-3, high=1.0),
    Parameter(name="throttle_after_s", start=2e-3, low=1e-5, high=1.0),
    Parameter(name="weights_in_l2", start=0.115, low=0.02, high=1.0),
    Parameter(name="activations_in_l2", start=0.6, low=0.02, high=2.0),
    Parameter(name="memory_l2_bytes_per_s", start=4.7e10, low=5e9, high=3e11),
    Parameter(name="memory_hbm", start=0.9, low=0.4, high=1.0),
    Parameter(name="norm", start=2.7, low=1.0, high=12.0),
)
_SPLITTING = (
    Parameter(name="split_s", start=2.6e-6, low=1e-8, high=1e-5),
    Parameter(name="sum_bytes_per_s", start=1.5e10, low=2e9, high=2e11),
)
_QUANTISATION = (
    Parameter(name="quantisation_in_l2", start=0.55, low=0.02, high=2.0),
    Parameter(name="quantisation_l2_bytes_per_s", start=1.7e10, low=5e9, high=3e11),
    Parameter(name="quantisation_hbm", start=0.6, low=0.2, high=1.0),
)


def parameters(form: str) -> tuple[Parameter, ...]:
    """What is fitted for a form."""
    kind = FORMS[form]
    return (
        *_COMMON,
        *(_SPLITTING if len(kind.splits) > 1 else ()),
        *(_QUANTISATION if kind.quantises else ()),
    )


def _operator(form: str) -> Operator:
    def time_s(sizes: Sizes, values: Values, chip: Chip) -> np.ndarray:
        return gemm_time_s(
            sizes["m"], sizes["n"], sizes["k"], form=form, values=values, chip=chip
        )

    def floor_s(sizes: Sizes, chip: Chip) -> np.ndarray:
        return bound_s(sizes["m"], sizes["n"], sizes["k"], form=form, chip=chip)

    return Operator(
        name="gemm", parameters=parameters(form), time_s=time_s, bound_s=floor_s
    )


GEMMS = {form: _operator(form) for form in FORMS}
"""The operator of each form."""
