"""Latent attention: closed-form limits, measured rows, and what holds everywhere."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lts.calibrate.fit import errors
from lts.calibrate.tables.mla import series
from lts.calibration import FOLDER, load
from lts.cost.operators.mla import (
    MLA_CONTEXT,
    MLA_GENERATION,
    mla_context_time_s,
    mla_generation_time_s,
)
from lts.hardware import Cluster

DATA = Path(__file__).parents[2] / "calibrate" / "data"
CHIPS = [Cluster.preset(name).chip for name in Cluster.presets()]
H100 = Cluster.preset("h100").chip
OPERATORS = {one.name: one for one in (MLA_CONTEXT, MLA_GENERATION)}
START = {
    name: {p.name: p.start for p in one.parameters} for name, one in OPERATORS.items()
}


def shipped(name):
    """Values of one operator: the start of its fit, and every fit that is shipped."""
    found = [START[name]]
    for path in sorted(FOLDER.glob("*.yaml")):
        for key, fit in load(path.stem).fits.items():
            if key.partition("/")[0] == name:
                found.append(fit.values)
    return found


def context_s(batch, q_len, kv_len, heads, kv_bytes=2.0):
    return mla_context_time_s(
        *(batch, q_len, kv_len, heads, kv_bytes),
        values=START["mla_context"],
        chip=H100,
    )


def generation_s(batch, kv_len, heads, kv_bytes=2.0):
    return mla_generation_time_s(
        *(batch, kv_len, heads, kv_bytes), values=START["mla_generation"], chip=H100
    )


def test_long_prompts_run_at_the_fitted_arithmetic_rate():
    flops = 2 * (192 + 128) * 128 * 131072.0**2 / 2
    rate = START["mla_context"]["mm_efficiency"] * H100.peak("bfloat16")
    found = context_s(1.0, 131072.0, 131072.0, 128.0)
    assert found == pytest.approx(flops / rate, rel=0.03)


def test_a_chunk_attends_its_prefix():
    ends = np.arange(1, 9) * 4096.0
    chunks = context_s(1.0, np.full(8, 4096.0), ends, 128.0)
    whole = context_s(1.0, 32768.0, 32768.0, 128.0)
    assert whole < chunks.sum() < 1.15 * whole


def test_few_heads_read_the_latents_at_the_rate_of_memory():
    nbytes = 256 * 65536 * 576 * 2
    rate = START["mla_generation"]["hbm_efficiency"] * H100.hbm_bandwidth_bytes_per_s
    found = generation_s(256.0, 65536.0, 1.0)
    assert found == pytest.approx(nbytes / rate, rel=0.05)
    # the same latents serve all heads
    assert generation_s(256.0, 65536.0, 32.0) == pytest.approx(found, rel=0.05)


def test_many_heads_are_bound_by_arithmetic():
    flops = 2 * 64 * 4096 * 65536 * (576 + 512)
    assert generation_s(64.0, 65536.0, 4096.0) > flops / H100.peak("bfloat16")
    assert generation_s(64.0, 65536.0, 4096.0) == pytest.approx(
        2 * generation_s(64.0, 65536.0, 2048.0), rel=0.1
    )


def test_one_short_sequence_takes_the_fixed_times():
    values = START["mla_context"]
    assert context_s(1.0, 1.0, 1.0, 1.0) == pytest.approx(values["launch_s"], rel=0.05)
    values = START["mla_generation"]
    fixed = values["launch_s"] + values["task_s"]
    assert generation_s(1.0, 1.0, 1.0) == pytest.approx(fixed, rel=0.05)


@pytest.mark.parametrize("name", OPERATORS)
def test_measured_rows_are_met(name, tmp_path):
    (tmp_path / "mla.csv").write_text((DATA / "mla.csv").read_text())
    (one,) = [one for _, one in series(tmp_path) if one.key == f"{name}/bfloat16"]
    found = errors(one.operator.time_s(one.sizes, START[name], H100), one.time_s)
    assert found["median"] < 0.06
    assert found["p90"] < 0.16


def log_floats(low, high):
    return st.floats(np.log(low), np.log(high)).map(lambda x: float(np.exp(x)))


SIZES = {
    "batch": log_floats(1, 4096),
    "q_len": log_floats(1, 200000),
    "prefix": st.one_of(st.just(0.0), log_floats(1, 500000)),
    "kv_len": log_floats(1, 1e6),
    "n_heads": log_floats(1, 256),
    "kv_bytes": st.sampled_from([1.0, 2.0]),
}
GROWTH = st.one_of(st.floats(1.0, 1.01), st.floats(1.0, 16.0))


@settings(max_examples=150, deadline=None)
@given(st.fixed_dictionaries(SIZES), GROWTH, st.sampled_from(CHIPS))
def test_time_is_finite_monotone_continuous_and_above_its_bound(drawn, growth, chip):
    for name, operator in OPERATORS.items():
        sizes = {k: v for k, v in drawn.items() if k not in ("q_len", "prefix")}
        if name == "mla_context":
            sizes["q_len"] = drawn["q_len"]
            sizes["kv_len"] = drawn["q_len"] + drawn["prefix"]
        points = [sizes]
        for size in sizes:
            grown = {**sizes, size: sizes[size] * growth}
            if size == "q_len":
                grown[size] = min(grown[size], sizes["kv_len"])
            if size != "kv_bytes":
                points.append(grown)
        columns = {k: np.array([point[k] for point in points]) for k in sizes}
        for values in shipped(name):
            time_s = operator.time_s(columns, values, chip)
            assert np.isfinite(time_s).all()
            assert (time_s >= operator.bound_s(columns, chip)).all()
            assert (time_s[1:] >= time_s[0] * (1 - 1e-9)).all()
            if growth <= 1.01:
                assert (time_s <= time_s[0] * 1.25).all()
