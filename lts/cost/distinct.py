"""Evaluates a model once per distinct set of local sizes.

A node has thousands of choices under dozens of degrees, but what one device works on
takes few values: ways are products of a few axis sizes.
"""

from collections.abc import Callable

import numpy as np

from lts.cost.sharding import Sharding
from lts.graph import Operand

Column = tuple[np.ndarray, int]
"""A size per device at the traced batch, `[degrees, choices]`, and its batch power."""


def evaluated(
    sharding: Sharding, columns: list[Column], model: Callable[..., np.ndarray]
) -> np.ndarray:
    """`model(*columns)` at every batch.

    Args:
      model: takes a size per column, `[distinct, batches]`, and returns the same shape.

    Returns:
      `[degrees, choices, batches]`.
    """
    shape = sharding.ways.shape[:2]
    rows, row = np.unique(sharding.batches, axis=0, return_inverse=True)
    number = np.broadcast_to(row.ravel()[:, None], shape)
    sizes = [np.broadcast_to(size, shape) for size, _ in columns]
    table = np.stack([number, *sizes], -1).reshape(-1, 1 + len(sizes))
    distinct, place = np.unique(table, axis=0, return_inverse=True)
    scale = rows[distinct[:, 0].astype(np.int64)] / sharding.traced_batch
    given = [
        distinct[:, 1 + i, None] * scale**power for i, (_, power) in enumerate(columns)
    ]
    return model(*given)[place.ravel()].reshape(*shape, -1)


def local_elements(operand: Operand, sharding: Sharding) -> np.ndarray:
    """Elements of one device's part at the traced batch; `[degrees, choices]`."""
    ways = np.ones(sharding.ways.shape[:2])
    for factor in operand.factors:
        if factor is not None:
            ways = ways * sharding.ways[:, :, factor]
    return operand.array.nbytes / operand.array.itemsize / ways
