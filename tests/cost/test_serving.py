"""From step times to TTFT, TPOT and throughput, by hand."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lts.cost.serving import (
    IMPOSSIBLE,
    LEAST_STEP_S,
    Outcome,
    Priced,
    Step,
    colocated_outcome,
    decode_outcome,
    outcome_of,
    plain_outcome,
    prefill_outcome,
)
from lts.workload import Workload

USABLE, GPUS = 1000.0, 8


def step(times: Any, batches: Any, active: float = 0.0) -> Step:
    """One candidate per row."""
    time_s = np.asarray(times, np.float32)
    return Step(
        time_s=jnp.asarray(time_s),
        activation_bytes=jnp.asarray(np.full(time_s.shape, active, np.float32)),
        batches=jnp.asarray(np.asarray(batches, np.int32)),
    )


def colocated(
    decode: Step, prefill: Step, workload: Workload, **kwargs: Any
) -> Outcome:
    count = len(decode.time_s)
    given = {"weights": 0.0, "cache": 0.0, "stages": 1, **kwargs}
    price = jax.jit(  # one compilation in place of one per operation
        functools.partial(
            colocated_outcome, workload=workload, num_gpus=GPUS, usable_bytes=USABLE
        )
    )
    return price(
        decode,
        prefill,
        np.full(count, given["weights"], np.float32),
        np.full(count, given["cache"], np.float32),
        np.full(count, given["stages"]),
    )


def test_one_batch_follows_the_formula() -> None:
    workload = Workload(input_len=100, output_len=11)
    found = colocated(step([[0.02]], [[4]]), step([[0.3]], [[2]]), workload, stages=2)
    in_flight, prompt_s = 4 * 2, 0.3 / (2 * 2)
    cycle_s = 10 * 0.02 + in_flight * prompt_s
    assert float(found.ttft_s[0]) == pytest.approx(0.32)
    assert float(found.tpot_s[0]) == pytest.approx(0.02 + 7 / 10 * prompt_s)
    assert float(found.objective[0]) == pytest.approx(in_flight * 11 / cycle_s / GPUS)
    assert float(found.concurrency[0]) == in_flight
    assert float(found.step_time_s[0]) == pytest.approx(0.02)
    assert float(found.violation[0]) == 0


def test_one_generated_token_needs_no_further_steps() -> None:
    workload = Workload(input_len=100, output_len=1)
    found = colocated(step([[0.02]], [[4]]), step([[0.3]], [[2]]), workload)
    assert float(found.objective[0]) == pytest.approx(4 / (4 * 0.3 / 2) / GPUS)
    assert np.isfinite(float(found.tpot_s[0]))


def test_peak_is_weights_and_caches_and_the_wider_phase() -> None:
    workload = Workload(input_len=100, output_len=11)
    found = colocated(
        step([[0.02]], [[4]], active=30),
        step([[0.3]], [[2]], active=50),
        workload,
        weights=100,
        cache=7,
        stages=2,
    )
    assert float(found.peak_bytes[0]) == 100 + 7 * 8 + 50


def test_the_best_batch_within_the_limits_is_chosen() -> None:
    decode = step([[0.010, 0.012, 0.030]], [[1, 4, 16]])
    prefill = step([[0.1, 0.15]], [[1, 4]])
    free = Workload(input_len=100, output_len=101)
    found = colocated(decode, prefill, free)
    assert [int(place[0]) for place in found.places] == [2, 1]
    tight = Workload(input_len=100, output_len=101, tpot_ms=15)
    found = colocated(decode, prefill, tight)
    assert [int(place[0]) for place in found.places] == [1, 1]
    assert float(found.violation[0]) == 0
    quick = Workload(input_len=100, output_len=101, ttft_ms=135)
    found = colocated(decode, prefill, quick)
    assert [int(place[0]) for place in found.places] == [2, 0]


def test_no_more_prompts_are_read_at_once_than_are_in_flight() -> None:
    workload = Workload(input_len=100, output_len=11)
    found = colocated(step([[0.02]], [[2]]), step([[0.1, 0.1]], [[2, 8]]), workload)
    assert int(found.places[1][0]) == 0


def test_a_miss_is_the_sum_of_the_overshoots() -> None:
    workload = Workload(input_len=100, output_len=11, ttft_ms=160, tpot_ms=10)
    found = colocated(
        step([[0.02]], [[1]]), step([[0.3]], [[1]]), workload, weights=2000
    )
    expected = np.log(2000 / USABLE) + np.log(0.32 / 0.16) + np.log(0.02 / 0.01)
    assert float(found.violation[0]) == pytest.approx(expected, rel=1e-5)


def test_the_nearest_miss_is_found_to_full_precision() -> None:
    workload = Workload(input_len=100, output_len=11, tpot_ms=10)
    times = [[0.0202, 0.0201, 0.0203]]
    found = colocated(step(times, [[1, 1, 1]]), step([[0.0]], [[1]]), workload)
    assert int(found.places[0][0]) == 1
    assert float(found.violation[0]) == pytest.approx(np.log(2.01), rel=1e-5)


def test_any_feasible_batch_is_better_than_a_near_miss() -> None:
    workload = Workload(input_len=100, output_len=101, tpot_ms=20)
    found = colocated(
        step([[0.019, 0.0201]], [[1, 64]]), step([[0.0]], [[1]]), workload
    )
    assert int(found.places[0][0]) == 0
    assert float(found.violation[0]) == 0


@pytest.mark.parametrize("output_len", [1, 2, 100])
def test_batches_that_do_not_divide_are_impossible_and_never_nan_feasible(
    output_len: int,
) -> None:
    workload = Workload(input_len=100, output_len=output_len)
    inf = np.inf
    decode = step([[inf, 0.02], [inf, inf], [0.02, 0.03]], [[1, 2]] * 3)
    prefill = step([[inf, 0.3], [0.1, 0.2], [inf, inf]], [[1, 2]] * 3)
    found = colocated(decode, prefill, workload)
    assert [float(x) == 0 for x in found.violation] == [True, False, False]
    assert not np.isnan(np.asarray(found.violation)).any()
    assert np.isfinite(float(found.objective[0]))
    assert (np.asarray(found.violation)[1:] >= IMPOSSIBLE).all()


def test_prefill_alone_reads_input_tokens() -> None:
    workload = Workload(input_len=100, ttft_ms=500)
    found = prefill_outcome(
        step([[0.1, 0.4, 0.9]], [[1, 8, 32]], active=5),
        jnp.array([100.0]),
        jnp.array([3.0]),
        jnp.array([2]),
        workload,
        GPUS,
        USABLE,
    )
    assert int(found.places[0][0]) == 1  # the largest misses the limit
    assert float(found.objective[0]) == pytest.approx(16 * 100 / 0.4 / GPUS)
    assert float(found.ttft_s[0]) == pytest.approx(0.4)
    assert float(found.peak_bytes[0]) == 100 + 5 + 3 * 16
    assert np.isnan(float(found.tpot_s[0]))


def test_a_prefill_pool_counts_the_tokens_of_the_prompts_that_it_reads() -> None:
    workload = Workload(input_len=100, output_len=11, ttft_ms=500)
    found = prefill_outcome(
        step([[0.1, 0.4]], [[1, 8]]),
        jnp.array([0.0]),
        jnp.array([0.0]),
        jnp.array([2]),
        workload,
        jnp.array([4]),
        USABLE,
        jnp.array([[0.01, 0.02]]),
    )
    # two stages: a call starts whenever the first is free
    assert float(found.objective[0]) == pytest.approx(2 * 8 / 0.4 * 11 / 4)
    assert float(found.ttft_s[0]) == pytest.approx(0.42)


def test_a_transfer_longer_than_a_call_is_what_limits_prefill() -> None:
    workload = Workload(input_len=100, output_len=11)
    found = prefill_outcome(
        step([[0.4]], [[8]]),
        jnp.array([0.0]),
        jnp.array([0.0]),
        jnp.array([2]),
        workload,
        jnp.array([4]),
        USABLE,
        jnp.array([[0.3]]),
    )
    assert float(found.objective[0]) == pytest.approx(8 / 0.3 * 11 / 4)
    assert float(found.ttft_s[0]) == pytest.approx(0.7)


def test_a_transfer_can_miss_the_limit_where_prefill_alone_does_not() -> None:
    workload = Workload(input_len=100, output_len=11, ttft_ms=500)
    found = prefill_outcome(
        step([[0.1, 0.4]], [[1, 8]]),
        jnp.array([0.0]),
        jnp.array([0.0]),
        jnp.array([1]),
        workload,
        jnp.array([4]),
        USABLE,
        jnp.array([[0.05, 0.2]]),
    )
    assert int(found.places[0][0]) == 0
    assert float(found.violation[0]) == 0


def decoding(times: Any, batches: Any, workload: Workload, **given: Any) -> Outcome:
    return decode_outcome(
        step(times, batches, active=given.get("active", 0.0)),
        jnp.array([given.get("weights", 0.0)]),
        jnp.array([given.get("cache", 0.0)]),
        jnp.array([given.get("stages", 1)]),
        workload,
        jnp.array([given.get("gpus", 1)]),
        USABLE,
    )


def test_a_decode_pool_follows_the_formula() -> None:
    workload = Workload(input_len=100, output_len=11)
    found = decoding([[0.02]], [[4]], workload, stages=2, gpus=4)
    in_flight = 4 * 2
    requests_per_s = in_flight / (10 * 0.02)
    assert float(found.objective[0]) == pytest.approx(requests_per_s * 11 / 4)
    assert float(found.tpot_s[0]) == pytest.approx(0.02)
    assert float(found.concurrency[0]) == in_flight
    assert np.isnan(float(found.ttft_s[0]))


def test_a_decode_pool_takes_the_largest_batch_within_tpot_and_memory() -> None:
    times, batches = [[0.010, 0.012, 0.014, 0.030]], [[1, 4, 8, 16]]
    tight = Workload(input_len=100, output_len=101, tpot_ms=15)
    found = decoding(times, batches, tight)
    assert int(found.places[0][0]) == 2
    full = {"weights": 400.0, "cache": 100.0, "active": 50.0}
    found = decoding(times, batches, tight, **full)
    assert int(found.places[0][0]) == 1  # eight caches would need 1250 bytes
    assert float(found.peak_bytes[0]) == 400 + 100 * 4 + 50
    impossible = Workload(input_len=100, output_len=101, tpot_ms=5)
    found = decoding(times, batches, impossible)
    assert float(found.violation[0]) == pytest.approx(np.log(2), rel=1e-5)


def test_what_is_priced_says_how_it_is_served() -> None:
    workload = Workload(input_len=100, output_len=11)
    decode, prefill = step([[0.02]], [[4]]), step([[0.3]], [[2]])
    zero, one = jnp.array([0.0]), jnp.array([1])

    def outcome(steps: dict[str, Step], work: Workload | None = workload) -> float:
        priced = Priced(
            steps=steps,
            held_bytes=zero,
            weight_bytes=zero,
            cache_bytes=zero,
            stages=one,
            num_gpus=one,
        )
        return float(outcome_of(priced, work, USABLE).objective[0])

    both = {"prefill": prefill, "decode": decode}
    assert outcome(both) == pytest.approx(4 * 11 / (10 * 0.02 + 4 * 0.3 / 2))
    assert outcome({"prefill": prefill}) == pytest.approx(2 / 0.3 * 11)
    assert outcome({"decode": decode}) == pytest.approx(4 / (10 * 0.02) * 11)
    assert outcome({"step": prefill}, None) == pytest.approx(1 / 0.3)


def test_a_plain_function_is_scored_by_its_step() -> None:
    found = plain_outcome(
        [step([[0.25], [np.inf], [0.0]], [[1]] * 3, active=10)],
        jnp.array([5.0, 5.0, 2000.0]),
        USABLE,
    )
    assert float(found.objective[0]) == 4
    assert float(found.peak_bytes[0]) == 15
    assert float(found.violation[0]) == 0
    assert float(found.violation[1]) == IMPOSSIBLE
    assert float(found.violation[2]) == pytest.approx(np.log(2010 / 1000), rel=1e-5)
    assert float(found.objective[2]) == pytest.approx(1 / LEAST_STEP_S)
