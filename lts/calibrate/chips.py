"""The chip and link that measured rates speak of.

A GPU of the presets keeps its specification; what is measured are its efficiencies. Of
another device nothing is known, so that the specification itself comes from the best
rates, as if it reached them as well as the reference does.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from lts.calibrate.measure import Measured
from lts.cost.operators.p2p import latency_of
from lts.hardware import Chip, Cluster, Link

COPIES, PRODUCTS, FP8 = "elementwise/add", "gemm/bfloat16", "gemm/fp8"
FP8_DTYPE = "float8_e4m3fn"

_SMALL_FLOPS = 20e6
"""Products below it take the time of a launch, as in the presets' `op_launch_s`."""
_CLIENT_MEMORY_SHARE = 0.75
"""Of a GPU's memory that JAX takes at its start (JAX documentation, GPU memory
allocation), unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The devices of one kind that are measured.

    Attributes:
      devices: of this process.
      reference: cluster with their chip if `is_known`, else another's.
    """

    devices: tuple[Any, ...]
    reference: Cluster
    is_known: bool

    @property
    def kind(self) -> str:
        """Name of the devices by JAX."""
        return self.devices[0].device_kind

    @property
    def is_gpu(self) -> bool:
        """Whether they are GPUs."""
        return self.devices[0].platform in ("gpu", "cuda", "rocm")


def machine(unknown: str) -> Machine:
    """The devices that JAX sees.

    Args:
      unknown: preset that stands in for a chip without one.

    Raises:
      ValueError: if there are none, of several kinds, or of several processes.
    """
    try:
        devices = tuple(jax.local_devices())
    except RuntimeError as error:
        raise ValueError(f"JAX finds no devices to measure: {error}") from error
    if not devices:
        raise ValueError("JAX finds no devices to measure")
    if jax.process_count() > 1:
        raise ValueError("lts calibrate measures one node: start it in one process")
    kinds = sorted({device.device_kind for device in devices})
    if len(kinds) > 1:
        raise ValueError(
            f"JAX sees devices of several kinds ({', '.join(kinds)}): show it one of "
            "them, as with CUDA_VISIBLE_DEVICES"
        )
    try:
        reference, is_known = Cluster.detect(), True
    except ValueError:
        reference, is_known = Cluster.preset(unknown), False
    return Machine(devices=devices, reference=reference, is_known=is_known)


def chip_of(found: Machine, measured: Mapping[str, Measured], today: str) -> Chip:
    """The chip, with efficiencies and, where unknown, peaks as measured."""
    base, products = found.reference.chip, measured[PRODUCTS]
    preset = f"preset {found.reference.name}"
    largest = max(measured[COPIES].points, key=lambda point: point.probe.amount)
    copied = largest.probe.amount / largest.time_s
    small = [
        point.time_s / 2  # products come in pairs
        for point in products.points
        if point.probe.amount / 2 < _SMALL_FLOPS
    ]
    launch_s = float(np.median(small)) if small else base.op_launch_s
    told = (
        f"best of {len(products.points)} pairs of bfloat16 products, "
        f"{products.best_rate / 1e12:.4g} TFLOP/s; copy of "
        f"{largest.probe.amount / 2e6:.0f} MB, {copied / 1e9:.4g} GB/s, read and "
        "written; op_launch_s: median of products below 20 MFLOP. Measured by lts "
        f"calibrate on {today} with jax {jax.__version__}."
    )
    if found.is_known:
        return replace(
            base,
            matmul_efficiency=_rounded(
                min(products.best_rate / base.peak("bfloat16"), 1.0)
            ),
            hbm_efficiency=_rounded(min(copied / base.hbm_bandwidth_bytes_per_s, 1.0)),
            op_launch_s=_rounded(launch_s),
            source=f"{found.kind}: specification of {preset}; {told}",
        )
    peak = products.best_rate / base.matmul_efficiency
    ratio = base.peak("float32") / base.peak("bfloat16")
    peaks = {"bfloat16": peak, "float16": peak, "float32": peak * ratio}
    if FP8 in measured:
        peaks[FP8_DTYPE] = measured[FP8].best_rate / base.matmul_efficiency
    hbm_bytes, memory = _memory(found)
    return replace(
        base,
        name=found.kind,
        hbm_bytes=hbm_bytes,
        hbm_bandwidth_bytes_per_s=_rounded(copied / base.hbm_efficiency),
        peak_flops_per_s=tuple((name, _rounded(rate)) for name, rate in peaks.items()),
        op_launch_s=_rounded(launch_s),
        num_sms=int(getattr(found.devices[0], "core_count", 0) or base.num_sms),
        source=(
            f"{found.kind}, no specification known: {told} Peaks are the best products "
            "over matmul_efficiency, the bandwidth is that of the copy over "
            f"hbm_efficiency, and both efficiencies are of {preset}; so are l2_bytes "
            f"and the ratio of float32 to bfloat16. hbm_bytes: {memory}."
        ),
    )


def link_of(found: Machine, measured: Mapping[str, Measured], today: str) -> Link:
    """The link inside the node: a preset's own, as measured, or taken over."""
    base, group = found.reference.intra, len(found.devices)
    if found.is_known:
        return base
    sums = measured.get(f"all_reduce/nccl/{group}")
    if sums is None or not sums.points:
        source = f"Not measured; of preset {found.reference.name}."
        return replace(base, source=source)
    shortest = min(sums.points, key=lambda point: point.probe.amount)
    slower = shortest.time_s / float(latency_of(base, np.array(float(group))))
    return replace(
        base,
        name="measured",
        bandwidth_bytes_per_s=_rounded(sums.best_rate),
        latency_s=_rounded(base.latency_s * slower),
        hop_latency_s=_rounded(base.hop_latency_s * slower),
        source=(
            f"Best and shortest of all-reduces over {group} devices by lts calibrate "
            f"on {today}; how the latency grows with the group is as on preset "
            f"{found.reference.name}."
        ),
    )


def _memory(found: Machine) -> tuple[int, str]:
    """Bytes of one device, and where that is from."""
    stats = found.devices[0].memory_stats() or {}
    if limit := stats.get("bytes_limit"):
        given = os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION")
        share = float(given) if given else _CLIENT_MEMORY_SHARE
        return int(limit / share), f"what JAX may use over {share:g}"
    if found.is_gpu:
        name = found.reference.name
        return found.reference.chip.hbm_bytes, f"of preset {name}; JAX does not tell"
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return pages // len(found.devices), "memory of the host over its devices"


def _rounded(value: float) -> float:
    """To 4 significant digits."""
    return float(f"{value:.3e}")
