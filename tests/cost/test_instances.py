"""The split of a cluster into instances, against trying every one."""

import itertools

import numpy as np
import pytest

from lts.cost.instances import Split, best_split


def listed(
    prefill_per_s: np.ndarray,
    decode_per_s: np.ndarray,
    prefill_gpus: list[int],
    decode_gpus: list[int],
    num_gpus: int,
) -> tuple[float, int]:
    """Most requests/s of all splits, and the fewest GPUs of those."""
    best = (0.0, 0)
    for i, j in itertools.product(range(len(prefill_gpus)), range(len(decode_gpus))):
        for c_p, c_d in itertools.product(range(1, num_gpus + 1), repeat=2):
            used = c_p * prefill_gpus[i] + c_d * decode_gpus[j]
            if used > num_gpus:
                continue
            served = min(c_p * prefill_per_s[i, j], c_d * decode_per_s[j, c_d - 1])
            best = max(best, (served, -used))
    return best[0], -best[1]


@pytest.mark.parametrize("seed", range(12))
def test_the_best_split_is_that_of_the_whole_list(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_gpus = int(rng.integers(2, 25))
    gpus = [1, 2, 4, 8]
    prefill_per_s = rng.random((4, 4)) * np.array(gpus)[:, None]
    # of some kinds, the more instances the less each serves
    falling = 1 / (1 + rng.random((4, 1)) * np.arange(num_gpus))
    decode_per_s = rng.random((4, 1)) * np.array(gpus)[:, None] * falling
    prefill_per_s[rng.random((4, 4)) < 0.2] = 0
    decode_per_s[rng.random(decode_per_s.shape) < 0.1] = 0
    served, used = listed(prefill_per_s, decode_per_s, gpus, gpus, num_gpus)
    found = best_split(prefill_per_s, decode_per_s, gpus, gpus, num_gpus)
    assert (found is None) == (served == 0)
    if found is not None:
        assert found.requests_per_s == pytest.approx(served)
        own = found.prefill_instances * gpus[found.prefill]
        own += found.decode_instances * gpus[found.decode]
        assert used <= own <= num_gpus


def test_no_more_instances_than_the_slower_pool_needs() -> None:
    # one prefill instance reads for seven; decode has the other 7 GPUs
    found = best_split(np.array([[70.0]]), np.full((1, 8), 10.0), [1], [1], 8)
    assert found == Split(0, 0, 1, 7, 70.0)
    # prefill is slow: two decode instances would do for what six read
    found = best_split(np.array([[5.0]]), np.full((1, 8), 15.0), [1], [1], 8)
    assert found == Split(0, 0, 6, 2, 30.0)


def test_instances_that_have_no_room_together_serve_nothing() -> None:
    one = np.full((1, 16), 1.0)
    assert best_split(np.array([[1.0]]), one, [8], [16], 16) is None
    found = best_split(np.array([[1.0]]), one, [8], [8], 16)
    assert found == Split(0, 0, 1, 1, 1.0)


def test_the_harmonic_form_bounds_every_split() -> None:
    rng = np.random.default_rng(0)
    for num_gpus in (3, 8, 24):
        prefill, decode = rng.random((2, 3)) * np.array([1, 2, 4])
        per_s = np.repeat(decode[:, None], num_gpus, 1)
        reading = np.repeat(prefill[:, None], 3, 1)
        found = best_split(reading, per_s, [1, 2, 4], [1, 2, 4], num_gpus)
        assert found is not None
        best = [max(rates / np.array([1, 2, 4])) for rates in (prefill, decode)]
        bound = num_gpus / (1 / best[0] + 1 / best[1])
        assert found.requests_per_s <= bound * (1 + 1e-9)
