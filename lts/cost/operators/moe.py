"""Fused mixture of experts of one rank: gated feed-forward of the experts it holds.

Of the tokens of the whole group a rank works on `rows`, the (token, expert) pairs that
fall on its experts, of which `active` have a row at all: only their weights are read.

    time     launch + sort + tokens in and out + rows packed, activated and summed
             + active * expert + product(2 inter, hidden) + product(hidden, inter)
    product  (compute^4 + weights^4)^(1/4) + k * step
    compute  waves * (tile of 128 x 128 x k at a share of the peak, plus a fixed part)
    waves    tiles over SMs, partly rounded up by a ramp
    tiles    active * max(1, rows / (128 active) + tail + ragged * spread) * n / 128

`step` is the latency of the k-loop, which the few tiles of a small product wait for.
All parts grow with every size and none jumps: the last tile of an expert counts as a
fixed fraction and not by `ceil`, which would make more experts cheaper than fewer.

Source: grouped products in tiles and waves are those of CUTLASS; fractions and times
are fits on measured rows (`lts.calibrate.tables.moe`), where a smooth last tile was as
good as a whole one and a second tile shape gained 0.1% of error.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from lts.cost.operators.base import Operator, Parameter, Sizes, Values
from lts.hardware import Chip

_TILE = 128.0
_ACTIVATION_BYTES = 2.0  # tokens come and go in bfloat16, in every form
_RAMP = 1 / 8  # of a wave: one tile too many costs the next wave gradually
_NORM = 4
"""How sharply a product is bound by the slower of compute and weights.

Source: left free, fits find 2 to 5 without gaining accuracy, but a low one lets compute
stand for slow memory, which does not carry over to a chip with other memory.
"""
_SORT_TOKENS = 256.0, 320.0
"""Tokens between which sorting goes from one kernel to three.

Source: measured times step up between these sizes, the same at every shape.
"""
_EVEN = 0.05  # spread below which experts count as equally popular
_CERTAIN = 1 - 1e-12


@dataclass(frozen=True, kw_only=True)
class Form:
    """Arithmetic of the products, as in `Chip.peak`, and bytes per weight."""

    dtype: str
    weight_bytes: float


FORMS = {
    "bfloat16": Form(dtype="bfloat16", weight_bytes=2.0),
    "fp8": Form(dtype="float8_e4m3fn", weight_bytes=1.0),
    # one float32 scale per block of 128 x 128
    "fp8_block": Form(dtype="float8_e4m3fn", weight_bytes=1.0 + 4 / 128**2),
}

# form: launch, sort, token, row, expert, hbm, peak, step, wave, tile, tail, ragged
_STARTS = {
    "bfloat16": (16.2, 6.3, 1.65, 2.24, 0.07, 0.93, 0.96, 1.8, 0.31, 0.44, 0.19, 1.35),
    "fp8": (22.9, 5.4, 3.3, 1.85, 0.07, 0.9, 0.99, 0.8, 0.22, 0.92, 0.25, 0.96),
    "fp8_block": (19, 2.2, 2.0, 5.1, 0.13, 0.95, 0.75, 0.7, 0.12, 1.2, 0.3, 0.9),
}


def parameters(form: str) -> tuple[Parameter, ...]:
    """What is fitted for a form; starts are near the fit on an H100.

    `launch_s`, `sort_s`, `expert_s`, `step_s` (per element of k) and `tile_s` are
    times; `token` and `row` multiples of the time in which HBM moves a token's or a
    row's elements once; `hbm` and `peak` fractions; `tail` and `ragged` are tiles.
    """
    launch, sort, token, row, expert, hbm, peak, step, wave, tile, tail, ragged = (
        _STARTS[form]
    )
    ranges = (
        ("launch_s", launch * 1e-6, 1e-6, 1e-4),
        ("sort_s", sort * 1e-6, 1e-7, 3e-5),
        ("token", token, 0.01, 30.0),
        ("row", row, 0.1, 30.0),
        ("expert_s", expert * 1e-6, 1e-10, 2e-6),
        ("hbm", hbm, 0.2, 1.0),
        ("peak", peak, 0.2, 1.0),
        ("step_s", step * 1e-9, 1e-10, 3e-8),
        ("wave", wave, 1e-3, 1.0),
        ("tile_s", tile * 1e-6, 1e-9, 1e-5),
        ("tail", tail, 1e-3, 1.0),
        ("ragged", ragged, 1e-3, 2.0),
    )
    return tuple(Parameter(name=n, start=s, low=lo, high=hi) for n, s, lo, hi in ranges)


def moe_time_s(
    tokens: np.ndarray,
    hidden: np.ndarray,
    inter: np.ndarray,
    topk: np.ndarray,
    num_experts: np.ndarray,
    tp: np.ndarray,
    ep: np.ndarray,
    *,
    skew: np.ndarray,
    spread: np.ndarray,
    form: str,
    values: Values,
    chip: Chip,
) -> np.ndarray:
    """Seconds of the busiest rank; sizes broadcast against each other.

    Router, routing of the tokens to the rank and summing over ranks are not part of it.

    Args:
      tokens: of the whole group that shares the experts; need not be whole.
      hidden, inter: width of a token and of one expert before it is split.
      topk, num_experts: experts that a token goes to, and of all ranks.
      tp, ep: ranks that share each expert, and that the experts are split over.
      skew: rows of the busiest rank over the mean of all ranks; 1 if even, at most ep.
      spread: standard deviation over mean of the popularity of a rank's experts; 0 if
        they are equally likely.
      form: a key of `FORMS`; its values are those of the fit `moe/<form>`.
      values: of `parameters(form)`.
      chip: what it runs on.
    """
    rows, active = rank_load(tokens, topk, num_experts, ep, skew=skew, spread=spread)
    sizes = {
        "tokens": tokens,
        "hidden": hidden,
        "inter": np.asarray(inter, float) / tp,
        "rows": rows,
        "active": active,
        "spread": spread,
    }
    return operator(form).time_s(sizes, values, chip)


def rank_load(
    tokens: np.ndarray,
    topk: np.ndarray,
    num_experts: np.ndarray,
    ep: np.ndarray,
    *,
    skew: np.ndarray,
    spread: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Expected rows of the busiest rank, and how many of its experts have one.

    An expert with a share `q` of the tokens is idle with probability `(1 - q)^tokens`.
    Shares follow a beta distribution with `a + b = 1 / (mean * spread^2)`, whose spread
    is the one asked for as long as shares are small. Some rank has a whole row as soon
    as there is one, so the busiest has at least that.
    """
    tokens, topk, num_experts = (
        np.asarray(size, float) for size in (tokens, topk, num_experts)
    )
    ep, skew, spread = (np.asarray(size, float) for size in (ep, skew, spread))
    local = num_experts / ep
    share = np.minimum(np.minimum(skew, ep) * topk / num_experts, _CERTAIN)
    one = np.minimum(tokens * topk, 1.0)
    rows = np.maximum(local * tokens * share, one)
    total = 1 / (share * np.square(np.maximum(spread, _EVEN)))
    rest = total * (1 - share)
    log_idle = (
        gammaln(rest + tokens)
        - gammaln(rest)
        + gammaln(total)
        - gammaln(total + tokens)
    )
    log_idle = np.where(spread > _EVEN, log_idle, tokens * np.log1p(-share))
    active = local * (1 - np.exp(np.minimum(log_idle, 0.0)))
    return rows, np.maximum(active, np.minimum(one, local))


def operator(form: str) -> Operator:
    """The model of a form, of what one rank works on.

    Sizes are `tokens` of the group, `hidden`, `inter` of the rank, `rows`, `active`
    and `spread`, the standard deviation over the mean of the rows of its experts.
    """

    def time_s(sizes: Sizes, values: Values, chip: Chip) -> np.ndarray:
        return _time_s(_floats(sizes), values, chip, FORMS[form])

    def bound_s(sizes: Sizes, chip: Chip) -> np.ndarray:
        return _bound_s(_floats(sizes), chip, FORMS[form])

    return Operator(
        name="moe", parameters=parameters(form), time_s=time_s, bound_s=bound_s
    )


def _floats(sizes: Sizes) -> Sizes:
    return {name: np.asarray(size, float) for name, size in sizes.items()}


def _bound_s(sizes: Sizes, chip: Chip, form: Form) -> np.ndarray:
    weights = 3 * sizes["hidden"] * sizes["inter"]
    nbytes = form.weight_bytes * sizes["active"] * weights
    return np.maximum(
        2 * sizes["rows"] * weights / chip.peak(form.dtype),
        np.maximum(nbytes - chip.l2_bytes, 0.0) / chip.hbm_bandwidth_bytes_per_s,
    )


def _time_s(sizes: Sizes, values: Values, chip: Chip, form: Form) -> np.ndarray:
    tokens, hidden, inter = sizes["tokens"], sizes["hidden"], sizes["inter"]
    first, last = _SORT_TOKENS
    element_s = _ACTIVATION_BYTES / chip.hbm_bandwidth_bytes_per_s
    total = (
        values["launch_s"]
        + values["sort_s"] * np.clip((tokens - first) / (last - first), 0.0, 1.0)
        + values["token"] * tokens * hidden * element_s
        + values["row"] * sizes["rows"] * 3 * (hidden + inter) * element_s
        + values["expert_s"] * sizes["active"]
        + _product_s(2 * inter, hidden, sizes, values, chip, form)
        + _product_s(hidden, inter, sizes, values, chip, form)
    )
    return np.maximum(total, _bound_s(sizes, chip, form))


def _product_s(
    n: np.ndarray, k: np.ndarray, sizes: Sizes, values: Values, chip: Chip, form: Form
) -> np.ndarray:
    """Seconds of one grouped product, rows times `[k, n]` for every active expert."""
    active, rows = sizes["active"], sizes["rows"]
    weights = form.weight_bytes * active * n * k
    weights_s = weights / (values["hbm"] * chip.hbm_bandwidth_bytes_per_s)
    # of all experts: their part in whole tiles, and what the last of each is more
    last = values["tail"] + values["ragged"] * np.minimum(sizes["spread"], 1.0)
    down = np.maximum(active, rows / _TILE + active * last)
    tiles = down * np.maximum(n / _TILE, 1.0) / chip.num_sms
    waves = values["wave"] * _ramp(tiles) + (1 - values["wave"]) * tiles
    sm_flops_per_s = values["peak"] * chip.peak(form.dtype) / chip.num_sms
    tile_s = 2 * _TILE**2 * k / sm_flops_per_s + values["tile_s"]
    total = ((waves * tile_s) ** _NORM + weights_s**_NORM) ** (1 / _NORM)
    return total + values["step_s"] * k


def _ramp(x: np.ndarray) -> np.ndarray:
    """`ceil(x)` with slopes for steps; at least 1."""
    whole = np.floor(x)
    return np.maximum(whole + np.minimum((x - whole) / _RAMP, 1.0), 1.0)
