"""Folders of measured timings as series of points, one adapter per kind of file.

Each adapter has `series(folder)`, which yields the name of a calibration and a `Series`
for every file that the folder has.
"""

from collections.abc import Iterator
from pathlib import Path

from lts.calibrate.fit import Series
from lts.calibrate.tables import (
    attention,
    collectives,
    deep_ep,
    elementwise,
    gemm,
    mla,
    moe,
    p2p,
)

_ADAPTERS = (gemm, elementwise, attention, mla, moe, collectives, deep_ep, p2p)
_AIC = "aiconfigurator-core 0.12.0 (NVIDIA, Apache-2.0), subsampled"
_VIDUR = "microsoft/vidur 7d47513 (MIT), data/profiling"


def series(folder: Path) -> Iterator[tuple[str, Series]]:
    """Calibration name and points of everything that a folder holds.

    Raises:
      ValueError: if it holds nothing that is known.
    """
    found = False
    for adapter in _ADAPTERS:
        for name, one in adapter.series(folder):
            found = True
            yield name, one
    if not found:
        raise ValueError(
            f"no measured tables in '{folder}'; expected gemm.csv, moe.csv, "
            "collectives.csv, ... as adapters in lts/calibrate/tables describe them."
        )


def source_of(key: str) -> str:
    """Where the rows behind a fit come from."""
    vidur = key.startswith(("elementwise/", "p2p/")) or key.endswith("/internode")
    return _VIDUR if vidur else _AIC
