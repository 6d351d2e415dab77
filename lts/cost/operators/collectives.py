"""Collectives, calibrated: over one NVLink group of any size, and across nodes.

*Inside a node* every kind has fitted values per measured group size
(`lts.cost.operators.collective_levels`). Time grows with the group, but for what was
measured otherwise: NVLink SHARP makes long all-reduces over 8 GPUs quicker than over 4.

*Across nodes* the parts are those of `lts.cost.collective`: a gather goes across first,
a reduce-scatter inside first, an all-reduce is both, an all-to-all sends each part over
the link it needs; every GPU has a port of its own. Chunks are pipelined: latencies add
up, and of the transfers only the longest counts. What crosses takes the time of a
point-to-point transfer of as many bytes, where nothing better was measured.

Sources: NCCL's algorithms (Hu et al. 2025, "Demystifying NCCL"); Thakur, Rabenseifner,
Gropp (2005) for the byte counts; constants from `lts.calibrate.tables.collectives`.
"""

import numpy as np

from lts.calibration import Calibration
from lts.cost.operators.collective_levels import (
    across_s,
    across_values,
    exists,
    inside_s,
    wire_bytes,
)
from lts.hardware import Cluster

IMPLEMENTATIONS = ("nccl", "nccl_int8", "custom_vllm", "custom_trtllm")
"""Who does it: NCCL; NCCL with operands of one byte; two engines' own all-reduces."""

_BEST_OF = ("nccl", "custom_vllm", "custom_trtllm")


def collective_time_s(
    kind: str,
    nbytes: np.ndarray,
    inside: np.ndarray,
    across: np.ndarray,
    *,
    calibration: Calibration,
    cluster: Cluster,
    implementation: str = "nccl",
) -> np.ndarray:
    """Seconds of a collective; never shorter with more bytes.

    Args:
      kind: one of `lts.hops.KINDS`.
      nbytes: of the local operand (of an all_gather the shard, of a reduce_scatter the
        whole input, of an all_to_all all that a GPU sends), `[...]`.
      inside, across: GPUs on each level, `[...]`; 1 for none. All three broadcast.
      calibration: fitted values; what it lacks is taken from those of H100.
      cluster: the links.
      implementation: one of `IMPLEMENTATIONS`, or "best" of NCCL and the custom ones.
        Engines have all-reduces of their own inside a node and up to some size, NCCL
        does the rest; "nccl_int8" makes a difference to reductions.

    Raises:
      ValueError: if the kind or the implementation is unknown.
    """
    if implementation not in (*IMPLEMENTATIONS, "best"):
        raise ValueError(
            f"unknown implementation {implementation!r} of collectives; known: "
            f"best, {', '.join(IMPLEMENTATIONS)}"
        )
    nbytes, n, m = np.broadcast_arrays(
        np.asarray(nbytes, float), np.asarray(inside, float), np.asarray(across, float)
    )
    chosen = _BEST_OF if implementation == "best" else (implementation,)
    found = [_time_s(kind, nbytes, n, m, calibration, cluster, one) for one in chosen]
    return np.minimum.reduce(found)


def _time_s(
    kind: str,
    nbytes: np.ndarray,
    n: np.ndarray,
    m: np.ndarray,
    calibration: Calibration,
    cluster: Cluster,
    implementation: str,
) -> np.ndarray:
    """`collective_time_s` of one implementation."""
    near_bytes = nbytes
    if kind == "all_gather":
        near_bytes = nbytes * m
    elif kind == "all_to_all":
        near_bytes = nbytes / m
    elif kind == "collective_permute":
        n = np.where(m > 1, 1.0, n)
    nodes = exists(m)

    def near_s(local: np.ndarray) -> np.ndarray:
        own_s = inside_s(kind, local, n, calibration, cluster.intra, implementation)
        if not implementation.startswith("custom"):
            return own_s
        # engines have them inside a node only
        nccl_s = inside_s(kind, local, n, calibration, cluster.intra, "nccl")
        return own_s + nodes * np.maximum(nccl_s - own_s, 0.0)

    far_bytes = nbytes / n if kind in ("reduce_scatter", "all_reduce") else nbytes
    far_wire = wire_bytes(kind, far_bytes, m)
    phases = 2.0 if kind == "all_reduce" else 1.0
    values = across_values(kind, calibration)

    def far_s(wire: np.ndarray) -> np.ndarray:
        return nodes * across_s(wire, n, m, phases, cluster.inter, values)

    none = np.zeros(nbytes.shape)
    near_start_s, far_start_s = near_s(none), far_s(none)
    near_rest_s = near_s(near_bytes) - near_start_s
    far_rest_s = far_s(far_wire) - far_start_s
    return near_start_s + far_start_s + np.maximum(near_rest_s, far_rest_s)
