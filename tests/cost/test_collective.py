"""Collectives: times in closed form, and which ones a change of layout needs."""

import dataclasses
import itertools

import numpy as np
import pytest

from lts.calibration import load
from lts.cost.collective import collective_time_s
from lts.cost.operators import collectives
from lts.cost.pricing import Pricing
from lts.cost.profile import Profile
from lts.hardware import Cluster
from lts.hops import KINDS
from tests.cost.reshard_price import reshard_time_s

CLUSTER = Cluster.parse("h100:4x8")
PRICING = Pricing(cluster=CLUSTER)
SIZES = np.array([2, 4])
INSIDE = np.array([False, True])
BETWEEN_KNOTS = 0.02
"""Reshards are priced at knots of bytes; straight lines between them stay so close."""


def cost(kind: str, inside: int, across: int, nbytes: float) -> float:
    sizes = np.array(inside), np.array(across)
    return float(collective_time_s(kind, np.array(nbytes), *sizes, PRICING))


@pytest.mark.parametrize("kind", KINDS)
def test_one_gpu_pays_nothing(kind: str) -> None:
    assert cost(kind, 1, 1, 1e6) == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_a_collective_is_the_calibrated_one_of_nccl(kind: str) -> None:
    for inside, across in ((2, 1), (8, 1), (1, 2), (8, 4)):
        found = collectives.collective_time_s(
            kind,
            np.array(1e6),
            np.array(inside),
            np.array(across),
            calibration=load("h100"),
            cluster=CLUSTER,
        )
        assert cost(kind, inside, across, 1e6) == float(found) > 0


def test_what_runs_beside_compute_is_not_paid_for() -> None:
    half = dataclasses.replace(CLUSTER, overlap_fraction=0.5)
    pricing = dataclasses.replace(PRICING, cluster=half)
    for kind in KINDS:
        sizes = np.array(8), np.array(4)
        found = collective_time_s(kind, np.array(1e6), *sizes, pricing)
        assert float(found) == 0.5 * cost(kind, 8, 4, 1e6)


def test_engines_sum_little_by_kernels_of_their_own() -> None:
    engine = dataclasses.replace(PRICING, engine=Profile(all_reduce=1.0))
    group = np.array(8), np.array(1)
    for nbytes, ratio in ((16e3, 0.9), (256e6, 1.001)):
        found = collective_time_s("all_reduce", np.array(nbytes), *group, engine)
        assert float(found) < ratio * cost("all_reduce", 8, 1, nbytes)
    slower = dataclasses.replace(PRICING, engine=Profile(all_reduce=2.0))
    found = collective_time_s("all_gather", np.array(1e6), *group, slower)
    assert float(found) == pytest.approx(2 * cost("all_gather", 8, 1, 1e6))


def test_an_unknown_collective_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown collective"):
        cost("broadcast", 2, 1, 1e6)


def test_axes_of_size_one_take_no_part() -> None:
    sizes = np.array([1, 1])
    for source in itertools.product(range(4), repeat=2):
        args = np.array(source), np.array([0, 0]), 2, sizes, INSIDE
        assert reshard_time_s(*args, CLUSTER) == 0


def test_the_price_of_a_reshard_is_the_sum_of_its_steps() -> None:
    for nbytes in (1e3, 1e6, 1e9):
        found = reshard_time_s(
            np.array([3, 1]), np.array([0, 0]), 2, SIZES, INSIDE, CLUSTER, nbytes
        )
        reduce = cost("all_reduce", 1, 2, nbytes / 4)
        expected = reduce + cost("all_gather", 4, 1, nbytes / 4)
        assert float(found) == pytest.approx(expected, rel=BETWEEN_KNOTS)


@pytest.mark.parametrize(("source", "target"), [(3, 0), (3, 1), (1, 2), (2, 0), (0, 1)])
def test_splitting_an_axis_never_changes_the_price(source: int, target: int) -> None:
    def time_s(sizes: list[int]) -> float:
        count = len(sizes)
        ends = np.full(count, source), np.full(count, target)
        mesh = np.array(sizes), np.ones(count, bool)
        return float(reshard_time_s(*ends, 2, *mesh, CLUSTER))

    for sizes in ([2, 4], [4, 2], [2, 2, 2], [1, 8]):
        assert time_s(sizes) == pytest.approx(time_s([8]), rel=1e-12)


def test_a_group_over_two_nodes_is_one_hierarchical_collective() -> None:
    ends = np.array([3, 3]), np.array([0, 0])
    found = reshard_time_s(*ends, 2, SIZES, INSIDE, CLUSTER, 1e6)
    expected = cost("all_reduce", 4, 2, 1e6)
    assert float(found) == pytest.approx(expected, rel=BETWEEN_KNOTS)


def test_no_price_is_negative_and_staying_is_free() -> None:
    states = np.array(list(itertools.product(range(4), repeat=2)))
    source, target = states[:, None], states[None][:, (states < 3).all(1)]
    time_s = reshard_time_s(source, target, 2, SIZES, INSIDE, CLUSTER)
    assert ((time_s == 0) == (source == target).all(-1)).all()
    assert (time_s >= 0).all()


def test_a_slice_costs_one_copy_of_its_result() -> None:
    ends = np.array([0, 0]), np.array([1, 2])
    found = reshard_time_s(*ends, 2, SIZES, INSIDE, CLUSTER, 1e6)
    chip = CLUSTER.chip
    bandwidth = chip.hbm_bandwidth_bytes_per_s * chip.hbm_efficiency
    copied = 2 * 1e6 / SIZES.prod() / bandwidth
    assert float(found) == pytest.approx(chip.op_launch_s + copied)
