"""Collectives: which ones a change of layout needs, and how long each takes.

A *state* says what a mesh axis does to an array: 0 nothing, `i + 1` shards dim `i`,
`rank + 1` leaves partial sums. Going from one state to another is, axis by axis:

| from | to | step |
|---|---|---|
| partial | dim | reduce_scatter |
| partial | nothing | all_reduce |
| nothing | dim | a local slice: one copy |
| dim | another dim | all_to_all |
| dim | nothing | all_gather |

Slices come first and gathers last, so that as little as possible travels. Axes that do
the same step are one collective; across nodes it is hierarchical, one part per link
level. All functions are vectorised over leading dims of host arrays.
"""

from dataclasses import dataclass

import numpy as np

from lts.hardware import Cluster, Link
from lts.mesh import Degrees

STEPS = ("reduce_scatter", "all_reduce", "all_to_all", "all_gather")


@dataclass(frozen=True, eq=False, kw_only=True)
class Step:
    """One kind of collective on the way from one layout to another.

    Attributes:
      kind: one of `STEPS`.
      axes: which mesh axes take part; bool `[..., axes]`.
      inside, across: GPUs that take part on each link level; `[...]`, 1 for none.
      fraction: local operand of the collective over the global array; `[...]`.
    """

    kind: str
    axes: np.ndarray
    inside: np.ndarray
    across: np.ndarray
    fraction: np.ndarray


def reshard_steps(
    source: np.ndarray,
    target: np.ndarray,
    rank: int,
    sizes: np.ndarray,
    inside: np.ndarray,
) -> list[Step]:
    """Collectives that turn one layout into another, in order.

    Args:
      source, target: states, int `[..., axes]`, broadcast against each other.
      rank: dims of the array; a source state of `rank + 1` is a partial sum.
      sizes: `[axes]`.
      inside: whether each axis lies inside a node; bool `[axes]`.
    """
    source, target = np.broadcast_arrays(source, target)
    partial = source == rank + 1
    on_dim = (source > 0) & ~partial
    moves = {
        "reduce_scatter": partial & (target > 0),
        "all_reduce": partial & (target == 0),
        "all_to_all": on_dim & (target > 0) & (source != target),
        "all_gather": on_dim & (target == 0),
    }
    sliced = (source == 0) & (target > 0)
    fraction = 1.0 / _ways(on_dim | sliced, sizes)
    steps = []
    for kind in STEPS:
        taking = moves[kind] & (sizes > 1)
        steps.append(
            Step(
                kind=kind,
                axes=taking,
                inside=_ways(taking & inside, sizes),
                across=_ways(taking & ~inside, sizes),
                fraction=fraction,
            )
        )
        ways = _ways(taking, sizes)
        if kind == "reduce_scatter":
            fraction = fraction / ways
        elif kind == "all_gather":
            fraction = fraction * ways
    return steps


def _ways(mask: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    return np.where(mask, sizes, 1).prod(-1)


def result_fraction(step: Step) -> np.ndarray:
    """Local result of a step over the global array, `[...]`."""
    ways = step.inside * step.across
    if step.kind == "all_gather":
        return step.fraction * ways
    return step.fraction / ways if step.kind == "reduce_scatter" else step.fraction


def collective_cost(
    kind: str, inside: np.ndarray, across: np.ndarray, cluster: Cluster
) -> tuple[np.ndarray, np.ndarray]:
    """Fixed seconds, and seconds per byte of the local operand, of a collective.

    Ring or pairwise algorithms on each link level: a gather of `n` shards receives
    `n - 1` of them, a reduce-scatter sends `(n - 1) / n` of its operand, an all-reduce
    is both, an all-to-all sends `(n - 1) / n`. Over two levels a gather goes across
    nodes first and then inside, a reduce-scatter the other way round, an all-reduce is
    a reduce-scatter inside, an all-reduce across, a gather inside, and an all-to-all
    sends each part over the link that it needs.

    Args:
      kind: one of `STEPS`.
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
    else:
        raise ValueError(f"unknown collective {kind!r}; known: {', '.join(STEPS)}")
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


def reshard_cost(
    source: np.ndarray,
    target: np.ndarray,
    rank: int,
    sizes: np.ndarray,
    inside: np.ndarray,
    cluster: Cluster,
) -> tuple[np.ndarray, np.ndarray]:
    """Fixed seconds, and seconds per byte of the global array, of a reshard.

    A slice reads and writes its result: compilers copy what a contraction reads. Were
    it free, a search would keep weights whole and slice them in every step.

    Arguments as `reshard_steps`; both results are `[...]`.
    """
    chip = cluster.chip
    bandwidth = chip.achieved_bytes_per_s
    sliced = ((source == 0) & (target > 0) & (sizes > 1)).any(-1)
    steps = reshard_steps(source, target, rank, sizes, inside)
    fixed = np.where(sliced, chip.op_launch_s, 0.0)
    per_byte = np.where(sliced, 2 * steps[0].fraction / bandwidth, 0.0)
    for step in steps:
        start, slope = collective_cost(step.kind, step.inside, step.across, cluster)
        fixed, per_byte = fixed + start, per_byte + slope * step.fraction
    return fixed, per_byte
