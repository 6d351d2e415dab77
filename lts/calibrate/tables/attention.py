"""Attention of a folder of measured tables: `context_attention*.csv` and
`generation_attention*.csv` (H100; `_h200`, `_a100`).

Columns: attn_dtype, kv_dtype, batch, q_len, kv_len, n_heads, n_kv_heads, head_dim,
window, time_us. One layer on one device, causal; window 0: all tokens are attended.
"""

import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from lts.calibrate.fit import Series, shape_numbers
from lts.cost.operators.base import Operator
from lts.cost.operators.decode_attention import DECODE_ATTENTION
from lts.cost.operators.prefill_attention import PREFILL_ATTENTION

KV_DTYPES = {"bf16": ("bfloat16", 2.0), "fp8": ("float8_e4m3fn", 1.0)}
"""Name and bytes of an element, by what the tables call it."""

_ENDINGS = {"h100": "", "h200": "_h200", "a100": "_a100"}
_SHAPE = ("n_heads", "n_kv_heads", "head_dim", "window")
_NOT_SPLIT_UNGROUPED = ("a100",)  # FlashAttention-2
_NEEDS = {
    "head_dim": ("launch_per_128_dim_s", "task_power", "block_power"),
    "window": ("window_s", "window_split_s", "window_edge"),
}


def series(folder: Path) -> Iterator[tuple[str, Series]]:
    """Calibration name and points, per phase and dtype of the cache.

    Keys: `prefill_attention/bfloat16`, `decode_attention/float8_e4m3fn`, ...; and
    `decode_attention/bfloat16_mha` where ungrouped heads run without split KV. Points
    are held out by heads, KV heads, head size and window.
    """
    for chip, ending in _ENDINGS.items():
        for phase, operator in (
            ("context", PREFILL_ATTENTION),
            ("generation", DECODE_ATTENTION),
        ):
            path = Path(folder) / f"{phase}_attention{ending}.csv"
            if path.exists():
                with path.open(encoding="utf-8", newline="") as file:
                    rows = list(csv.DictReader(file))
                for one in _series(rows, operator, chip):
                    yield chip, one


def _series(rows: list[dict[str, str]], operator: Operator, chip: str) -> list[Series]:
    groups: dict[str, list[dict[str, str]]] = {}
    decode = operator is DECODE_ATTENTION
    for row in rows:
        key = f"{operator.name}/{KV_DTYPES[row['kv_dtype']][0]}"
        ungrouped = float(row["n_heads"]) == float(row["n_kv_heads"])
        if decode and ungrouped and chip in _NOT_SPLIT_UNGROUPED:
            key += "_mha"
        groups.setdefault(key, []).append(row)
    names = ("batch", *(() if decode else ("q_len",)), "kv_len", *_SHAPE)
    found = []
    for key, own in sorted(groups.items()):
        sizes = {name: np.array([float(row[name]) for row in own]) for name in names}
        sizes["kv_bytes"] = np.array([KV_DTYPES[row["kv_dtype"]][1] for row in own])
        found.append(
            Series(
                key=key,
                operator=_pinned(operator, sizes),
                sizes=sizes,
                time_s=np.array([float(row["time_us"]) for row in own]) * 1e-6,
                shapes=shape_numbers(*(sizes[name] for name in _SHAPE)),
            )
        )
    return found


def _pinned(operator: Operator, sizes: dict[str, np.ndarray]) -> Operator:
    """Parameters that these sizes say nothing about stay where they start."""
    pinned = {
        parameter
        for size, needing in _NEEDS.items()
        if np.ptp(sizes[size]) == 0
        for parameter in needing
    }
    return replace(
        operator,
        parameters=tuple(
            replace(p, low=p.start * 0.99, high=p.start * 1.01)
            if p.name in pinned
            else p
            for p in operator.parameters
        ),
    )
