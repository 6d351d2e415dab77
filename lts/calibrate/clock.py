"""Seconds of one execution of a chain, on the devices that are there."""

import math
import time
from collections.abc import Callable
from typing import Any, Protocol

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lts.calibrate.probes.base import AXIS, Chain, Family, Probe

_CHAIN_S = 10e-3
"""Time that a chain should take: dispatch and timer are then well below a percent."""
_MOST_STEPS = 512
_UNROLLED = 8
"""Executions per iteration of the loop on a GPU: XLA makes a CUDA graph of them, whose
launches overlap with work, as in a served model."""
_MOST_RUNS = 7


class Clock(Protocol):
    """Times a probe."""

    def __call__(
        self,
        family: Family,
        probe: Probe,
        way: str,
        *,
        estimate_s: float,
        limit_s: float,
    ) -> float:
        """Seconds of one execution.

        Args:
          way: which of `probe.ways`.
          estimate_s: about what it takes.
          limit_s: for all that is run.
        """
        ...


class Stopwatch:
    """A `Clock` by the wall."""

    def __init__(self) -> None:
        self._dispatch_s: dict[Mesh | None, float] = {}

    def __call__(
        self,
        family: Family,
        probe: Probe,
        way: str,
        *,
        estimate_s: float,
        limit_s: float,
    ) -> float:
        """Median over some runs, less the dispatch of an empty program.

        Raises:
          RuntimeError, ValueError, NotImplementedError: if the device cannot do it.
        """
        chain = probe.ways[way]()
        steps = chain_steps(estimate_s)
        spent_s = _median_s(chain, steps, limit_s)
        if chain.mesh not in self._dispatch_s:
            self._dispatch_s[chain.mesh] = _median_s(_empty(chain.mesh), 1, limit_s)
        # at least some of it was work
        work_s = max(spent_s - self._dispatch_s[chain.mesh], 0.1 * spent_s)
        return work_s / steps


def chain_steps(estimate_s: float) -> int:
    """Executions in a chain: a power of two, so that the unrolled ones divide it.

    >>> chain_steps(1e-6), chain_steps(1e-3), chain_steps(1.0)
    (512, 8, 1)
    """
    wanted = min(max(_CHAIN_S / estimate_s, 1.0), _MOST_STEPS)
    return 2 ** int(math.log2(wanted))


def program(chain: Chain, steps: int) -> Callable[[Any, Any], Any]:
    """A jitted function of carry and fixed arrays that runs a chain of `steps`.

    It consumes the carry: else a first step that writes in place would copy it.
    """
    unrolled = min(steps, _UNROLLED) if jax.default_backend() == "gpu" else 1

    def run(carry: Any, fixed: Any) -> Any:
        # the barrier keeps executions from being fused with each other
        def body(_: Any, held: Any) -> Any:
            return lax.optimization_barrier(chain.step(held, fixed))

        return lax.fori_loop(0, steps, body, carry, unroll=unrolled)

    if chain.mesh is not None:
        spec = PartitionSpec(AXIS)
        run = jax.shard_map(
            run, mesh=chain.mesh, in_specs=(spec, spec), out_specs=spec, check_vma=False
        )
    return jax.jit(run, donate_argnums=0)


def _median_s(chain: Chain, steps: int, limit_s: float) -> float:
    """Seconds of one run of `steps`, whose carry is lost."""
    run = program(chain, steps)
    carry = jax.block_until_ready(run(chain.carry, chain.fixed))  # compiles
    times = []
    while len(times) < _MOST_RUNS and sum(times) < limit_s:
        start_s = time.perf_counter()
        carry = jax.block_until_ready(run(carry, chain.fixed))
        times.append(time.perf_counter() - start_s)
    return float(np.median(times))


def _empty(mesh: Mesh | None) -> Chain:
    zeros = np.zeros(1 if mesh is None else mesh.size, np.float32)
    place = None if mesh is None else NamedSharding(mesh, PartitionSpec(AXIS))
    return Chain(step=lambda x, _: x, carry=jax.device_put(zeros, place), mesh=mesh)
