"""Collectives of a folder of measured tables.

`collectives.csv` (H100), `collectives_h200.csv`, `collectives_a100.csv`: op, impl,
dtype, n_gpus, n_nodes, link, bytes, time_us; one NVLink node. Of
`collectives_vidur.csv` (columns as `p2p.csv`) only the all-reduces across nodes are
read: inside a node its rows repeat with up to six times the time.
"""

import csv
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lts.calibrate.fit import Series, shape_numbers
from lts.cost.operators.collective_levels import (
    INTERNODE,
    inside_operator,
    inside_sizes,
)
from lts.cost.operators.p2p import latency_of
from lts.hardware import Cluster

_FILES = {
    "h100": "collectives.csv",
    "h200": "collectives_h200.csv",
    "a100": "collectives_a100.csv",
}
_MIB = 2.0**20
_HOPPER = {
    "custom_vllm": {2: 64 * _MIB, 4: 32 * _MIB, 8: 64 * _MIB},
    "custom_trtllm": {2: 8 * _MIB, 4: _MIB, 8: _MIB / 2},
}
_MOST_BYTES = {
    "h100": _HOPPER,
    "h200": _HOPPER,
    "a100": {
        "custom_vllm": dict.fromkeys((2, 4, 8), 4 * _MIB),
        "custom_trtllm": {2: _MIB, 4: _MIB, 8: _MIB / 2},
    },
}
"""Largest buffer that an engine's own all-reduce took, by group size; above it the rows
are those of NCCL (within some percent), and are read as such."""


def series(folder: Path) -> Iterator[tuple[str, Series]]:
    """Calibration name and points, per kind, implementation and group size.

    Keys: `all_reduce/nccl/8`; `all_reduce/nccl_int8/8` for operands of one byte, which
    reductions treat differently; `all_reduce/custom_vllm/8`; `all_reduce/internode`.
    Points are held out by size.
    """
    for name, file in _FILES.items():
        if (path := Path(folder) / file).exists():
            yield from _inside(name, _rows(path))
    if (path := Path(folder) / "collectives_vidur.csv").exists():
        yield from _internode([r for r in _rows(path) if r["n_nodes"] != "1"])


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def local_bytes(kind: str, nbytes: float, members: int) -> float:
    """Bytes of the local operand; the tables have the gathered output of a gather."""
    return nbytes / members if kind == "all_gather" else nbytes


def key_of(name: str, row: dict[str, str]) -> str:
    """Key of the fit that a row belongs to, on the chip of a calibration."""
    kind, members, took = row["op"], int(row["n_gpus"]), row["impl"]
    if took != "nccl":
        most = _MOST_BYTES[name][took][members]
        took = took if float(row["bytes"]) <= most else "nccl"
    elif row["dtype"] == "int8" and kind in ("all_reduce", "reduce_scatter"):
        took = "nccl_int8"
    return f"{kind}/{took}/{members}"


def _inside(name: str, rows: list[dict[str, str]]) -> Iterator[tuple[str, Series]]:
    link = Cluster.preset(name).intra
    by_key = defaultdict(list)
    for row in rows:
        by_key[key_of(name, row)].append(row)
    for key, own in sorted(by_key.items()):
        kind, took, members = key.split("/")
        group = int(members)
        nbytes = np.array([local_bytes(kind, float(r["bytes"]), group) for r in own])
        most = _MOST_BYTES[name][took][group] if took.startswith("custom") else None
        yield (
            name,
            Series(
                key=key,
                operator=inside_operator(kind, most),
                sizes=inside_sizes(nbytes, np.full(len(own), group), link),
                time_s=np.array([float(row["time_us"]) for row in own]) * 1e-6,
                shapes=shape_numbers(nbytes),
            ),
        )


def _internode(rows: list[dict[str, str]]) -> Iterator[tuple[str, Series]]:
    rows = [row for row in rows if row["device"] == "a100_dgx"]
    if not rows:
        return
    cluster = Cluster.preset("a100")
    across = np.array([float(row["n_nodes"]) for row in rows])
    inside = np.array([float(row["n_gpus"]) for row in rows]) / across
    nbytes = np.array([float(row["bytes"]) for row in rows])
    rate = cluster.inter.bandwidth_bytes_per_s
    yield (
        "a100",
        Series(
            key="all_reduce/internode",
            operator=INTERNODE,
            sizes={
                "nbytes": nbytes,
                "inside": inside,
                "across": across,
                "inside_s": np.where(
                    inside > 1, latency_of(cluster.intra, inside), 0.0
                ),
                "latency_s": latency_of(cluster.inter, across),
                "bandwidth_bytes_per_s": np.full(len(rows), rate),
            },
            time_s=np.array([float(row["time_us"]) for row in rows]) * 1e-6,
            shapes=shape_numbers(nbytes),
        ),
    )
