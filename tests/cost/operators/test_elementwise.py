"""Kernels that stream rows: limits in closed form, properties anywhere."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lts.calibration import load
from lts.cost.operators.elementwise import KINDS, bound_s, elementwise_time_s
from lts.hardware import Cluster

CASES = [(chip, kind) for chip in ("h100", "a100") for kind in KINDS]


def priced(chip, kind, rows, width):
    values = load(chip).fit(KINDS[kind].fit).values
    preset = Cluster.preset(chip).chip
    return elementwise_time_s(rows, width, kind=kind, values=values, chip=preset)


sizes = st.floats(0, 6).map(lambda power: 10**power)


@pytest.mark.parametrize(("chip", "kind"), CASES)
@settings(max_examples=40, deadline=None)
@given(rows=sizes, width=sizes, more=st.floats(1.0, 4.0))
def test_times_are_above_the_bound_monotone_and_without_jumps(
    chip, kind, rows, width, more
):
    one = float(priced(chip, kind, rows, width))
    preset = Cluster.preset(chip).chip
    assert np.isfinite(one)
    assert one >= bound_s(rows, width, kind=kind, chip=preset)
    assert priced(chip, kind, rows * more, width) >= one * (1 - 1e-9)
    assert priced(chip, kind, rows, width * more) >= one * (1 - 1e-9)
    # bytes that leave L2 grow with at most the fifth power of a size
    assert priced(chip, kind, rows * 1.01, width) <= one * 1.06
    assert priced(chip, kind, rows, width * 1.01) <= one * 1.06


@pytest.mark.parametrize(("chip", "kind"), CASES)
def test_one_short_row_costs_the_launch_and_many_their_bytes(chip, kind):
    values = load(chip).fit(KINDS[kind].fit).values
    short = priced(chip, kind, 1, 16)
    assert short == pytest.approx(values["launch_s"], rel=0.02)
    preset, rows, width = Cluster.preset(chip).chip, 1e6, 8192.0
    nbytes = KINDS[kind].element_bytes * rows * width
    streamed = nbytes / (values["hbm"] * preset.hbm_bandwidth_bytes_per_s)
    assert priced(chip, kind, rows, width) >= streamed


def test_a_wide_row_is_slow_by_itself():
    values = load("h100").fit("elementwise/silu_and_mul").values
    found = priced("h100", "silu_and_mul", 1, 28672.0)
    walked = values["launch_s"] + 28672 * values["element_s"]
    assert found == pytest.approx(walked, rel=0.02)


@pytest.mark.parametrize(
    ("chip", "kind", "rows", "width", "time_s"),
    [
        # published bandwidths of streaming kernels, 85 to 95% of HBM's
        ("h100", "add", 4096.0, 8192.0, 6 * 4096 * 8192 / 3.1e12),
        ("a100", "add", 4096.0, 8192.0, 6 * 4096 * 8192 / 1.8e12),
        ("h100", "kv_write", 65536.0, 2048.0, 4 * 65536 * 2048 / 3.1e12),
        ("h100", "embedding", 65536.0, 4096.0, 4 * 65536 * 4096 / 3.1e12),
        ("h100", "sampling", 256.0, 128256.0, 10 * 256 * 128256 / 3.1e12),
    ],
)
def test_large_streams_run_at_the_rate_of_memory(chip, kind, rows, width, time_s):
    assert priced(chip, kind, rows, width) == pytest.approx(time_s, rel=0.15)


def test_kernels_that_were_not_measured_say_so():
    unmeasured = {kind for kind, own in KINDS.items() if not own.measured}
    assert unmeasured == {"embedding", "kv_write", "sampling"}
