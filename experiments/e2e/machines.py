"""GPU names of rows to clusters; what has no preset is scaled from its sheet."""

from dataclasses import replace
from functools import cache

from lts.hardware import Chip, Cluster, Link

_TERA = 1e12
_GIGA = 1e9

_PCIE5 = Link(
    name="PCIe5x16",
    bandwidth_bytes_per_s=40e9,
    latency_s=15e-6,
    hop_latency_s=5e-6,
    source="64 GB/s each way by the standard, about 60% of it through the host",
)

_HOST = replace(
    _PCIE5,
    name="PCIe through host memory",
    bandwidth_bytes_per_s=20e9,
    source="without peer access every byte crosses the host twice",
)


def _chip(
    base: Chip,
    name: str,
    hbm_gb: float,
    bandwidth: float,
    bfloat16: float,
    float8: float | None,
    float4: float | None,
    sms: int,
    l2_mb: float,
) -> Chip:
    """A chip from its data sheet: GB, TB/s, dense TFLOP/s, SMs, MB."""
    peaks = {"bfloat16": bfloat16, "float16": bfloat16, "float32": bfloat16 / 8}
    if float8:
        peaks |= {"float8_e4m3fn": float8, "int8": float8}
    if float4:
        peaks["float4_e2m1fn"] = float4
    return replace(
        base,
        name=name,
        hbm_bytes=int(hbm_gb * _GIGA),
        hbm_bandwidth_bytes_per_s=bandwidth * _TERA,
        peak_flops_per_s=tuple((k, v * _TERA) for k, v in peaks.items()),
        num_sms=sms,
        l2_bytes=int(l2_mb * 2**20),
        source="data sheet; not measured",
    )


@cache
def _known() -> dict[str, Cluster]:
    h100, h200, a100 = (Cluster.preset(n) for n in ("h100", "h200", "a100"))
    base = h100.chip
    nvlink5 = replace(
        h100.intra, name="NVLink5", bandwidth_bytes_per_s=680e9, source="2x NVLink4"
    )
    half = replace(h100.intra, name="NVLink4 cut", bandwidth_bytes_per_s=160e9)
    pro = _chip(base, "RTX-PRO-6000", 96, 1.597, 500, 1000, 2000, 188, 128)
    cut = _chip(base, "RTX-6000D", 84, 1.4, 148, 296, 592, 156, 112)
    b200 = _chip(base, "B200", 180, 8.0, 2250, 4500, 9000, 148, 126)
    h20 = _chip(base, "H20", 96, 4.0, 148, 296, None, 78, 60)
    l40s = _chip(base, "L40S", 48, 0.864, 362, 733, None, 142, 96)
    small = replace(
        a100.chip,
        name="A100-40GB",
        hbm_bytes=int(40 * _GIGA),
        hbm_bandwidth_bytes_per_s=1.555 * _TERA,
    )
    return {
        "h100": h100,
        "h200": h200,
        "h800": replace(h100, name="h800", intra=half),
        "a100": a100,
        "a100-40gb": replace(a100, name="a100-40gb", chip=small),
        "a800": a100,
        "b200": replace(h100, name="b200", chip=b200, intra=nvlink5),
        "h20": replace(h100, name="h20", chip=h20),
        "l40s": replace(h100, name="l40s", chip=l40s, intra=_PCIE5),
        "rtx-pro-6000": replace(h100, name="rtx-pro-6000", chip=pro, intra=_PCIE5),
        "rtx-6000d": replace(h100, name="rtx-6000d", chip=cut, intra=_HOST),
    }


def cluster_of(gpu: str) -> Cluster:
    """One node of a GPU that rows name.

    Raises:
      ValueError: in one line, if its sheet is not known.
    """
    low = gpu.lower().replace(" ", "-")
    if low.startswith("a100") and "40gb" in low:
        return _known()["a100-40gb"]
    for name in sorted(_known(), key=len, reverse=True):
        if low.startswith((name, f"nvidia-{name}")):
            return _known()[name]
    raise ValueError(f"no data sheet of GPU {gpu!r}")
