"""Expert dispatch and combine: limits in closed form, properties anywhere, rows."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lts.calibrate.fit import errors
from lts.calibrate.tables.deep_ep import series
from lts.cost.operators.deep_ep import (
    combine_time_s,
    dispatch_time_s,
    distinct,
    fit_key,
    notify_time_s,
    operator,
    parameters,
)
from lts.hardware import Cluster

DATA = Path(__file__).parents[2] / "calibrate" / "data"
H100 = Cluster.preset("h100")
TIMES = {"dispatch": dispatch_time_s, "combine": combine_time_s}
LAYER = {"hidden": 7168.0, "topk": 8.0, "num_experts": 256.0}


def fitted(phase, low_latency):
    return {
        place: {
            one.name: one.start
            for one in parameters(fit_key(phase, place, low_latency=low_latency))
        }
        for place in ("inside", "across")
    }


def priced(
    phase, low_latency, tokens, gpus, nodes, *, values=None, cluster=H100, **more
):
    return TIMES[phase](
        np.asarray(tokens, float),
        *(np.asarray(more.pop(name, size), float) for name, size in LAYER.items()),
        np.asarray(gpus, float),
        np.asarray(nodes, float),
        low_latency=low_latency,
        values=values or fitted(phase, low_latency),
        chip=cluster.chip,
        intra=cluster.intra,
        inter=cluster.inter,
        **more,
    )


@pytest.mark.parametrize("preset", ["h100", "h200", "a100"])
@pytest.mark.parametrize("phase", TIMES)
@pytest.mark.parametrize("low_latency", [True, False])
@settings(max_examples=25, deadline=None)
@given(
    tokens=st.floats(0, 6).map(lambda power: 10**power),
    hidden=st.floats(128, 16384),
    experts=st.floats(8, 512),
    share=st.floats(0.0, 1.0),
    gpus=st.floats(1, 8),
    nodes=st.sampled_from([1.0, 2.0, 3.5, 16.0]),
    limit=st.sampled_from([2.0, 4.0, np.inf]),
    sms=st.floats(4, 24),
    more=st.floats(1.0, 3.0),
)
def test_times_are_above_the_bound_monotone_and_without_jumps(
    preset,
    phase,
    low_latency,
    tokens,
    hidden,
    experts,
    share,
    gpus,
    nodes,
    limit,
    sms,
    more,
):
    cluster = Cluster.preset(preset)
    topk = 1 + share * 7
    base = {"hidden": hidden, "topk": topk, "num_experts": experts}

    def price(tokens=tokens, gpus=gpus, nodes=nodes, sms=sms, **changed):
        options = {"node_limit": limit, "sms": sms, "cluster": cluster}
        return float(
            priced(phase, low_latency, tokens, gpus, nodes, **base | changed, **options)
        )

    one = price()
    assert np.isfinite(one)
    place, link = ("across", cluster.inter) if nodes > 1 else ("inside", cluster.intra)
    work = base | {"tokens": tokens, "gpus": gpus, "nodes": nodes, "node_limit": limit}
    work["bandwidth_bytes_per_s"] = link.bandwidth_bytes_per_s
    model = operator(fit_key(phase, place, low_latency=low_latency))
    assert one >= model.bound_s(work, cluster.chip)
    for change in (more, 1.01):
        found = {
            "tokens": price(tokens=tokens * change),
            "hidden": price(hidden=hidden * change),
            "topk": price(topk=topk * change),
            "gpus": price(gpus=gpus * change),
            "sms": price(sms=sms / change),
        }
        if nodes > 1:
            found["nodes"] = price(nodes=nodes * change)
        for name, time in found.items():
            assert time >= one * (1 - 1e-8), name
            # from one GPU up, what is sent grows from nothing
            steep = 1.5 if name in ("gpus", "nodes") else 1.05
            assert change > 1.01 or time <= one * steep, name


@pytest.mark.parametrize(
    ("experts", "topk", "groups"), [(8, 2, 8), (8, 2, 2), (12, 5, 3), (6, 4, 2)]
)
def test_groups_per_token_are_those_of_all_choices(experts, topk, groups):
    held = experts // groups
    found = [
        len({expert // held for expert in chosen})
        for chosen in combinations(range(experts), topk)
    ]
    assert distinct(experts, topk, groups) == pytest.approx(np.mean(found))


def test_one_group_holds_every_expert():
    assert distinct(256, 8, 1) == pytest.approx(1)


SWIFT = {
    **{"latency_s": 0.0, "bandwidth": 1.0, "sm_rate": 1e30, "group_rate": 1e30},
    **{"own": 0.0, "token_bytes": 0.0, "forward": 0.0, "rise_s": 0.0, "half_s": 1.0},
}


@pytest.mark.parametrize(("phase", "width"), [("dispatch", 1.03125), ("combine", 2.0)])
def test_without_losses_the_link_is_all(phase, width):
    ideal = {"inside": SWIFT, "across": SWIFT}
    token = width * 7168
    low = priced(phase, True, 4096, 8, [1, 4], values=ideal)
    copies = 4096 * 8 * token
    assert low == pytest.approx([copies * 7 / 8 / 340e9, copies * 3 / 4 / 40e9])
    normal = priced(phase, False, 4096, 8, [1, 4], values=ideal)
    sent = 4096 * token * distinct(256, 8, [8, 4])
    assert normal == pytest.approx(sent * [7 / 8, 3 / 4] / [340e9, 40e9])


def test_few_sms_bind_before_the_link():
    few, many = (priced("dispatch", False, 65536, 8, 1, sms=sms) for sms in (4, 24))
    assert 2 < few / many < 6
    values = fitted("dispatch", False)["inside"]
    work = distinct(256, 8, 8) + values["own"]
    nbytes = 65536 * (work * 7168 * 1.03125 + values["token_bytes"])
    assert few == pytest.approx(nbytes / (4 * values["sm_rate"]), rel=0.01)


def test_a_router_that_keeps_to_few_nodes_sends_less_over_the_network():
    free, held = (
        priced("combine", False, 65536, 8, 8, node_limit=limit) for limit in (8, 4)
    )
    expected = distinct(256, 8, 8) / distinct(128, 8, 4)
    assert free / held == pytest.approx(expected, rel=0.02)
    low = [priced("combine", True, 65536, 8, 8, node_limit=limit) for limit in (8, 4)]
    assert low[0] == low[1]


def test_low_latency_kernels_are_quicker_for_few_tokens_only():
    few, many = (
        [priced("dispatch", low, tokens, 8, 4) for low in (True, False)]
        for tokens in (4, 4096)
    )
    assert few[0] < few[1]
    assert many[0] > 1.5 * many[1]


def test_ranks_are_notified_across_nodes_only():
    assert notify_time_s([1, 2, 4]) == pytest.approx([0, 31e-6, 57e-6])


def test_values_of_a_place_without_sizes_may_lack():
    values = {"inside": fitted("dispatch", True)["inside"]}
    found = priced("dispatch", True, [1, 64], 8, 1, values=values)
    assert found == pytest.approx(priced("dispatch", True, [1, 64], 8, 1))
    assert found.shape == (2,)


def test_measured_rows_are_met():
    found = {one.key: one for _, one in series(DATA)}
    assert len(found) == 8
    for key, one in found.items():
        values = {one.name: one.start for one in parameters(key)}
        times = one.operator.time_s(one.sizes, values, H100.chip)
        error = errors(times, one.time_s)
        assert error["median"] < 0.07, key
        assert abs(error["bias"]) < 0.05, key
