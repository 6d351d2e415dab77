"""Elementwise kernels of a folder of measured tables: `elementwise_vidur.csv`.

Columns: device, op, tokens, width, min_bytes, split, time_us. The timer counts whole
microseconds, so rows below 5 us are off by 10% and more by themselves.
"""

from collections.abc import Iterator
from pathlib import Path

from lts.calibrate.fit import Series, shape_numbers
from lts.calibrate.tables.reading import column, groups, rows_of, seconds
from lts.cost.operators.elementwise import ELEMENTWISE


def series(folder: Path) -> Iterator[tuple[str, Series]]:
    """Calibration name and points, per kernel: `elementwise/rms_norm`, ...

    All rows of one width are held out together.
    """
    path = folder / "elementwise_vidur.csv"
    if not path.exists():
        return
    for (chip, kind), rows in groups(rows_of(path), "device", "op").items():
        width = column(rows, "width")
        yield (
            chip,
            Series(
                key=f"elementwise/{kind}",
                operator=ELEMENTWISE[kind],
                sizes={"rows": column(rows, "tokens"), "width": width},
                time_s=seconds(rows),
                shapes=shape_numbers(width),
            ),
        )
