"""`lts calibrate`: known models come back from their own times, files load, errors."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.export
import numpy as np
import pytest

from lts.calibrate import machine
from lts.calibrate.machine import Calibrated, Row, calibrate, calibration_path, write
from lts.calibrate.measure import measure, series_of, sizes_of, start_of
from lts.calibrate.probes import families
from lts.calibrate.probes.attention import prefill_family
from lts.calibrate.probes.base import Family, Probe
from lts.calibrate.probes.products import copy_family, gemm_family
from lts.calibrate.refit import refit, scaled
from lts.calibration import load
from lts.hardware import Chip, Cluster, Link

TODAY = "2026-12-01"
HELDS = (load("h100"),)
H100 = Cluster.preset("h100")
FACTORS = {
    "launch_s": 1.5,
    "efficiency": 0.9,
    "memory_hbm": 0.88,
    "mm_efficiency": 0.9,
    "hbm": 0.9,
    "hbm_efficiency": 0.92,
    "latency": 1.6,
    "bandwidth": 0.8,
}
"""How the made-up chip differs from an H100."""


class ModelClock:
    """Takes the times of operator models, whose values are an H100's times `FACTORS`.

    Args:
      noise: of a normal error in the logarithm of every time.
    """

    def __init__(self, chip: Chip, link: Link, noise: float = 0.0) -> None:
        self.chip, self.link, self.noise = chip, link, noise
        self.rng = np.random.default_rng(0)
        self.calls = 0

    def values(self, family: Family) -> dict[str, float]:
        start, _ = start_of(family, HELDS)
        high = {p.name: p.high for p in family.operator.parameters}
        return {
            name: min(value * FACTORS.get(name, 1.0), high[name])
            for name, value in start.items()
        }

    def __call__(
        self, family: Family, probe: Probe, way: str, **limits: float
    ) -> float:
        self.calls += 1
        time_s = self.time_s(family, probe)
        if probe.local_bytes:
            rows = probe.local_bytes / (4 * 4096)
            copy = replace(probe, sizes={"rows": rows, "width": 4096})
            time_s += self.time_s(copy_family(quick=True), copy)
        return time_s * float(np.exp(self.noise * self.rng.standard_normal()))

    def time_s(self, family: Family, probe: Probe) -> float:
        sizes = sizes_of(family, [probe], self.link)
        found = family.operator.time_s(sizes, self.values(family), self.chip)
        return float(found[0])


def devices(kind: str, count: int = 8, **facts: object) -> list[SimpleNamespace]:
    """GPUs that are not there."""
    stats = {"bytes_limit": 60 * 10**9}
    common = {
        "device_kind": kind,
        "process_index": 0,
        "platform": "gpu",
        "core_count": 148,
        "memory_stats": lambda: stats,
    }
    return [SimpleNamespace(**{**common, **facts}) for _ in range(count)]


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence], None]:
    """Lets JAX see other devices."""

    def see(found: Sequence) -> None:
        monkeypatch.setattr(jax, "devices", lambda: found)
        monkeypatch.setattr(jax, "local_devices", lambda: found)

    return see


@pytest.fixture(scope="module")
def h100s() -> Calibrated:
    """A quick calibration of 8 made-up H100s."""
    found = devices("NVIDIA H100 80GB HBM3")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "devices", lambda: found)
        patch.setattr(jax, "local_devices", lambda: found)
        clock = ModelClock(H100.chip, H100.intra)
        return calibrate(name="mine", today=TODAY, quick=True, clock=clock)


def test_values_come_back_from_their_own_times(h100s: Calibrated) -> None:
    clock = ModelClock(H100.chip, H100.intra)
    one_by_one = {f.key: f for f in families(range(8), quick=True, fp8=True)}
    assert {row.key for row in h100s.rows} == set(one_by_one)
    for row in h100s.rows:
        truth = clock.values(one_by_one[row.key])
        assert row.fit is not None and row.fit.date == TODAY
        for name in one_by_one[row.key].free:
            if name in FACTORS:
                assert row.fit.values[name] == pytest.approx(truth[name], rel=0.06), (
                    row.key,
                    name,
                )
        assert row.fit.median_error < 0.05 < row.reference_error, row.key
        for point in row.points:
            assert point["predicted_s"] == pytest.approx(point["time_s"], rel=0.06)


def test_a_known_chip_keeps_its_specification_and_its_other_fits(
    h100s: Calibrated,
) -> None:
    chip = h100s.cluster.chip
    assert (chip.name, chip.peak_flops_per_s) == (
        H100.chip.name,
        H100.chip.peak_flops_per_s,
    )
    assert chip.hbm_bandwidth_bytes_per_s == H100.chip.hbm_bandwidth_bytes_per_s
    assert h100s.cluster.intra == H100.intra
    assert h100s.calibration.chip == chip.name
    assert (h100s.cluster.nodes, h100s.cluster.gpus_per_node) == (1, 8)
    fits, shipped = h100s.calibration.fits, load("h100").fits
    assert set(shipped) <= set(fits)
    assert fits["gemm/fp8_block"] == shipped["gemm/fp8_block"]
    # launches are 1.5 times as long, copies a tenth slower
    assert chip.op_launch_s == pytest.approx(1.5 * 2.675e-6, rel=0.2)
    (copies,) = (row for row in h100s.rows if row.key == "elementwise/add")
    share = copied(copies) / chip.hbm_bandwidth_bytes_per_s
    assert chip.hbm_efficiency == pytest.approx(share, rel=1e-3)
    assert "Measured by lts calibrate on 2026-12-01" in chip.source
    assert h100s.notes == ()


def copied(copies: Row) -> float:
    """Bytes per second of the largest copy."""
    last = copies.points[-1]
    return 4 * last["sizes"]["rows"] * last["sizes"]["width"] / last["time_s"]


def test_noise_does_not_lead_a_quick_run_astray(on: Callable) -> None:
    on(devices("NVIDIA H100 80GB HBM3"))
    clock = ModelClock(H100.chip, H100.intra, noise=0.25)
    found = calibrate(name="mine", today=TODAY, quick=True, clock=clock)
    by_key = {f.key: f for f in families(range(8), quick=False, fp8=True)}
    for row in found.rows:
        family = by_key[row.key]
        sizes = sizes_of(family, family.probes, H100.intra)
        assert row.fit is not None
        ours = family.operator.time_s(sizes, row.fit.values, H100.chip)
        truth = family.operator.time_s(sizes, clock.values(family), H100.chip)
        assert np.abs(np.log(ours / truth)).max() < 0.4, row.key
        assert row.fit.median_error < 0.6


def test_an_unknown_chip_is_described_by_its_rates(on: Callable) -> None:
    on(devices("NVIDIA B999", 4))
    peaks = tuple((name, 2.2 * rate) for name, rate in H100.chip.peak_flops_per_s)
    truth = replace(
        H100.chip,
        peak_flops_per_s=peaks,
        hbm_bandwidth_bytes_per_s=8e12,
        num_sms=148,
    )
    link = replace(
        H100.intra, bandwidth_bytes_per_s=700e9, latency_s=6e-6, hop_latency_s=4e-6
    )
    clock = ModelClock(truth, link)
    found = calibrate(name="mine", today=TODAY, quick=True, clock=clock)
    chip = found.cluster.chip
    assert (chip.name, chip.num_sms, chip.hbm_bytes) == ("NVIDIA B999", 148, 80 * 10**9)
    assert found.calibration.chip == "NVIDIA B999"
    achieved = {row.key: row.best_rate for row in found.rows}
    assert chip.achieved_flops_per_s("bfloat16") == pytest.approx(
        achieved["gemm/bfloat16"], rel=1e-3
    )
    assert chip.peak("float8_e4m3fn") > 1.3 * chip.peak("bfloat16")
    (copies,) = (row for row in found.rows if row.key == "elementwise/add")
    assert chip.achieved_bytes_per_s == pytest.approx(copied(copies), rel=1e-3)
    assert "no specification known" in chip.source and "preset h100" in chip.source
    assert found.cluster.intra.name == "measured"
    (sums,) = (row for row in found.rows if row.key == "all_reduce/nccl/4")
    last = sums.points[-1]
    bus = 2 * (1 - 1 / 4) * last["sizes"]["nbytes"] / last["time_s"]
    assert found.cluster.intra.bandwidth_bytes_per_s == pytest.approx(bus, rel=1e-3)
    assert "Not measured" in found.cluster.inter.source
    # parameters that are not freed differ: times come back, values need not
    for row in found.rows:
        assert row.fit is not None and row.fit.median_error < 0.12, row.key


def test_the_files_load_and_price_a_search(
    h100s: Calibrated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    out = tmp_path / "folder" / "mine.yaml"
    written = write(h100s, out)
    assert calibration_path(out).name == "mine.calibration.yaml"
    assert "calibration: mine.calibration.yaml" in out.read_text()
    monkeypatch.chdir(tmp_path)
    cluster = Cluster.parse("folder/mine.yaml")
    assert cluster == written
    assert cluster.chip.calibration == str(calibration_path(out))
    assert load(cluster.chip.calibration) == h100s.calibration
    # a file that is written again is read again
    less = replace(h100s, calibration=replace(h100s.calibration, fits={}))
    write(less, out)
    assert load(cluster.chip.calibration).fits == {}


def test_a_probe_that_takes_too_long_is_left_out() -> None:
    clock = ModelClock(H100.chip, H100.intra)
    everything = families(range(8), quick=True, fp8=False)
    slow = list(measure(everything, clock, HELDS, H100, budget_s=0.02, slowdown=1.0))
    fast = list(measure(everything, clock, HELDS, H100, budget_s=60.0))
    assert [len(one.points) for one in fast] == [len(f.probes) for f in everything]
    assert sum(len(one.points) for one in slow) < sum(len(one.points) for one in fast)
    for few, many in zip(slow, fast, strict=True):
        assert few.points == many.points[: len(few.points)] and len(few.points) >= 3
    amounts = [point.time_s for point in fast[1].points]
    assert amounts[-1] > 100 * amounts[0]


def test_what_a_device_cannot_do_is_said_once_and_the_rest_is_measured() -> None:
    family = prefill_family(quick=True)
    ways = {"plain": family.probes[0].ways["plain"], "cudnn": lambda: None}
    family = replace(
        family, probes=tuple(replace(probe, ways=ways) for probe in family.probes)
    )
    model = ModelClock(H100.chip, H100.intra)

    def clock(family: Family, probe: Probe, way: str, **limits: float) -> float:
        if way == "cudnn":
            raise RuntimeError("cuDNN not found.\n  at frame 1")
        return model(family, probe, way, **limits)

    (one,) = measure([family], clock, HELDS, H100, budget_s=60.0)
    assert {point.way for point in one.points} == {"plain"}
    assert len(one.points) == len(family.probes)
    assert one.faults == ("prefill_attention/bfloat16, cudnn: cuDNN not found.",)


def test_slow_float8_products_are_left_out(on: Callable) -> None:
    on(devices("NVIDIA H100 80GB HBM3"))
    model = ModelClock(H100.chip, H100.intra)

    def clock(family: Family, probe: Probe, way: str, **limits: float) -> float:
        time_s = model(family, probe, way, **limits)
        return 3 * time_s if family.key == "gemm/fp8" else time_s

    found = calibrate(name="mine", today=TODAY, quick=True, clock=clock)
    assert "gemm/fp8" not in {row.key for row in found.rows}
    assert found.calibration.fits["gemm/fp8"] == load("h100").fits["gemm/fp8"]
    assert found.notes == (
        "float8 products are no faster than bfloat16 ones: left out",
    )


def test_without_information_the_values_stay_where_they_were() -> None:
    family = gemm_family("bfloat16", quick=True)
    start, origin = start_of(family, HELDS)
    assert origin == H100.chip.name
    clock = ModelClock(H100.chip, H100.intra)
    (one,) = measure([family], clock, HELDS, H100, budget_s=60.0)
    small = replace(one, points=one.points[:1])
    series = series_of(small, H100.intra, np.zeros_like)
    values = refit(series, H100.chip, start, family.free)
    assert values["efficiency"] == pytest.approx(start["efficiency"], rel=0.01)
    assert values["launch_s"] > 1.3 * start["launch_s"]
    assert set(values) == set(start)


def test_values_are_scaled_to_a_chip_s_specification() -> None:
    chip = H100.chip
    other = replace(
        chip,
        hbm_bandwidth_bytes_per_s=2 * chip.hbm_bandwidth_bytes_per_s,
        peak_flops_per_s=(("bfloat16", 4 * chip.peak("bfloat16")),),
        num_sms=chip.num_sms // 2,
        op_launch_s=3 * chip.op_launch_s,
    )
    values = {"launch_s": 1.0, "step_s": 1.0, "l2_bytes_per_s": 1.0, "hbm": 0.9}
    free = ("launch_s", "step_s", "l2_bytes_per_s", "hbm")
    assert scaled(values, free, other, chip) == {
        "launch_s": pytest.approx(3.0),
        "step_s": 1 / 8,
        "l2_bytes_per_s": 4.0,
        "hbm": 0.9,
    }
    assert scaled(values, (), other, chip) == values


def test_devices_that_cannot_be_measured_are_refused(
    on: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ModelClock(H100.chip, H100.intra)
    on([])
    with pytest.raises(ValueError, match="JAX finds no devices to measure"):
        calibrate(name="mine", today=TODAY, clock=clock)
    on([*devices("NVIDIA H200", 1), *devices("NVIDIA B999", 1)])
    with pytest.raises(ValueError, match=r"several kinds \(NVIDIA B999, NVIDIA H200\)"):
        calibrate(name="mine", today=TODAY, clock=clock)
    on(devices("NVIDIA H200", 2))
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="start it in one process"):
        calibrate(name="mine", today=TODAY, clock=clock)

    def fail() -> None:
        raise RuntimeError("Unable to initialize backend 'cuda'")

    monkeypatch.setattr(jax, "local_devices", fail)
    with pytest.raises(ValueError, match="no devices to measure: Unable to init"):
        calibrate(name="mine", today=TODAY, clock=clock)
    assert clock.calls == 0


def test_a_device_without_products_is_refused(on: Callable) -> None:
    on(devices("NVIDIA H200", 1))
    model = ModelClock(H100.chip, H100.intra)

    def clock(family: Family, probe: Probe, way: str, **limits: float) -> float:
        if family.key == "gemm/bfloat16":
            raise RuntimeError("no kernel")
        return model(family, probe, way, **limits)

    with pytest.raises(ValueError) as error:
        calibrate(name="mine", today=TODAY, quick=True, clock=clock)
    assert str(error.value) == (
        "cannot measure products or copies on NVIDIA H200: gemm/bfloat16, jnp: no "
        "kernel"
    )


def test_a_place_that_cannot_be_written_to_is_named(
    h100s: Calibrated, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="cannot write '.*none/mine.calibration.yaml'"):
        write(h100s, tmp_path / "none" / "mine.yaml")


def test_a_cluster_file_whose_calibration_is_amiss_says_so(
    h100s: Calibrated, tmp_path: Path
) -> None:
    out = tmp_path / "mine.yaml"
    write(h100s, out)
    beside = calibration_path(out)
    for text, reason in (
        ("chip: [", "is no calibration: ParserError"),
        ("chip: mine", "is no calibration: KeyError: 'fits'"),
        ("chip: mine\nfits: {gemm/x: {values: {a: b}}}", "is no calibration: KeyError"),
        ("3", "is no calibration: TypeError"),
    ):
        beside.write_text(text)
        with pytest.raises(ValueError, match=reason) as error:
            Cluster.load(out)
        assert str(error.value).startswith(f"cluster file '{out}': '{beside}'")
        assert "\n" not in str(error.value)
    beside.unlink()
    with pytest.raises(ValueError, match="cannot read calibration '.*': No such"):
        Cluster.load(out)


def test_a_single_device_has_the_preset_s_links(on: Callable) -> None:
    on(devices("NVIDIA B999", 1))
    clock = ModelClock(H100.chip, H100.intra)
    found = calibrate(name="mine", today=TODAY, quick=True, clock=clock)
    intra = found.cluster.intra
    assert intra.bandwidth_bytes_per_s == H100.intra.bandwidth_bytes_per_s
    assert intra.source == "Not measured; of preset h100."
    assert not any("nccl" in row.key for row in found.rows)
    assert machine.REFERENCE == "h100"
