"""Probes of collectives over the devices of one process."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lts.calibrate.probes.base import AXIS, BFLOAT16_BYTES, Chain, Family, Probe
from lts.cost.operators.collective_levels import inside_operator, wire_bytes
from lts.cost.operators.p2p import P2P

_KEYS = {
    "all_reduce": "all_reduce/nccl/{}",
    "all_gather": "all_gather/nccl/{}",
    "reduce_scatter": "reduce_scatter/nccl/{}",
    "all_to_all": "all_to_all/nccl/{}",
    "collective_permute": "p2p/nvlink",
}
_SIZES = 1024 * 4 ** np.arange(10)  # bytes, to 256 MiB


def collective_families(devices: Sequence[Any], *, quick: bool) -> tuple[Family, ...]:
    """Collectives over groups of the devices: 2, 4, ... and all (`quick`: only all)."""
    most = len(devices)
    groups = {most} if quick else {most, *(2**i for i in range(1, most.bit_length()))}
    sizes = _SIZES[:: 2 if quick else 1]
    return tuple(
        _family(kind, devices[:group], sizes)
        for kind in _KEYS
        # a permutation is the same in any group
        for group in sorted({most} if kind == "collective_permute" else groups)
    )


def _family(kind: str, devices: Sequence[Any], sizes: np.ndarray) -> Family:
    permutes = kind == "collective_permute"
    group = len(devices)
    return Family(
        key=_KEYS[kind].format(group),
        operator=P2P if permutes else inside_operator(kind),
        free=("latency", "bandwidth"),
        unit="B",
        probes=tuple(_probe(kind, devices, int(size)) for size in sizes),
        linked=True,
    )


def _probe(kind: str, devices: Sequence[Any], size: int) -> Probe:
    """A collective of `size` bytes per device; of a gather, all of its output."""
    group, length = len(devices), size // BFLOAT16_BYTES
    if kind == "all_gather":
        length = -(-length // group)
    elif kind in ("reduce_scatter", "all_to_all"):
        length = -(-length // group) * group
    nbytes = float(length * BFLOAT16_BYTES)
    # of the slice and the repetition in `_chain`
    moved = {"all_gather": 2.0, "reduce_scatter": 1.0 + 1 / group}.get(kind, 0.0)
    return Probe(
        sizes={
            "nbytes": nbytes,
            "members": 2 if kind == "collective_permute" else group,
        },
        amount=float(wire_bytes(kind, np.array(nbytes), np.array(float(group)))),
        ways={"jax": partial(_chain, kind, length, devices)},
        local_bytes=moved * nbytes,
    )


def _chain(kind: str, length: int, devices: Sequence[Any]) -> Chain:
    """Of arrays of `length` elements on each device."""
    group = len(devices)
    ring = [(i, (i + 1) % group) for i in range(group)]
    steps: Mapping[str, Callable[[jax.Array], jax.Array]] = {
        "all_reduce": lambda x: lax.psum(x, AXIS),
        "all_gather": lambda x: lax.all_gather(x, AXIS, tiled=True)[:length],
        "reduce_scatter": lambda x: jnp.tile(
            lax.psum_scatter(x, AXIS, tiled=True), group
        ),
        "all_to_all": lambda x: lax.all_to_all(x, AXIS, 0, 0, tiled=True),
        "collective_permute": lambda x: lax.ppermute(x, AXIS, ring),
    }
    step = steps[kind]
    mesh = Mesh(np.array(devices), (AXIS,))
    # zeros, which sums leave as they are
    carry = jax.device_put(
        np.zeros(length * group, jnp.dtype(jnp.bfloat16)),
        NamedSharding(mesh, PartitionSpec(AXIS)),
    )
    return Chain(step=lambda x, _: step(x), carry=carry, mesh=mesh)
