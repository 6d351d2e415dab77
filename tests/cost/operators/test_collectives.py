"""Collectives: measured rows, limits, order, floors, and groups between measured ones.

Values are fitted to the rows in `tests/calibrate/data`; those of transfers are made up.
"""

import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lts.calibrate import fit as fits
from lts.calibrate.tables import collectives as tables
from lts.calibration import FOLDER, Calibration, Fit, load
from lts.cost.operators import collectives
from lts.cost.operators.collective_levels import wire_bytes
from lts.cost.operators.p2p import PEAK, latency_of, message_s
from lts.hardware import Cluster
from lts.hops import KINDS

DATA = Path(__file__).parents[2] / "calibrate" / "data"
H100 = Cluster.preset("h100")
MIB = 2**20
NEAR = {
    "latency": 0.81,
    "rise": 0.59,
    "rise_bytes": 1.2e4,
    "later_rise": 0.28,
    "later_rise_bytes": 4.6e6,
    "bandwidth": 1.09,
}
FAR = NEAR | {"rise": 0.29, "rise_bytes": 1.2e5, "later_rise": 0.001, "bandwidth": 0.92}
SHARED = FAR | {"bandwidth": 0.3, "crowding": 1.0}


def as_fit(values):
    return Fit(
        values=values, median_error=0, p90_error=0, points=1, source="-", date="-"
    )


@functools.cache
def measured():
    return [found for _, found in tables.series(DATA)]


@functools.cache
def fitted(without: int = 0, shared: bool = False) -> Calibration:
    """Of the rows in the repository, but for one group size."""
    found = {
        series.key: as_fit(fits.fit(series, H100.chip))
        for series in measured()
        if not series.key.endswith(f"/{without}")
    }
    found |= {"p2p/nvlink": as_fit(NEAR), "p2p/internode": as_fit(FAR)}
    for kind in "all_reduce", "reduce_scatter":  # else those of H100 are loaded
        found.setdefault(f"{kind}/nccl_int8/2", as_fit(NEAR))
    if shared:
        found["all_reduce/internode"] = as_fit(SHARED)
    return Calibration(chip=H100.chip.name, fits=found)


SHIPPED = [
    load(path.stem)
    for path in sorted(FOLDER.glob("*.yaml"))
    if "all_reduce/nccl/8" in load(path.stem).fits
]


def time_s(kind, nbytes, inside=1, across=1, *, cluster=H100, of=None, by="nccl"):
    return collectives.collective_time_s(
        kind,
        nbytes,
        inside,
        across,
        calibration=fitted() if of is None else of,
        cluster=cluster,
        implementation=by,
    )


def errors_of(calibration, group=None):
    """Relative errors of measured rows, of one group or all, by implementation."""
    found = {"nccl": [], "custom": []}
    for series in measured():
        kind, took, members = series.key.split("/")
        if group in (None, int(members)):
            nbytes = series.sizes["nbytes"]
            predicted = time_s(kind, nbytes, int(members), of=calibration, by=took)
            found[took.partition("_")[0]].append(predicted / series.time_s - 1)
    return {took: np.abs(np.concatenate(parts)) for took, parts in found.items()}


def test_measured_rows_are_met():
    for found in errors_of(fitted()).values():
        assert np.median(found) < 0.02 and np.quantile(found, 0.9) < 0.06


def test_a_group_between_measured_ones_is_met():
    for found in errors_of(fitted(without=4), group=4).values():
        assert np.median(found) < 0.07 and np.quantile(found, 0.9) < 0.2


@pytest.mark.parametrize("kind", KINDS)
def test_one_gpu_is_free(kind):
    assert (time_s(kind, np.array([0.0, 1e9])) == 0).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", [2, 8])
def test_short_ones_take_the_latency_and_long_ones_the_bandwidth(kind, group):
    key = "p2p/nvlink" if kind == "collective_permute" else f"{kind}/nccl/{group}"
    values = fitted().fit(key).values
    members = 2 if kind == "collective_permute" else group
    short, long, longer = time_s(kind, np.array([0.0, 2.0**38, 2.0**39]), group)
    latency_s = values["latency"] * latency_of(H100.intra, np.array(members))
    assert short == pytest.approx(latency_s)
    sent = wire_bytes(kind, np.array(2.0**38), np.array(members))
    rate = values["bandwidth"] * H100.intra.bandwidth_bytes_per_s
    assert longer - long == pytest.approx(sent / rate, rel=1e-3)


def test_bytes_on_the_wire():
    sent = {kind: float(wire_bytes(kind, np.array(8.0), np.array(4))) for kind in KINDS}
    assert sent == {
        "all_gather": 24,
        "reduce_scatter": 6,
        "all_to_all": 6,
        "all_reduce": 12,
        "collective_permute": 8,
    }


def test_groups_lie_between_their_neighbours_and_grow_beyond():
    nbytes = 2.0 ** np.arange(8, 33, 2)
    for kind in KINDS:
        times = {n: time_s(kind, nbytes, n) for n in (1, 2, 3, 4, 6, 8, 12, 16, 72)}
        for lower, between, upper in (2, 3, 4), (4, 6, 8):
            ends = np.stack([times[lower], times[upper]])
            assert (ends.min(0) * 0.9999 <= times[between]).all()
            assert (times[between] <= ends.max(0) * 1.0001).all()
        for lower, upper in (1, 2), (8, 12), (12, 16), (16, 72):
            assert (times[lower] <= times[upper]).all()
    assert (time_s("all_gather", nbytes, 16) > 1.05 * time_s("all_gather", nbytes, 8))[
        -1
    ]


CASES = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(KINDS),
        "nbytes": st.floats(1, 1e13),
        "more": st.floats(1, 1.01),
        "inside": st.floats(1, 72),
        "across": st.sampled_from([1, 2, 3, 8, 100]),
        "by": st.sampled_from([*collectives.IMPLEMENTATIONS, "best"]),
        "name": st.sampled_from(Cluster.presets()),
        "of": st.sampled_from([None, *SHIPPED]),
    }
)


def floor_s(kind, nbytes, n, m, cluster):
    """What the links cannot beat, of what each GPU sends on each level."""
    near, far = nbytes, nbytes
    if kind == "all_gather":
        near = nbytes * m
    elif kind == "all_to_all":
        near = nbytes / m
    elif kind == "collective_permute":
        near = nbytes if m == 1 else 0.0
    else:
        far = nbytes / n
    near = wire_bytes(kind, near, n)
    if kind == "all_reduce":  # a switch that adds up needs each byte once
        near = np.minimum(near, nbytes)
    near_s = near / cluster.intra.bandwidth_bytes_per_s
    far_s = wire_bytes(kind, far, m) / cluster.inter.bandwidth_bytes_per_s
    return np.maximum(near_s * np.clip(np.log2(n), 0, 1), far_s) / PEAK


@settings(deadline=None)  # the first case fits the values
@given(CASES)
def test_order_steadiness_and_floor(case):
    kind, n, m = case["kind"], case["inside"], case["across"]
    cluster = Cluster.preset(case["name"])
    nbytes = case["nbytes"] * np.array([1, case["more"]])
    of = fitted(shared=True) if case["of"] is None else case["of"]
    found = time_s(kind, nbytes, n, m, cluster=cluster, of=of, by=case["by"])
    assert np.isfinite(found).all() and (found >= 0).all()
    assert found[0] <= found[1] * (1 + 1e-12)
    assert found[1] <= found[0] * 1.08  # a percent more bytes
    assert (found >= floor_s(kind, nbytes, n, m, cluster) * (1 - 1e-9)).all()


def test_more_nodes_take_longer():
    nbytes = 2.0 ** np.arange(8, 33, 2)
    for kind in KINDS:
        times = [time_s(kind, nbytes, 8, m) for m in (1, 2, 3, 4, 16)]
        for fewer, more in zip(times, times[1:], strict=False):
            assert (fewer <= more).all()


def test_across_nodes_every_gpu_has_a_port():
    rate = 0.92 * H100.inter.bandwidth_bytes_per_s
    long = np.array(2.0**38)
    # of the parts only the longest counts, and that is the one across
    gather = time_s("all_gather", long, 1, 4)
    assert gather == pytest.approx(3 * long / rate, rel=1e-3)
    exchange = time_s("all_to_all", long, 8, 4)
    assert exchange == pytest.approx(0.75 * long / rate, rel=1e-3)
    assert time_s("all_reduce", long, 2, 2) == pytest.approx(long / 2 / rate, rel=1e-3)
    assert time_s("collective_permute", long, 8, 2) == pytest.approx(
        float(message_s(long, latency_of(H100.inter, np.array(2)), 40e9, FAR))
    )


def test_latencies_of_the_levels_add_up_and_an_all_reduce_crosses_twice():
    crossing_s = 0.81 * latency_of(H100.inter, np.array(2.0))
    for kind, phases in ("all_reduce", 2), ("reduce_scatter", 1):
        both, near = time_s(kind, np.zeros(()), 8, 2), time_s(kind, np.zeros(()), 8)
        assert both - near == pytest.approx(phases * crossing_s)


def test_ports_that_are_measured_to_be_shared():
    long = np.array(2.0**38)
    shared = fitted(shared=True)
    for n in 1, 4:  # n times the ports, each at 1 / n of the rate
        found = time_s("all_reduce", long, n, 2, of=shared)
        assert found == pytest.approx(long / (0.3 * 40e9), rel=1e-3)
    permute = time_s("collective_permute", long, 4, 2, of=shared)
    assert permute == pytest.approx(long / (0.92 * 40e9), rel=1e-3)


@pytest.mark.parametrize(
    ("by", "group", "most"),
    [("custom_vllm", 8, 64 * MIB), ("custom_trtllm", 4, MIB)],
)
def test_engines_have_short_all_reduces_of_their_own(by, group, most):
    nbytes = np.array([64 * 1024, 2 * most, 1024 * MIB])
    own, nccl = (time_s("all_reduce", nbytes, group, by=each) for each in (by, "nccl"))
    assert own[0] < 0.6 * nccl[0]
    assert own[1:] == pytest.approx(nccl[1:])
    best = time_s("all_reduce", nbytes, group, by="best")
    assert (best <= np.minimum(own, nccl)).all()
    twice = time_s("all_reduce", nbytes, 16, by=by)  # none for larger groups
    assert twice == pytest.approx(time_s("all_reduce", nbytes, 16))
    far = time_s("all_reduce", nbytes, group, 2, by=by)  # nor across nodes
    assert far == pytest.approx(time_s("all_reduce", nbytes, group, 2))


def test_an_implementation_matters_to_its_own_kinds_only():
    nbytes = np.array([1e4, 1e9])
    for by in collectives.IMPLEMENTATIONS[1:]:
        gather = time_s("all_gather", nbytes, 8, by=by)
        assert (gather == time_s("all_gather", nbytes, 8)).all()
    # one byte per number: no sums in the switch
    int8, fp16 = (
        time_s("all_reduce", 1e9, 8, by="nccl_int8"),
        time_s("all_reduce", 1e9, 8),
    )
    assert 1.1 * fp16 < int8 < 1.5 * fp16


def test_another_link_scales():
    fast = replace(H100.intra, bandwidth_bytes_per_s=680e9)
    slow = replace(H100.intra, latency_s=7.2e-6, hop_latency_s=4.8e-6)
    twice, late = replace(H100, intra=fast), replace(H100, intra=slow)
    long, short = np.array(2.0**38), np.zeros(())
    for kind in KINDS:
        ratio = time_s(kind, long, 8) / time_s(kind, long, 8, cluster=twice)
        assert ratio == pytest.approx(2, rel=1e-3)
        ratio = time_s(kind, short, 8, cluster=late) / time_s(kind, short, 8)
        assert ratio == pytest.approx(2)


def test_unknown_names_are_named():
    with pytest.raises(ValueError, match="'broadcast'; known: reduce_scatter"):
        time_s("broadcast", 1.0, 2)
    with pytest.raises(ValueError, match="'mpi' of collectives; known: best, nccl"):
        time_s("all_reduce", 1.0, 2, by="mpi")
