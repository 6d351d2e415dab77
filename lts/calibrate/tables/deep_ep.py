"""Reads `moe_a2a.csv`: DeepEP dispatch and combine on H100s, 1 to 8 nodes of 8 GPUs.

Columns: impl, source, device, phase, n_nodes, n_gpus, hidden, topk, num_experts,
tokens_per_rank, sms, notify_us, time_us; time_us is without notify_us. The normal rows
across nodes were routed to at most 4 nodes per token (`test_internode.py` of NVIDIA's
aiconfigurator, Apache-2.0, after DeepEP's). On 8 nodes they are several times slower
than on 4, from small sizes on (dispatch) or from 8192 tokens on (combine), where DeepEP
reports 51 and 58 GB/s (its docs/legacy.md): a defect of that network, so these rows
carry `congested`, which no other time is priced with.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lts.calibrate.fit import Series, shape_numbers
from lts.calibrate.tables.reading import Row, column, groups, rows_of, seconds
from lts.cost.operators.deep_ep import BEST_SMS, fit_key, operator
from lts.hardware import Cluster

_CHIP = "h100"  # rows across nodes, marked `H200*`, are the same in both tables
_FILE = "moe_a2a.csv"
_LOW_LATENCY = {"deepep_ll": True, "deepep_normal": False}
_NODE_LIMIT = 4.0
_CONGESTED_NODES = 4  # more than these


def series(folder: Path) -> Iterator[tuple[str, Series]]:
    """Calibration name and points, per phase, kernel and place.

    Keys are those of `fit_key`. Inside a node all rows of one layer are held out
    together; across nodes, where there are two layers, all of one number of tokens.
    """
    if not (folder / _FILE).exists():
        return
    by_key: dict[str, list[Row]] = {}
    found = groups(rows_of(folder / _FILE), "phase", "impl", "n_nodes")
    for (phase, impl, nodes), rows in found.items():
        if impl in _LOW_LATENCY:
            place = "inside" if nodes == "1" else "across"
            key = fit_key(phase, place, low_latency=_LOW_LATENCY[impl])
            by_key.setdefault(key, []).extend(rows)
    for key, rows in by_key.items():
        yield _CHIP, _series(key, rows)


def _series(key: str, rows: list[Row]) -> Series:
    cluster = Cluster.preset(_CHIP)
    across = key.endswith("across")
    link = cluster.inter if across else cluster.intra
    nodes, sms, tokens = (
        column(rows, name) for name in ("n_nodes", "sms", "tokens_per_rank")
    )
    layer = {name: column(rows, name) for name in ("hidden", "topk", "num_experts")}
    congested = (nodes > _CONGESTED_NODES) & ("normal" in key)
    return Series(
        key=key,
        operator=operator(key),
        sizes={
            "tokens": tokens,
            **layer,
            "gpus": column(rows, "n_gpus") / nodes,
            "nodes": nodes,
            "node_limit": np.full(nodes.shape, _NODE_LIMIT),
            "sms": np.where(sms > 0, sms, BEST_SMS),
            "congested": congested.astype(float),
            "bandwidth_bytes_per_s": np.full(nodes.shape, link.bandwidth_bytes_per_s),
        },
        time_s=seconds(rows),
        shapes=shape_numbers(*((tokens,) if across else layer.values())),
    )
