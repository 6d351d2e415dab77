"""Collectives of a program, as the engine or XLA runs them."""

import numpy as np

from lts.cost.operators import collectives
from lts.cost.pricing import Pricing
from lts.mesh import Degrees


def collective_time_s(
    kind: str,
    nbytes: np.ndarray,
    inside: np.ndarray,
    across: np.ndarray,
    pricing: Pricing,
) -> np.ndarray:
    """Seconds of a collective that compute does not hide; 0 over a group of one.

    Args:
      kind: one of `lts.hops.KINDS`.
      nbytes: of the local operand, `[...]`.
      inside, across: GPUs on each level, `[...]`; 1 for none.
    """
    time = collectives.collective_time_s(
        kind,
        nbytes,
        inside,
        across,
        calibration=pricing.calibration,
        cluster=pricing.cluster,
        implementation=pricing.collectives if kind == "all_reduce" else "nccl",
    )
    return time * pricing.factor("all_reduce") * pricing.exposed


def hand_over_time_s(
    nbytes: np.ndarray, degrees: Degrees, pricing: Pricing
) -> np.ndarray:
    """Seconds of one pipeline stage's hand-over to the next; 0 without stages."""
    pair = 2 if degrees.stages > 1 else 1
    inside, across = (pair, 1) if degrees.stages_inside else (1, pair)
    return collective_time_s(
        "collective_permute", nbytes, np.array(inside), np.array(across), pricing
    )
