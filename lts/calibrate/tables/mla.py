"""Latent attention of a folder of measured tables: `mla.csv` (H100).

Columns: phase, kv_dtype, batch, q_len, kv_len, n_heads_local, time_us. One layer on one
device, DeepSeek's sizes.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lts.calibrate.fit import Series, shape_numbers
from lts.calibrate.tables.attention import KV_DTYPES
from lts.cost.operators.mla import MLA_CONTEXT, MLA_GENERATION

_OPERATORS = {"context": MLA_CONTEXT, "generation": MLA_GENERATION}
_FILES = {"h100": "mla.csv", "h200": "mla_h200.csv", "a100": "mla_a100.csv"}


def series(folder: Path) -> Iterator[tuple[str, Series]]:
    """Calibration name and points, per phase and dtype of the cache.

    Keys: `mla_context/bfloat16`, `mla_generation/float8_e4m3fn`, ... Points are held
    out by the number of heads.
    """
    for chip, name in _FILES.items():
        path = Path(folder) / name
        if path.exists():
            with path.open(encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file))
            for phase, dtype in sorted({(r["phase"], r["kv_dtype"]) for r in rows}):
                own = [r for r in rows if (r["phase"], r["kv_dtype"]) == (phase, dtype)]
                yield chip, _series(own, phase, dtype)


def _series(rows: list[dict[str, str]], phase: str, dtype: str) -> Series:
    operator = _OPERATORS[phase]
    kv_dtype, kv_bytes = KV_DTYPES[dtype]

    def column(name: str) -> np.ndarray:
        return np.array([float(row[name]) for row in rows])

    sizes = {name: column(name) for name in ("batch", "kv_len")}
    if phase == "context":
        sizes["q_len"] = column("q_len")
    sizes["n_heads"] = column("n_heads_local")
    sizes["kv_bytes"] = np.full(len(rows), kv_bytes)
    return Series(
        key=f"{operator.name}/{kv_dtype}",
        operator=operator,
        sizes=sizes,
        time_s=column("time_us") * 1e-6,
        shapes=shape_numbers(sizes["n_heads"]),
    )
