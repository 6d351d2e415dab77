"""Collectives: times in closed form, and which ones a change of layout needs."""

import itertools

import numpy as np
import pytest

from lts.cost.collective import collective_time_s
from lts.hardware import Cluster
from lts.hops import KINDS
from tests.cost.reshard_price import reshard_time_s

CLUSTER = Cluster.parse("h100:4x8")
NEAR, FAR = CLUSTER.intra, CLUSTER.inter
SIZES = np.array([2, 4])
INSIDE = np.array([False, True])


def cost(kind: str, inside: int, across: int) -> tuple[float, float]:
    """Seconds of no bytes at all, and seconds per further byte."""
    nbytes = np.array([0.0, 2.0**20])
    sizes = np.array(inside), np.array(across)
    none, some = collective_time_s(kind, nbytes, *sizes, CLUSTER).tolist()
    return none, (some - none) / 2**20


@pytest.mark.parametrize("number", [2, 4, 8])
def test_one_level_moves_its_textbook_bytes(number: int) -> None:
    n, hops = number, np.log2(number)
    share = (n - 1) / n
    moved = {
        "all_gather": n - 1,  # of the local shard
        "reduce_scatter": share,
        "all_reduce": 2 * share,
        "all_to_all": share,
        "collective_permute": 1,
    }
    for kind, nbytes in moved.items():
        fixed, per_byte = cost(kind, n, 1)
        assert fixed == pytest.approx(NEAR.latency_s + hops * NEAR.hop_latency_s)
        assert per_byte == pytest.approx(nbytes / NEAR.bandwidth_bytes_per_s)
        fixed, per_byte = cost(kind, 1, n)
        assert fixed == pytest.approx(FAR.latency_s + hops * FAR.hop_latency_s)
        assert per_byte == pytest.approx(nbytes / FAR.bandwidth_bytes_per_s)


def test_two_levels_move_their_parts_over_their_links() -> None:
    n, m = 8, 4  # GPUs inside a node, nodes
    near, far = NEAR.bandwidth_bytes_per_s, FAR.bandwidth_bytes_per_s
    expected = {
        # across: 3 shards come in; inside: 7 peers' 4 shards each
        "all_gather": 3 / far + 7 * 4 / near,
        # inside on the whole, across on an eighth
        "reduce_scatter": (7 / 8) / near + (3 / 4) / 8 / far,
        "all_reduce": 2 * (7 / 8) / near + 2 * (3 / 4) / 8 / far,
        # of 32 equal parts 7 stay in the node and 24 leave it
        "all_to_all": (7 / 32) / near + (24 / 32) / far,
        "collective_permute": 1 / far,
    }
    for kind, per_byte in expected.items():
        fixed, slope = cost(kind, n, m)
        assert slope == pytest.approx(per_byte)
        assert fixed == pytest.approx(
            NEAR.latency_s
            + 3 * NEAR.hop_latency_s
            + FAR.latency_s
            + 2 * FAR.hop_latency_s
        )


def test_an_all_reduce_is_a_reduce_scatter_and_a_gather_of_the_parts() -> None:
    for n, m in itertools.product((1, 2, 4, 8), (1, 2, 4)):
        scatter, gather = cost("reduce_scatter", n, m)[1], cost("all_gather", n, m)[1]
        assert cost("all_reduce", n, m)[1] == pytest.approx(scatter + gather / (n * m))


@pytest.mark.parametrize("kind", KINDS)
def test_one_gpu_pays_nothing(kind: str) -> None:
    assert cost(kind, 1, 1) == (0.0, 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_more_gpus_never_pay_less_per_byte_they_receive(kind: str) -> None:
    for level in ((2, 1), (1, 2)):
        double = tuple(2 * x if x > 1 else 1 for x in level)
        assert cost(kind, *double) > cost(kind, *level)


def test_an_unknown_collective_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown collective 'broadcast'; known: red"):
        cost("broadcast", 2, 1)


def total(cost: tuple[float, float], nbytes: float) -> float:
    return cost[0] + cost[1] * nbytes


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
        reduce, gather = cost("all_reduce", 1, 2), cost("all_gather", 4, 1)
        expected = total(reduce, nbytes / 4) + total(gather, nbytes / 4)
        assert float(found) == pytest.approx(expected)


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
    assert float(found) == pytest.approx(total(cost("all_reduce", 4, 2), 1e6))


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
