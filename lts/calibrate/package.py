"""Look-up in the tables of the installed `aiconfigurator-core` (extra `silicon`).

Times of products and attention as that package measured them, each point interpolated
from the others: what a table gives where it was not measured. No fit reads it.

Source: aiconfigurator-core 0.12 (NVIDIA, Apache-2.0), files
`systems/data/<system>/<family>/<framework>/<version>/*_perf.parquet`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from lts.calibrate.fit import Series

_INSTALL = "pip install 'learning-to-shard[silicon]'"
_SYSTEMS = {"h100": "h100_sxm", "h200": "h200_sxm", "a100": "a100_sxm"}
_VERSIONS = {
    "gemm": {"a100": "trtllm/1.0.0", "": "trtllm/1.3.0rc20"},
    "attention": {"a100": "vllm/0.14.0", "": "vllm/0.24.0"},
}
_HEADS = {
    "n_heads": "num_heads",
    "n_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "window": "window_size",
}


@dataclass(frozen=True, kw_only=True)
class _Table:
    """Where an operator's points are.

    Attributes:
      family, file: of the path.
      columns: by name of size, in the order of the coordinates.
      axes: sizes along which it is interpolated; the others must agree.
      dtype: column, and its value by the last part of a fit's key.
    """

    family: str
    file: str
    columns: Mapping[str, str]
    axes: tuple[str, ...]
    dtype: str
    dtypes: Mapping[str, str]


_TABLES = {
    "gemm": _Table(
        family="gemm",
        file="gemm_perf",
        columns={"m": "m", "n": "n", "k": "k"},
        axes=("m", "n", "k"),
        dtype="gemm_dtype",
        dtypes={"bfloat16": "bfloat16", "fp8": "fp8", "fp8_block": "fp8_block"},
    ),
    "prefill_attention": _Table(
        family="attention",
        file="context_attention_perf",
        columns={"batch": "batch_size", "q_len": "isl", **_HEADS},
        axes=("batch", "q_len", "n_heads"),
        dtype="kv_cache_dtype",
        dtypes={"bfloat16": "bfloat16", "float8_e4m3fn": "fp8"},
    ),
    "decode_attention": _Table(
        family="attention",
        file="generation_attention_perf",
        columns={"batch": "batch_size", "kv_len": "step", **_HEADS},
        axes=("batch", "kv_len", "n_heads"),
        dtype="kv_cache_dtype",
        dtypes={"bfloat16": "bfloat16", "float8_e4m3fn": "fp8"},
    ),
}


def leave_one_out_s(chip: str, one: Series) -> np.ndarray | None:
    """Seconds of each point from its neighbours in the table; `[points]`.

    Linear in the logs between the two nearest other points along one axis, that of the
    closest pair; NaN where no axis has a point on either side. None if the package has
    no table that this module knows.

    Raises:
      ValueError: in one line, if the package or a reader of its files is not installed.
    """
    operator, _, dtype = one.key.partition("/")
    table = _TABLES.get(operator)
    if table is None or dtype not in table.dtypes:
        return None
    coordinates, times = _points(chip, operator, dtype)
    wanted = np.stack([one.sizes[size] for size in table.columns], axis=1)
    best = np.full(len(wanted), np.nan)
    gap = np.full(len(wanted), np.inf)
    for axis, size in enumerate(table.columns):
        if size in table.axes:
            found, width = _between(coordinates, times, wanted, axis)
            closer = width < gap
            best = np.where(closer, found, best)
            gap = np.where(closer, width, gap)
    return best


def _between(
    coordinates: np.ndarray, times: np.ndarray, wanted: np.ndarray, axis: int
) -> tuple[np.ndarray, np.ndarray]:
    """Interpolated seconds along an axis, and the log of the gap that they bridge."""
    lines: dict[bytes, list[int]] = {}
    for number, key in enumerate(_keys(coordinates, axis)):
        lines.setdefault(key, []).append(number)
    found = np.full(len(wanted), np.nan)
    width = np.full(len(wanted), np.inf)
    for number, key in enumerate(_keys(wanted, axis)):
        line = np.array(lines.get(key, []), int)
        x, at = coordinates[line, axis], wanted[number, axis]
        below, above = line[x < at], line[x > at]
        if len(below) and len(above):
            low = below[np.argmax(coordinates[below, axis])]
            high = above[np.argmin(coordinates[above, axis])]
            ends = np.log(coordinates[[low, high], axis])
            width[number] = ends[1] - ends[0]
            logs = np.log(times[[low, high]])
            found[number] = np.exp(np.interp(np.log(at), ends, logs))
    return found, width


def _keys(points: np.ndarray, axis: int) -> list[bytes]:
    """What points of one line along the axis agree in."""
    return [point.tobytes() for point in np.delete(points, axis, axis=1)]


@cache
def _points(chip: str, operator: str, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates `[rows, sizes]` and seconds `[rows]` of a table."""
    table = _TABLES[operator]
    version = _VERSIONS[table.family].get(chip, _VERSIONS[table.family][""])
    folder = _folder() / _SYSTEMS[chip] / table.family / version
    columns = _read(folder / f"{table.file}.parquet")
    own = np.array(columns[table.dtype]) == table.dtypes[dtype]
    rows = len(columns["latency"])
    sizes = [  # older tables have no windows: all tokens are attended
        np.array(columns.get(name, [0.0] * rows), float)
        for name in table.columns.values()
    ]
    if operator == "decode_attention":  # tokens attended: those before and the new one
        sizes[1] = sizes[1] + np.array(columns["isl"], float)
    times = np.array(columns["latency"], float) * 1e-3
    return np.stack(sizes, axis=1)[own], times[own]


def _folder() -> Path:
    spec = find_spec("aiconfigurator_core")
    if spec is None or spec.origin is None:
        raise ValueError(f"aiconfigurator-core is not installed: {_INSTALL}")
    return Path(spec.origin).parent / "systems" / "data"


def _read(path: Path) -> Mapping[str, list]:
    try:
        parquet = import_module("pyarrow.parquet")  # comes with the extra
    except ImportError as error:
        raise ValueError(f"pyarrow is not installed: {_INSTALL}") from error
    if not path.exists():
        raise ValueError(f"aiconfigurator-core has no {path.name} of 0.12: {_INSTALL}")
    return parquet.read_table(path).to_pydict()
