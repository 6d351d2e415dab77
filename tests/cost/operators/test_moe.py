"""Fused mixture of experts: limits in closed form, properties anywhere, routing."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lts.calibrate.fit import errors
from lts.calibrate.tables.moe import series
from lts.cost.operators.moe import FORMS, moe_time_s, operator, parameters, rank_load
from lts.hardware import Cluster

DATA = Path(__file__).parents[2] / "calibrate" / "data"
CHIPS = [
    ("h100", "bfloat16"),
    ("h100", "fp8"),
    ("h100", "fp8_block"),
    ("h200", "bfloat16"),
    ("h200", "fp8_block"),
    ("a100", "bfloat16"),
]
NAMES = "tokens hidden inter topk num_experts tp ep skew spread".split()


def fitted(form):
    return {one.name: one.start for one in parameters(form)}


def priced(chip, form, values=None, **sizes):
    return moe_time_s(
        **{name: np.asarray(size, float) for name, size in sizes.items()},
        form=form,
        values=values or fitted(form),
        chip=Cluster.preset(chip).chip,
    )


@pytest.mark.parametrize(("chip", "form"), CHIPS)
@settings(max_examples=25, deadline=None)
@given(
    tokens=st.floats(0, 5).map(lambda power: 10**power),
    hidden=st.floats(64, 16384),
    inter=st.floats(64, 16384),
    experts=st.floats(1, 512),
    share=st.floats(0.0, 1.0),
    tp=st.floats(1, 16),
    split=st.floats(0, 1),
    skew=st.floats(1, 4),
    spread=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    more=st.floats(1.0, 3.0),
)
def test_times_are_above_the_bound_monotone_and_without_jumps(
    chip, form, tokens, hidden, inter, experts, share, tp, split, skew, spread, more
):
    topk, ep = 1 + share * (min(experts, 16) - 1), experts**split
    base = np.array([tokens, hidden, inter, topk, experts, tp, ep, skew, spread])
    one = priced(chip, form, **dict(zip(NAMES, base, strict=True)))
    assert np.isfinite(one)
    rows, active = rank_load(tokens, topk, experts, ep, skew=skew, spread=spread)
    work = {"hidden": hidden, "inter": inter / tp, "rows": rows, "active": active}
    assert one >= operator(form).bound_s(work, Cluster.preset(chip).chip)
    for change in (more, 1.01):
        for name in ("tokens", "hidden", "inter", "topk", "num_experts", "skew"):
            larger = dict(zip(NAMES, base, strict=True))
            larger[name] *= change
            larger["topk"] = min(larger["topk"], larger["num_experts"])
            found = priced(chip, form, **larger)
            assert found >= one * (1 - 1e-8), name
            # the steepest slope: a wave reached within 1/8 of one, and sorting
            assert change > 1.01 or found <= one * 1.1, name
        for name in ("tp", "ep"):
            smaller = dict(zip(NAMES, base, strict=True))
            smaller[name] *= change
            smaller["ep"] = min(smaller["ep"], experts)
            assert priced(chip, form, **smaller) <= one * (1 + 1e-8), name


IDEAL = {
    **{"launch_s": 0.0, "sort_s": 0.0, "token": 0.0, "row": 0.0, "expert_s": 0.0},
    **{"hbm": 1.0, "peak": 1.0, "step_s": 0.0, "wave": 0.0, "tile_s": 0.0},
    **{"tail": 0.0, "ragged": 0.0},
}
EVEN = {"skew": 1, "spread": 0}


@pytest.mark.parametrize("form", FORMS)
def test_without_losses_many_rows_take_their_flops(form):
    layer = {"hidden": 4096, "inter": 2048, "topk": 2, "num_experts": 8}
    found = priced("h100", form, IDEAL, tokens=1e6, tp=2, ep=4, **layer, **EVEN)
    rows = 1e6 * 2 / 4
    flops = 6 * rows * 4096 * 2048 / 2
    peak = Cluster.preset("h100").chip.peak(FORMS[form].dtype)
    assert found == pytest.approx(flops / peak, rel=1e-3)


@pytest.mark.parametrize("form", FORMS)
def test_without_losses_few_rows_take_the_weights_of_their_experts(form):
    # two tokens on 256 of 1024 experts, hardly any of them shared
    layer = {"hidden": 4096, "inter": 4096, "topk": 128, "num_experts": 1024}
    found = priced("h200", form, IDEAL, tokens=2, tp=1, ep=1, **layer, **EVEN)
    active = 1024 * (1 - (1 - 128 / 1024) ** 2)
    nbytes = FORMS[form].weight_bytes * active * 3 * 4096 * 4096
    assert found == pytest.approx(nbytes / 4.8e12, rel=0.05)


def test_experts_of_small_products_are_launched_for():
    layer = {"hidden": 128, "inter": 128, "topk": 1, "num_experts": 1}
    found = priced("h100", "bfloat16", tokens=1, tp=1, ep=1, **layer, **EVEN)
    assert found == pytest.approx(fitted("bfloat16")["launch_s"], rel=0.1)


def test_a_chip_without_the_arithmetic_is_refused():
    layer = {"hidden": 512, "inter": 512, "topk": 2, "num_experts": 8}
    with pytest.raises(ValueError, match="float8_e4m3fn"):
        priced("a100", "fp8", tokens=8, tp=1, ep=1, **layer, **EVEN)


def test_one_token_has_topk_rows_on_as_many_experts():
    assert rank_load(1, 8, 256, 1, skew=1, spread=0) == pytest.approx((8, 8))


def test_some_rank_has_a_whole_row():
    assert rank_load(1, 8, 256, 64, skew=1, spread=0) == pytest.approx((1, 1))


def test_many_tokens_reach_all_experts_of_the_rank():
    rows, active = rank_load(1e5, 8, 256, 16, skew=1.5, spread=0)
    assert rows == pytest.approx(1e5 * 8 / 16 * 1.5)
    assert active == pytest.approx(16)


def test_expected_experts_are_those_of_random_draws():
    rng = np.random.default_rng(1)
    chosen = rng.random((4000, 10, 32)).argsort(2)[:, :, :4]  # 10 tokens, 4 of 32
    local = (chosen < 16).sum((1, 2)).mean()
    active = np.mean([len(set(one[one < 16])) for one in chosen])
    assert rank_load(10, 4, 32, 2, skew=1, spread=0) == pytest.approx(
        (local, active), rel=0.01
    )


def test_unequal_popularity_leaves_more_experts_idle():
    rng = np.random.default_rng(1)
    share = rng.gamma(1.0, 4 / 256, 100_000).clip(max=1)  # spread 1
    drawn = 256 * (1 - (1 - share) ** 64).mean()
    _, active = rank_load(64, 4, 256, 1, skew=1, spread=1)
    assert active == pytest.approx(drawn, rel=0.01)
    assert active < rank_load(64, 4, 256, 1, skew=1, spread=0)[1] - 30


def test_skew_lengthens_a_prefill_in_proportion_to_the_busiest_rank():
    layer = {"hidden": 7168, "inter": 2048, "topk": 8, "num_experts": 256}
    even, uneven = (
        priced("h100", "fp8_block", tokens=1e5, tp=1, ep=16, **layer, skew=s, spread=0)
        for s in (1, 2)
    )
    # what tokens of the whole group take does not grow
    assert 1.6 < uneven / even < 2


def test_measured_rows_are_met():
    found = {one.key: one for _, one in series(DATA)}
    assert sorted(found) == ["moe/bfloat16", "moe/fp8", "moe/fp8_block"]
    for key, one in found.items():
        form = key.removeprefix("moe/")
        times = one.operator.time_s(
            one.sizes, fitted(form), Cluster.preset("h100").chip
        )
        error = errors(times, one.time_s)
        assert error["median"] < 0.06, key
        assert abs(error["bias"]) < 0.03, key
