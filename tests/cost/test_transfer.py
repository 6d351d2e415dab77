"""KV transfer by hand: what a GPU sends and receives, over which link."""

import numpy as np
import pytest

from lts.cost.transfer import (
    Receiver,
    cache_bytes,
    link_between,
    receiver_of,
    transfer_s,
)
from lts.degrees import by_hand
from lts.hardware import Cluster
from lts.models import Decoder, kv_bytes_per_token
from lts.pools.prepare import prepare_pools
from lts.prepare import Prepared
from lts.problem import zoo_problem
from lts.workload import Workload
from tests.tiny import PRICED

CLUSTER = Cluster.parse("h100:2x8")
LINK = CLUSTER.inter


def seconds(prompts: int, receiver: Receiver | None) -> float:
    """Of prompts of 800 bytes, sent by four GPUs."""
    (found,) = transfer_s(np.array([prompts]), 800.0, 4, receiver, LINK)
    return float(found)


def expected(nbytes: float) -> float:
    latency_s = LINK.latency_s + LINK.hop_latency_s
    return latency_s + nbytes / LINK.bandwidth_bytes_per_s


def receiver(nbytes: float, ways: int) -> Receiver:
    return Receiver(nbytes=np.array([nbytes]), ways=np.array([ways]))


def test_senders_share_what_they_send() -> None:
    assert seconds(6, None) == pytest.approx(expected(6 * 800 / 4))
    # a receiver of less does not matter
    assert seconds(6, receiver(100, 1)) == pytest.approx(expected(6 * 200))


def test_a_receiver_that_keeps_more_takes_longer() -> None:
    # each of its GPUs keeps all heads
    assert seconds(6, receiver(800, 1)) == pytest.approx(expected(6 * 800))


def test_prompts_are_spread_over_groups_of_the_receiver_as_wholes() -> None:
    # six prompts over four groups: one group gets two
    assert seconds(6, receiver(800, 4)) == pytest.approx(expected(2 * 800))
    # one prompt goes to one group: nobody helps
    assert seconds(1, receiver(800, 4)) == pytest.approx(expected(800))


def test_caches_of_different_layouts_add_up() -> None:
    both = Receiver(nbytes=np.array([300.0, 500.0]), ways=np.array([1, 4]))
    assert seconds(6, both) == pytest.approx(expected(6 * 300 + 2 * 500))


@pytest.mark.parametrize(
    "prefill, decode, link",
    [(4, 4, "intra"), (1, 2, "intra"), (8, 4, "inter"), (4, 8, "inter")],
)
def test_instances_that_fit_in_a_node_together_use_its_link(
    prefill: int, decode: int, link: str
) -> None:
    assert link_between(prefill, decode, CLUSTER) == getattr(CLUSTER, link)


@pytest.fixture(scope="module")
def decode() -> Prepared:
    """A pool of instances of 4 GPUs, whose requests have 96 tokens."""
    workload = Workload(64, 32)
    problem = zoo_problem(Decoder(config=PRICED), workload)
    pools = prepare_pools(
        {"prefill": problem, "decode": problem},
        workload,
        Cluster.parse("h100:1x8"),
        sizes={"prefill": 4, "decode": 4},
    )
    return pools["decode"]


REQUEST_BYTES = 96 * kv_bytes_per_token(PRICED)


def test_the_cache_of_a_request_is_that_of_its_tokens(decode: Prepared) -> None:
    assert cache_bytes(decode.evaluator.tables) == pytest.approx(REQUEST_BYTES)


@pytest.mark.parametrize(
    "degrees, parts, ways",
    [
        ({"tp": 4}, 4, 1),  # four KV heads, one each
        ({"dp": 4}, 1, 4),
        ({"tp": 2, "dp": 2}, 2, 2),
        ({"tp": 2, "pp": 2}, 4, 1),  # half of the heads of half of the layers
        ({"dp": 2, "pp": 2}, 2, 2),
    ],
)
def test_a_gpu_receives_the_part_that_its_layout_keeps(
    decode: Prepared, degrees: dict[str, int], parts: int, ways: int
) -> None:
    picks = by_hand(decode.space, degrees)
    found = receiver_of(decode.evaluator.tables, picks, share=64 / 96)
    assert found.ways.tolist() == [ways] * len(found.ways)
    assert found.nbytes.sum() == pytest.approx(REQUEST_BYTES * 64 / 96 / parts)
