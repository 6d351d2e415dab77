"""What a measurement is: sizes of an operator, and programs that run it.

A program is a chain: each execution needs the result of the one before, so that many of
them fill one launch and none can be left out or run beside another. Where a chain needs
kernels of its own (the slice after a gather) their bytes are in `Probe.local_bytes`.
Nothing is allocated before `Probe.ways` are called.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from lts.cost.operators.base import Operator

AXIS = "gpus"
BFLOAT16_BYTES = 2

_BLOCK = 65521  # prime: rows of a matrix that repeats it differ


@dataclass(frozen=True, kw_only=True)
class Chain:
    """A program of any number of dependent executions.

    Attributes:
      step: `step(carry, fixed)` is the next carry.
      carry, fixed: arrays, or tuples of them; a run consumes the carry.
      mesh: over which the carry is sharded along its only dim; None for one device.
    """

    step: Callable[[Any, Any], Any]
    carry: Any
    fixed: Any = ()
    mesh: Mesh | None = None


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One size of an operator.

    Attributes:
      sizes: of the operator model, without those of the link.
      amount: FLOP or bytes of one execution, by which its rate is told.
      ways: implementations by name; the quickest counts.
      local_bytes: read and written by kernels that a chain needs besides.
    """

    sizes: Mapping[str, float]
    amount: float
    ways: Mapping[str, Callable[[], Chain]]
    local_bytes: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Family:
    """An operator, its sizes to measure, and what they can tell.

    Attributes:
      key: of its fit.
      operator: model of one execution of the chain.
      free: parameters that are fitted again.
      unit: of the amounts, "FLOP" or "B".
      probes: sizes to measure.
      linked: the model also takes the numbers of a link.
    """

    key: str
    operator: Operator
    free: tuple[str, ...]
    unit: str
    probes: tuple[Probe, ...]
    linked: bool = False


@cache
def _block() -> np.ndarray:
    """Random numbers; not to be written to."""
    return np.random.default_rng(0).standard_normal(_BLOCK, np.float32)


def numbers(*shape: int, scale: float = 1.0, dtype: Any = jnp.bfloat16) -> jax.Array:
    """Random numbers on the first device, `[*shape]`: zeros would take less power."""
    values = (_block() * scale).astype(jnp.dtype(dtype))
    return jax.device_put(np.resize(values, shape), jax.local_devices()[0])
