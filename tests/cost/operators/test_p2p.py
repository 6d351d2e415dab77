"""Transfers from one GPU to another: limits, order, and the floor."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lts.cost.operators.p2p import P2P, PEAK, latency_of, p2p_sizes, p2p_time_s
from lts.hardware import Cluster

VALUES = {
    "latency": 0.8,
    "rise": 0.5,
    "rise_bytes": 1.0e4,
    "later_rise": 0.25,
    "later_rise_bytes": 4.0e6,
    "bandwidth": 1.1,
}
H100 = Cluster.preset("h100")
START_S = 0.8 * (3.6e-6 + 2.4e-6)  # one doubling: two GPUs


def test_short_messages_take_the_latency_and_long_ones_the_bandwidth():
    short, long, longer = p2p_time_s(
        np.array([1.0, 2.0**36, 2.0**37]), link=H100.intra, values=VALUES
    )
    assert short == pytest.approx(START_S, rel=1e-5)
    assert (longer - long) / 2**36 == pytest.approx(1 / (1.1 * 340e9), rel=1e-4)
    assert long - 2**36 / (1.1 * 340e9) == pytest.approx(START_S * 1.75, rel=1e-3)


def test_half_of_a_rise_is_at_its_bytes():
    flat = VALUES | {"later_rise": 0.0, "bandwidth": 1e9}
    half = p2p_time_s(np.array(1.0e4), link=H100.intra, values=flat)
    assert half == pytest.approx(START_S * 1.25, rel=1e-9)


def test_between_nodes_the_other_link_counts():
    inter = p2p_time_s(np.array(2.0**36), link=H100.inter, values=VALUES)
    assert inter == pytest.approx(2**36 / (1.1 * 40e9), rel=1e-3)


def test_latency_grows_by_a_hop_with_every_doubling():
    found = latency_of(H100.intra, np.array([1.0, 2.0, 8.0]))
    assert found == pytest.approx([3.6e-6, 6.0e-6, 10.8e-6])


@settings(deadline=None)
@given(
    nbytes=st.floats(0, 1e13),
    more=st.floats(1.0, 1.01),
    bandwidth=st.floats(0.02, PEAK),
    rises=st.tuples(st.floats(0.001, 1.5), st.floats(0.001, 5.0)),
    name=st.sampled_from(Cluster.presets()),
)
def test_order_steadiness_and_floor(nbytes, more, bandwidth, rises, name):
    cluster = Cluster.preset(name)
    values = VALUES | {
        "bandwidth": bandwidth,
        "rise": rises[0],
        "later_rise": rises[1],
    }
    sizes = p2p_sizes(np.array([nbytes, nbytes * more]), cluster.intra)
    found = P2P.time_s(sizes, values, cluster.chip)
    assert np.isfinite(found).all() and (found > 0).all()
    assert found[0] <= found[1] <= found[0] * 1.03
    assert (found >= P2P.bound_s(sizes, cluster.chip)).all()
