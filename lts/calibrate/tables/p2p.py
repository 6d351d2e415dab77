"""Point-to-point transfers of a folder of measured tables: `p2p.csv`.

Columns: device, op, dtype, n_gpus, n_nodes, link, bytes, split, time_us_min, time_us.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lts.calibrate.fit import Series, shape_numbers
from lts.cost.operators.p2p import P2P, p2p_sizes
from lts.hardware import Cluster

_DEVICES = {"h100_dgx": "h100", "a100_dgx": "a100"}


def series(folder: Path) -> Iterator[tuple[str, Series]]:
    """Calibration name and points, per chip and link; medians of the repeats.

    Keys: `p2p/nvlink`, `p2p/internode`. Points are held out by size.
    """
    path = Path(folder) / "p2p.csv"
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["device"] in _DEVICES]
    for device, link in sorted({(row["device"], row["link"]) for row in rows}):
        name = _DEVICES[device]
        cluster = Cluster.preset(name)
        own = [row for row in rows if (row["device"], row["link"]) == (device, link)]
        nbytes = np.array([float(row["bytes"]) for row in own])
        yield (
            name,
            Series(
                key=f"p2p/{link}",
                operator=P2P,
                sizes=p2p_sizes(
                    nbytes, cluster.intra if link == "nvlink" else cluster.inter
                ),
                time_s=np.array([float(row["time_us"]) for row in own]) * 1e-6,
                shapes=shape_numbers(nbytes),
            ),
        )
