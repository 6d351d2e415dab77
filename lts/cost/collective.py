"""Collectives: how long each takes, and a change of layout by its hops.

Across nodes a collective is hierarchical, one part per link level. All functions are
vectorised over leading dims of host arrays.
"""

import numpy as np

from lts.hardware import Cluster, Link
from lts.hops import KINDS, coded_hops, every_state
from lts.mesh import Degrees


def collective_cost(
    kind: str, inside: np.ndarray, across: np.ndarray, cluster: Cluster
) -> tuple[np.ndarray, np.ndarray]:
    """Fixed seconds, and seconds per byte of the local operand, of a collective.

    Ring or pairwise algorithms on each link level: a gather of `n` shards receives
    `n - 1` of them, a reduce-scatter sends `(n - 1) / n` of its operand, an all-reduce
    is both, an all-to-all sends `(n - 1) / n`. Over two levels a gather goes across
    nodes first and then inside, a reduce-scatter the other way round, an all-reduce is
    a reduce-scatter inside, an all-reduce across, a gather inside, and an all-to-all
    sends each part over the link that it needs. A permute sends the whole operand.

    Args:
      kind: one of `lts.hops.KINDS`.
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
    return fixed, np.where(n * m > 1, per_byte, 0.0)


def _latency_s(members: np.ndarray, link: Link) -> np.ndarray:
    latency = link.latency_s + link.hop_latency_s * np.log2(members)
    return np.where(members > 1, latency, 0.0)


def hand_over_cost(degrees: Degrees, cluster: Cluster) -> tuple[float, float]:
    """Fixed seconds, and seconds per byte, of one stage's hand-over to the next.

    Zero without stages.
    """
    if degrees.stages == 1:
        return 0.0, 0.0
    link = cluster.intra if degrees.stages_inside else cluster.inter
    return link.latency_s + link.hop_latency_s, 1.0 / link.bandwidth_bytes_per_s


def reshard_prices(
    rank: int, sizes: np.ndarray, inside: np.ndarray, cluster: Cluster
) -> tuple[np.ndarray, np.ndarray]:
    """Fixed seconds, and seconds per byte of the global array, between all layouts.

    A slice reads and writes its result: compilers copy what a contraction reads. Were
    it free, a search would keep weights whole and slice them in every step.

    Args:
      rank: dims of the array.
      sizes: `[axes]`.
      inside: whether each axis lies inside a node; bool `[axes]`.

    Returns:
      Both `[(rank + 2)^axes, (rank + 1)^axes]`, layouts coded as in
      `lts.hops.coded_hops`.
    """
    axes, chip = len(sizes), cluster.chip
    chosen = every_state(2, axes).astype(bool)  # sets of axes, by their bits
    ways = np.where(chosen, sizes, 1).prod(-1)
    near = np.where(chosen & inside, sizes, 1).prod(-1)
    far = np.where(chosen & ~inside, sizes, 1).prod(-1)
    copy_s = 2 / (ways * chip.achieved_bytes_per_s)
    shape = (rank + 2) ** axes, (rank + 1) ** axes
    fixed, per_byte = np.zeros(shape[0] * shape[1]), np.zeros(shape[0] * shape[1])
    for hop in coded_hops(rank, tuple((sizes > 1).tolist())):
        if hop.kind == "slice":
            start, slope = np.full(len(ways), chip.op_launch_s), copy_s
            slope = slope[hop.held | hop.axes]
        else:
            start, slope = collective_cost(hop.kind, near, far, cluster)
            slope = slope[hop.axes] / ways[hop.held]
        fixed[hop.where] += start[hop.axes]
        per_byte[hop.where] += slope
    return fixed.reshape(shape), per_byte.reshape(shape)


def reshard_cost(
    source: np.ndarray,
    target: np.ndarray,
    rank: int,
    sizes: np.ndarray,
    inside: np.ndarray,
    cluster: Cluster,
) -> tuple[np.ndarray, np.ndarray]:
    """`reshard_prices` of some layouts.

    Args:
      source, target: states as `lts.hops.hops` has them, int `[..., axes]`.

    Returns:
      Both `[...]`.
    """
    place = np.arange(len(sizes))
    here = (source * (rank + 2) ** place).sum(-1)
    there = (target * (rank + 1) ** place).sum(-1)
    fixed, per_byte = reshard_prices(rank, sizes, inside, cluster)
    return fixed[here, there], per_byte[here, there]
