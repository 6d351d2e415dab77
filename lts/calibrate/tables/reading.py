"""CSV files of measured timings as columns, in SI units."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

Row = dict[str, str]


def rows_of(path: Path) -> list[Row]:
    """Rows of a file, by name of column.

    Raises:
      ValueError: if it has none.
    """
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise ValueError(f"{path} has no rows; leave the file out instead.")
    return rows


def column(rows: Sequence[Row], name: str) -> np.ndarray:
    """Numbers of a column; float64 `[rows]`."""
    return np.array([float(row[name]) for row in rows])


def seconds(rows: Sequence[Row], name: str = "time_us") -> np.ndarray:
    """A column of microseconds in seconds; float64 `[rows]`."""
    return column(rows, name) * 1e-6


def groups(rows: Sequence[Row], *names: str) -> dict[tuple[str, ...], list[Row]]:
    """Rows that agree in some columns, by their values there, sorted."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), []).append(row)
    return dict(sorted(found.items()))
