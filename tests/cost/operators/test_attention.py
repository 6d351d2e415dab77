"""Attention models: closed-form limits, measured rows, and what holds everywhere."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lts.calibrate.fit import errors
from lts.calibrate.tables.attention import series
from lts.calibration import FOLDER, load
from lts.cost.operators.decode_attention import (
    DECODE_ATTENTION,
    decode_attention_key,
    decode_attention_time_s,
)
from lts.cost.operators.prefill_attention import (
    PREFILL_ATTENTION,
    prefill_attention_time_s,
)
from lts.hardware import Cluster

DATA = Path(__file__).parents[2] / "calibrate" / "data"
CHIPS = [Cluster.preset(name).chip for name in Cluster.presets()]
H100 = Cluster.preset("h100").chip
OPERATORS = {one.name: one for one in (PREFILL_ATTENTION, DECODE_ATTENTION)}
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


def prefill_s(batch, q_len, kv_len, heads, kv_heads, dim, window=0.0, kv_bytes=2.0):
    return prefill_attention_time_s(
        *(batch, q_len, kv_len, heads, kv_heads, dim, window, kv_bytes),
        values=START["prefill_attention"],
        chip=H100,
    )


def decode_s(batch, kv_len, heads, kv_heads, dim, window=0.0, kv_bytes=2.0):
    return decode_attention_time_s(
        *(batch, kv_len, heads, kv_heads, dim, window, kv_bytes),
        values=START["decode_attention"],
        chip=H100,
    )


def test_long_prompts_run_at_the_fitted_arithmetic_rate():
    found = prefill_s(8.0, 131072.0, 131072.0, 32.0, 8.0, 128.0)
    values = START["prefill_attention"]
    flops = 4 * 128 * 8 * 32 * 131072.0**2 / 2
    pair_flops_per_s = 4 * 128 * H100.num_sms / values["pair_s"]
    product = H100.peak("bfloat16") * values["mm_efficiency"]
    seconds = flops * (product**-3 + pair_flops_per_s**-3) ** (1 / 3)
    assert found == pytest.approx(seconds * (1 + values["throttle"]), rel=0.02)


def test_one_short_prompt_takes_the_fixed_times():
    values = START["prefill_attention"]
    fixed = values["launch_s"] + values["launch_per_128_dim_s"] + values["tile_s"]
    assert prefill_s(1.0, 1.0, 1.0, 1.0, 1.0, 128.0) == pytest.approx(fixed, rel=0.15)
    values = START["decode_attention"]
    fixed = values["launch_s"] + values["launch_per_128_dim_s"] + values["task_s"]
    assert decode_s(1.0, 1.0, 1.0, 1.0, 128.0) == pytest.approx(fixed, rel=0.05)


def test_chunks_of_a_prompt_cost_what_the_whole_does_and_their_fixed_times():
    cool = {**START["prefill_attention"], "throttle": 0.0}

    def seconds(q_len, kv_len):
        return prefill_attention_time_s(
            *(1.0, q_len, kv_len, 32.0, 8.0, 128.0, 0.0, 2.0), values=cool, chip=H100
        )

    chunks = seconds(np.full(16, 2048.0), np.arange(1, 17) * 2048.0)
    whole = seconds(32768.0, 32768.0)
    fixed = 15 * seconds(1.0, 1.0)
    assert whole < chunks.sum() < 1.03 * (whole + fixed)
    # every step of the prefix costs the same
    assert np.diff(chunks)[3:] == pytest.approx(np.diff(chunks)[3], rel=0.01)


def test_a_window_makes_a_prompt_linear_in_its_length():
    short = prefill_s(1.0, 16384.0, 16384.0, 32.0, 8.0, 128.0, 128.0)
    long = prefill_s(1.0, 32768.0, 32768.0, 32.0, 8.0, 128.0, 128.0)
    assert long == pytest.approx(2 * short, rel=0.03)
    assert prefill_s(1.0, 16384.0, 16384.0, 32.0, 8.0, 128.0) > 10 * short
    # a window that holds everything changes nothing
    assert prefill_s(1.0, 64.0, 64.0, 8.0, 8.0, 64.0, 64.0) == prefill_s(
        1.0, 64.0, 64.0, 8.0, 8.0, 64.0
    )


def test_long_caches_are_read_at_the_rate_of_memory():
    values = START["decode_attention"]
    found = decode_s(64.0, 131072.0, 64.0, 8.0, 128.0)
    nbytes = 64 * 131072 * 8 * 128 * 2 * 2
    rate = values["hbm_efficiency"] * H100.hbm_bandwidth_bytes_per_s
    assert found == pytest.approx(nbytes / rate, rel=0.05)
    halved = decode_s(64.0, 131072.0, 64.0, 8.0, 128.0, kv_bytes=1.0)
    assert found / halved == pytest.approx(2, rel=0.05)


def test_a_decode_step_reads_no_more_than_its_window():
    near = decode_s(64.0, 4096.0, 64.0, 8.0, 128.0, 1024.0)
    assert decode_s(64.0, 131072.0, 64.0, 8.0, 128.0, 1024.0) == near
    assert decode_s(64.0, 131072.0, 64.0, 8.0, 128.0) > 20 * near


def test_few_sequences_are_split_over_the_chip():
    # 1 sequence of 131072 tokens against 16 of 8192: the same bytes
    one = decode_s(1.0, 131072.0, 32.0, 8.0, 128.0)
    many = decode_s(16.0, 8192.0, 32.0, 8.0, 128.0)
    assert one == pytest.approx(many, rel=0.15)


def test_ungrouped_heads_take_their_own_fit_where_there_is_one():
    both = {"decode_attention/bfloat16", "decode_attention/bfloat16_mha"}
    assert decode_attention_key("bfloat16", 8, 8, both).endswith("_mha")
    assert decode_attention_key("bfloat16", 8, 4, both).endswith("/bfloat16")
    assert decode_attention_key("bfloat16", 8, 8, {"a"}).endswith("/bfloat16")


@pytest.mark.parametrize("name", OPERATORS)
def test_measured_rows_are_met(name, tmp_path):
    table = {"prefill_attention": "context", "decode_attention": "generation"}[name]
    rows = (DATA / f"{name}.csv").read_text()
    (tmp_path / f"{table}_attention.csv").write_text(rows)
    (one,) = [one for _, one in series(tmp_path) if one.key.endswith("bfloat16")]
    found = errors(one.operator.time_s(one.sizes, START[name], H100), one.time_s)
    assert found["median"] < 0.055
    assert found["p90"] < 0.16


def log_floats(low, high):
    return st.floats(np.log(low), np.log(high)).map(lambda x: float(np.exp(x)))


SIZES = {
    "batch": log_floats(1, 4096),
    "q_len": log_floats(1, 200000),
    "prefix": st.one_of(st.just(0.0), log_floats(1, 500000)),
    "kv_len": log_floats(1, 1e6),
    "n_heads": log_floats(1, 256),
    "n_kv_heads": log_floats(1, 128),
    "head_dim": log_floats(32, 512),
    "window": st.one_of(st.just(0.0), log_floats(16, 100000)),
    "kv_bytes": st.sampled_from([1.0, 2.0]),
}
GROWTH = st.one_of(st.floats(1.0, 1.01), st.floats(1.0, 16.0))


@settings(max_examples=150, deadline=None)
@given(st.fixed_dictionaries(SIZES), GROWTH, st.sampled_from(CHIPS))
def test_time_is_finite_monotone_continuous_and_above_its_bound(drawn, growth, chip):
    drawn["n_heads"] = max(drawn["n_heads"], drawn["n_kv_heads"])
    for name, operator in OPERATORS.items():
        sizes = {k: v for k, v in drawn.items() if k not in ("q_len", "prefix")}
        if name == "prefill_attention":
            sizes["q_len"] = drawn["q_len"]
            sizes["kv_len"] = drawn["q_len"] + drawn["prefix"]
        points = [sizes]
        for size in sizes:
            grown = {**sizes, size: sizes[size] * growth}
            if size == "kv_bytes":
                grown[size] = 2.0
            if size == "q_len":
                grown[size] = min(grown[size], sizes["kv_len"])
            if size == "n_kv_heads":
                grown[size] = min(grown[size], sizes["n_heads"])
            if size != "window":
                points.append(grown)
        columns = {k: np.array([point[k] for point in points]) for k in sizes}
        for values in shipped(name):
            time_s = operator.time_s(columns, values, chip)
            assert np.isfinite(time_s).all()
            assert (time_s >= operator.bound_s(columns, chip)).all()
            assert (time_s[1:] >= time_s[0] * (1 - 1e-9)).all()
            if growth <= 1.01:
                smooth = [p["kv_bytes"] == sizes["kv_bytes"] for p in points]
                assert (time_s[smooth] <= time_s[0] * 1.25).all()
