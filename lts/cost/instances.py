"""How many instances of prefill and of decode a cluster is divided into.

Two pools serve what the slower one does: `min(c_p * R_p, c_d * R_d)` requests/s, on
`c_p * g_p + c_d * g_d` GPUs. Sizes divide a node or are whole nodes, so whatever adds
up can be placed: whole nodes first, then one node at most has instances of both kinds.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_SLACK = 1e-9
"""Relative; instances that add less than this are left out."""


class Split(NamedTuple):
    """Which kinds of instances, how many of each, and requests/s of all together."""

    prefill: int
    decode: int
    prefill_instances: int
    decode_instances: int
    requests_per_s: float


def best_split(
    prefill_per_s: np.ndarray,
    decode_per_s: np.ndarray,
    prefill_gpus: Sequence[int],
    decode_gpus: Sequence[int],
    num_gpus: int,
) -> Split | None:
    """The split that serves most; of equal ones, one that needs fewest instances.

    Args:
      prefill_per_s: requests/s of one instance of each kind, beside each kind of decode
        instance; `[prefill kinds, decode kinds]`, 0 where it keeps no limit.
      decode_per_s: requests/s of one of `c + 1` instances of a kind,
        `[decode kinds, num_gpus]`; 0 likewise.
      prefill_gpus, decode_gpus: of an instance of each kind.
      num_gpus: of the cluster.

    Returns:
      None if nothing can be served.
    """
    best: Split | None = None
    for i, reading in enumerate(prefill_gpus):
        for j, writing in enumerate(decode_gpus):
            most = (num_gpus - reading) // writing
            if most < 1:
                continue
            decodes = np.arange(1, most + 1)
            prefills = (num_gpus - decodes * writing) // reading
            served = np.minimum(
                prefills * prefill_per_s[i, j], decodes * decode_per_s[j, :most]
            )
            place = int(np.argmax(served))
            value = float(served[place])
            if value <= (best.requests_per_s if best else 0.0) * (1 + _SLACK):
                continue
            needed = np.ceil(value * (1 - _SLACK) / prefill_per_s[i, j])
            best = Split(i, j, int(needed), place + 1, value)
    return best
