"""Fits of engine profiles on synthetic points whose scalars are known."""

from dataclasses import replace

import numpy as np
import pytest

from lts.calibrate.profiles import (
    ALONE,
    AT_ONCE_RATE,
    CLOSED_RATE,
    STEP,
    TPOT,
    TTFT,
    WIDTHS,
    Points,
    fit_common,
    fit_family,
    fit_profile,
    joined,
    middle,
    predicted,
)
from lts.cost.profile import SCALARS, Profile
from lts.cost.served_step import CLASSES
from lts.cost.steady import Depth, alone_s, decode_step_s

START = Profile()


def points(seed: int, count: int, truth: Profile) -> Points:
    """Random loads, measured without noise on an engine of profile `truth`."""
    rng = np.random.default_rng(seed)
    batch = 2.0 ** rng.integers(0, 8, count)
    own = Points(
        decode=rng.uniform(2e-4, 4e-3, (count, len(CLASSES))),
        last=rng.uniform(2e-4, 4e-3, (count, len(CLASSES))),
        prompt=rng.uniform(1e-3, 1e-1, (count, len(CLASSES))),
        alone=rng.uniform(1e-3, 1e-1, (count, len(CLASSES))),
        in_flight=batch,
        rank_sequences=batch,
        rank_last=batch / 2,
        waves=np.full(count, 3.0),
        rest=batch / 2,
        requests=batch * 3.5,
        servers=np.ones(count),
        output_len=rng.choice([128.0, 1024.0], count),
        layers=rng.choice([32.0, 80.0], count),
        expert_layers=np.zeros(count),
        expert_doublings=np.zeros(count),
        stages=np.ones(count),
        quantity=rng.choice([TPOT, TTFT, AT_ONCE_RATE], count),
        value=np.ones(count),
    )
    return own._replace(value=predicted(own, truth))


def test_quantities_are_those_of_the_formulas() -> None:
    own = points(0, 6, START)._replace(
        quantity=np.array([TPOT, TTFT, CLOSED_RATE, AT_ONCE_RATE, ALONE, STEP])
    )
    found = predicted(own, START)
    depth = Depth(own.layers, own.expert_layers, own.expert_doublings)
    alone = alone_s(own.alone, depth, START)
    step = decode_step_s(
        own.decode, own.rank_sequences, own.in_flight, own.stages, depth, START
    )
    assert found[4] == alone[4] + START.host_s
    assert found[5] == step[5]
    same = own._replace(quantity=np.zeros(6, int) + TPOT)
    tpot = predicted(same, START)
    ttft = predicted(same._replace(quantity=np.zeros(6, int) + TTFT), START)
    written = own.output_len[2]
    assert found[2] == pytest.approx(
        own.in_flight[2] * written / (ttft[2] + (written - 1) * tpot[2])
    )


def test_scalars_that_points_show_are_found() -> None:
    truth = replace(START, gemm=1.2, prefill=0.85, sequence_s=40e-6, host_s=50e-3)
    found = fit_profile(points(1, 200, truth), START, name="engine", tightness=3.0)
    for scalar in ("gemm", "prefill", "sequence_s"):
        assert getattr(found, scalar) == pytest.approx(getattr(truth, scalar), rel=0.06)
    # waits for the host, for others' prompts and for steps stand for each other a bit
    assert 35e-3 < found.host_s < 55e-3
    assert found.name == "engine" and found.points == 200


def test_few_points_stay_near_the_common_profile() -> None:
    truth = replace(START, gemm=1.2, step_s=2e-3)
    few = fit_profile(points(2, 4, truth), START, tightness=0.5)
    many = fit_profile(points(2, 400, truth), START, tightness=0.5)
    assert 1.0 < few.gemm < 1.15 < many.gemm == pytest.approx(1.2, rel=0.03)
    assert START.step_s < few.step_s < many.step_s == pytest.approx(2e-3, rel=0.1)


def test_a_scalar_stays_within_three_widths() -> None:
    own = points(4, 400, replace(START, gemm=5.0))
    found = fit_profile(own, START)
    assert found.gemm == pytest.approx(np.exp(3 * WIDTHS["gemm"]), rel=1e-3)


def test_without_points_or_width_the_common_profile_comes_back() -> None:
    own = points(3, 10, START)
    assert fit_profile(own.at(np.zeros(10, bool)), START, name="x") == replace(
        START, name="x"
    )
    assert fit_profile(own, replace(START, gemm=1.3), tightness=0.0).gemm == 1.3


def test_the_middle_is_the_median_of_logarithms() -> None:
    found = middle([replace(START, gemm=g) for g in (0.5, 1.0, 2.0, 8.0)])
    assert found.gemm == pytest.approx(2**0.5)
    assert all(
        getattr(found, s) == pytest.approx(getattr(START, s)) for s in SCALARS[1:]
    )
    with pytest.raises(ValueError, match="needs profiles"):
        middle([])


def test_versions_share_what_their_engine_s_agree_on() -> None:
    slow = replace(START, all_reduce=2.0)
    sets = {f"a {i}": points(i, 150, slow) for i in range(3)}
    sets["a new"] = points(9, 3, slow)
    sets |= {f"b {i}": points(20 + i, 150, START) for i in range(3)}
    engine_of = {name: name[0] for name in sets}
    found = fit_family(sets, engine_of, START, dict.fromkeys(sets, 1.0))
    assert found.engines["a"].all_reduce == pytest.approx(2.0, rel=0.05)
    assert found.engines["b"].all_reduce == pytest.approx(1.0, rel=0.05)
    assert found.engines["b"].all_reduce < found.common.all_reduce < 2.0
    assert found.versions["a new"].all_reduce > 1.8
    assert found.nearest("a 0", "a") == found.versions["a 0"]
    assert found.nearest("a next", "a") == found.engines["a"]
    assert found.nearest("c 0", "c") == found.middle
    assert 1.0 < found.middle.all_reduce < 2.0
    assert len(joined([*sets.values()]).value) == 903


def test_an_engine_of_few_points_stays_near_what_all_share() -> None:
    slow = replace(START, gemm=1.5)
    sets = {f"a {i}": points(i, 300, START) for i in range(3)}
    widths = []
    for few in (40, 440):
        own = {**sets, "b": points(9, few, slow)}
        engine_of = {name: name[0] for name in own}
        found = fit_family(own, engine_of, START, dict.fromkeys(own, 1.0))
        widths.append(found.engines["b"].gemm)
        assert found.versions["b"].gemm > found.engines["b"].gemm
    assert widths[0] < 1.3 < widths[1]


def test_a_set_counts_by_the_root_of_its_points() -> None:
    slow, quick = replace(START, gemm=1.2), replace(START, gemm=0.8)
    equal = {"slow": points(1, 100, slow), "quick": points(2, 100, quick)}
    many = {**equal, "slow": points(1, 400, slow)}
    at_100, at_400 = (fit_common(sets, START).gemm for sets in (equal, many))
    assert at_100 < at_400 < 1.2
