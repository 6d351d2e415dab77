"""Collectives: times in closed form, and which ones a change of layout needs."""

import itertools

import numpy as np
import pytest

from lts.cost.collective import collective_cost, reshard_cost
from lts.hardware import Cluster
from lts.hops import KINDS

CLUSTER = Cluster.parse("h100:4x8")
NEAR, FAR = CLUSTER.intra, CLUSTER.inter
SIZES = np.array([2, 4])
INSIDE = np.array([False, True])


def cost(kind: str, inside: int, across: int) -> tuple[float, float]:
    fixed, per_byte = collective_cost(kind, np.array(inside), np.array(across), CLUSTER)
    return float(fixed), float(per_byte)


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


def test_axes_of_size_one_take_no_part() -> None:
    sizes = np.array([1, 1])
    for source in itertools.product(range(4), repeat=2):
        args = np.array(source), np.array([0, 0]), 2, sizes, INSIDE
        assert reshard_cost(*args, CLUSTER) == (0, 0)


def test_the_price_of_a_reshard_is_the_sum_of_its_steps() -> None:
    fixed, per_byte = reshard_cost(
        np.array([3, 1]), np.array([0, 0]), 2, SIZES, INSIDE, CLUSTER
    )
    reduce, gather = cost("all_reduce", 1, 2), cost("all_gather", 4, 1)
    assert float(fixed) == pytest.approx(reduce[0] + gather[0])
    assert float(per_byte) == pytest.approx((reduce[1] + gather[1]) / 4)


@pytest.mark.parametrize(("source", "target"), [(3, 0), (3, 1), (1, 2), (2, 0), (0, 1)])
def test_splitting_an_axis_never_changes_the_price(source: int, target: int) -> None:
    whole = reshard_cost(
        np.array([source]),
        np.array([target]),
        2,
        np.array([8]),
        np.array([True]),
        CLUSTER,
    )
    for sizes in ([2, 4], [4, 2], [2, 2, 2], [1, 8]):
        count = len(sizes)
        parts = reshard_cost(
            np.full(count, source),
            np.full(count, target),
            2,
            np.array(sizes),
            np.ones(count, bool),
            CLUSTER,
        )
        assert np.allclose(parts, whole, rtol=1e-12)


def test_a_group_over_two_nodes_is_one_hierarchical_collective() -> None:
    found = reshard_cost(np.array([3, 3]), np.array([0, 0]), 2, SIZES, INSIDE, CLUSTER)
    assert np.allclose(found, cost("all_reduce", 4, 2), rtol=1e-12)


def test_no_price_is_negative_and_staying_is_free() -> None:
    states = np.array(list(itertools.product(range(4), repeat=2)))
    source, target = states[:, None], states[None][:, (states < 3).all(1)]
    fixed, per_byte = reshard_cost(source, target, 2, SIZES, INSIDE, CLUSTER)
    assert (fixed >= 0).all() and (per_byte >= 0).all()
    assert ((fixed > 0) == (per_byte > 0)).all()
    same = (source == target).all(-1)
    assert (per_byte[same] == 0).all()


def test_a_slice_costs_one_copy_of_its_result() -> None:
    fixed, per_byte = reshard_cost(
        np.array([0, 0]), np.array([1, 2]), 2, SIZES, INSIDE, CLUSTER
    )
    chip = CLUSTER.chip
    bandwidth = chip.hbm_bandwidth_bytes_per_s * chip.hbm_efficiency
    assert float(fixed) == chip.op_launch_s
    assert float(per_byte) == pytest.approx(2 / SIZES.prod() / bandwidth)
