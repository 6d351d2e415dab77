"""Reads `moe*.csv`: fused mixture of experts of one rank, as TensorRT-LLM runs it.

Columns: dtype, num_tokens, hidden, inter, topk, num_experts, tp, ep, distribution,
time_us. The tables do not say how many rows each expert had, but the routing that was
timed is known from the program that made them (`collector/helper.py` of NVIDIA's
aiconfigurator, Apache-2.0), always seen by the rank with the most rows:

- `balanced`: token `t` goes to `t, t + s, t + 2 s, ...`, with a stride `s` of experts /
  topk, rounded up; fewer tokens are spread evenly over `s`. Counted exactly here.
- `power_law_<a>`: popularities are drawn with a density of `x^-a`, unseeded: expected
  rows, active experts and spread over a number of draws stand for them here.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

from lts.calibrate.fit import Series, shape_numbers
from lts.calibrate.tables.reading import Row, column, groups, rows_of, seconds
from lts.cost.operators.moe import operator

_FILES = {"h100": "moe.csv", "h200": "moe_h200.csv", "a100": "moe_a100.csv"}
_FORM_OF = {"bf16": "bfloat16", "fp8": "fp8", "fp8_block": "fp8_block"}
_POWER_LAW = "power_law_"
_DRAWS = 32


def series(folder: Path) -> Iterator[tuple[str, Series]]:
    """Calibration name and points, per form of the products.

    Keys: `moe/bfloat16`, `moe/fp8`, `moe/fp8_block`. All rows of one layer split in one
    way are held out together.
    """
    for chip, name in _FILES.items():
        if (folder / name).exists():
            for (dtype,), rows in groups(rows_of(folder / name), "dtype").items():
                yield chip, _series(rows, _FORM_OF[dtype])


def _series(rows: list[Row], form: str) -> Series:
    names = "hidden", "inter", "topk", "num_experts", "tp", "ep"
    shape = {name: column(rows, name) for name in names}
    loads = np.array([_load(row) for row in rows])
    return Series(
        key=f"moe/{form}",
        operator=operator(form),
        sizes={
            "tokens": column(rows, "num_tokens"),
            "hidden": shape["hidden"],
            "inter": shape["inter"] / shape["tp"],
            "rows": loads[:, 0],
            "active": loads[:, 1],
            "spread": loads[:, 2],
        },
        time_s=seconds(rows),
        shapes=shape_numbers(*shape.values()),
    )


def _load(row: Row) -> tuple[float, float, float]:
    tokens, experts, topk, ranks = (
        int(row[name]) for name in ("num_tokens", "num_experts", "topk", "ep")
    )
    if row["distribution"] == "balanced":
        return balanced_load(tokens, experts, topk, ranks)
    exponent = float(row["distribution"].removeprefix(_POWER_LAW))
    return power_law_load(tokens, experts, topk, ranks, exponent)


@cache
def balanced_load(
    tokens: int, experts: int, topk: int, ranks: int
) -> tuple[float, float, float]:
    """Rows of the first rank, how many of its experts have one, and their spread."""
    stride = -(-experts // topk)
    first = np.arange(tokens) * max(stride / tokens, 1.0)
    chosen = first[:, None] + stride * np.arange(topk)
    chosen = np.floor(chosen + 1e-9).astype(int) % experts
    counts = np.bincount(chosen.ravel(), minlength=experts)[: experts // ranks]
    return float(counts.sum()), float((counts > 0).sum()), 0.0


@cache
def power_law_load(
    tokens: int, experts: int, topk: int, ranks: int, exponent: float
) -> tuple[float, float, float]:
    """Expected rows of the busiest rank, its experts with one, and their spread.

    Shares are rounded to rows and no expert gets a token twice; what this leaves over
    goes evenly to all ranks, to experts that have none where there are such.
    """
    pairs = tokens * topk
    low, high = (1.0, 0.8 * tokens) if pairs > experts else (0.01, 2.0)
    power = 1 - exponent
    uniform = np.random.default_rng(0).random((_DRAWS, experts))
    drawn = ((high**power - low**power) * uniform + low**power) ** (1 / power)
    even = np.round(drawn * pairs / drawn.sum(1, keepdims=True)).clip(max=tokens)
    left = (pairs - even.sum(1)) / ranks
    by_rank = even.reshape(_DRAWS, ranks, -1)
    busiest = by_rank[np.arange(_DRAWS), by_rank.sum(2).argmax(1)]
    local = experts // ranks
    rows = (busiest.sum(1) + left).clip(0.0, tokens * local)
    idle = (busiest == 0).sum(1) - np.maximum(left, 0.0)
    active = np.minimum(local - np.maximum(idle, 0.0), np.maximum(rows, 1.0))
    spread = busiest.std(1) / np.maximum(rows / local, 1e-9)
    return float(rows.mean()), float(active.mean()), float(spread.mean())
