"""The price of one reshard, through the tables that candidates are priced by."""

import numpy as np

from lts.cost.pricing import Pricing
from lts.cost.reshards import reshards
from lts.hardware import Cluster
from lts.mesh import Degrees, MeshAxis


def reshard_time_s(
    source: np.ndarray,
    target: np.ndarray,
    rank: int,
    sizes: np.ndarray,
    inside: np.ndarray,
    cluster: Cluster,
    nbytes: float = 2.0**24,
) -> np.ndarray:
    """Seconds between states `[..., axes]` of an array of `nbytes`; `[...]`."""
    axes = tuple(
        MeshAxis(name=f"a{i}", size=int(size), inside=bool(near))
        for i, (size, near) in enumerate(zip(sizes, inside, strict=True))
    )
    prices = reshards(
        (rank,), (Degrees(stages=1, axes=axes),), Pricing(cluster=cluster)
    )
    place = np.arange(len(axes))
    here = (source * (rank + 2) ** place).sum(-1)
    there = (target * (rank + 1) ** place).sum(-1)
    here, there = np.broadcast_arrays(here, there)
    found = [
        prices.of(rank, 0, int(s), int(t), nbytes)
        for s, t in zip(here.ravel(), there.ravel(), strict=True)
    ]
    return np.array(found).reshape(here.shape)
