"""Collectives: how long each takes.

Across nodes a collective is hierarchical, one part per link level. All functions are
vectorised over leading dims of host arrays.
"""

import numpy as np

from lts.hardware import Cluster, Link
from lts.hops import KINDS
from lts.mesh import Degrees


def collective_time_s(
    kind: str,
    nbytes: np.ndarray,
    inside: np.ndarray,
    across: np.ndarray,
    cluster: Cluster,
) -> np.ndarray:
    """Seconds of a collective; 0 over a group of one.

    Ring or pairwise algorithms on each link level: a gather of `n` shards receives
    `n - 1` of them, a reduce-scatter sends `(n - 1) / n` of its operand, an all-reduce
    is both, an all-to-all sends `(n - 1) / n`. Over two levels a gather goes across
    nodes first and then inside, a reduce-scatter the other way round, an all-reduce is
    a reduce-scatter inside, an all-reduce across, a gather inside, and an all-to-all
    sends each part over the link that it needs. A permute sends the whole operand.

    Args:
      kind: one of `lts.hops.KINDS`.
      nbytes: of the local operand, `[...]`.
      inside, across: GPUs on each level, `[...]`; 1 for none.

    Source: Thakur, Rabenseifner, Gropp (2005) for the byte counts; hierarchical form as
    in NCCL 2.x trees over NVLink islands. Constants: `Cluster.intra`, `Cluster.inter`.
    """
    n, m = np.asarray(inside, float), np.asarray(across, float)
    share, share_across = (n - 1) / n, (m - 1) / m
    near, far = cluster.intra, cluster.inter
    if kind == "all_gather":
        near_bytes, far_bytes = m * (n - 1), m - 1
    elif kind == "reduce_scatter":
        near_bytes, far_bytes = share, share_across / n
    elif kind == "all_reduce":
        near_bytes, far_bytes = 2 * share, 2 * share_across / n
    elif kind == "all_to_all":
        near_bytes, far_bytes = share / m, share_across
    elif kind == "collective_permute":
        near_bytes, far_bytes = np.where(m > 1, 0.0, 1.0), np.where(m > 1, 1.0, 0.0)
    else:
        raise ValueError(f"unknown collective {kind!r}; known: {', '.join(KINDS)}")
    fixed = _latency_s(n, near) + _latency_s(m, far)
    per_byte = (
        near_bytes / near.bandwidth_bytes_per_s + far_bytes / far.bandwidth_bytes_per_s
    )
    return np.where(n * m > 1, fixed + per_byte * nbytes, 0.0)


def _latency_s(members: np.ndarray, link: Link) -> np.ndarray:
    latency = link.latency_s + link.hop_latency_s * np.log2(members)
    return np.where(members > 1, latency, 0.0)


def hand_over_time_s(
    nbytes: np.ndarray, degrees: Degrees, cluster: Cluster
) -> np.ndarray:
    """Seconds of one pipeline stage's hand-over to the next; 0 without stages."""
    level = (2, 1) if degrees.stages_inside else (1, 2)
    sizes = level if degrees.stages > 1 else (1, 1)
    return collective_time_s(
        "collective_permute", nbytes, *map(np.array, sizes), cluster
    )
