"""The steady-state formulas against sums by hand, and the same in NumPy and JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lts.cost.profile import Profile
from lts.cost.served_step import CLASSES
from lts.cost.steady import (
    SPREAD_SHARE,
    Depth,
    alone_s,
    at_once_tokens_per_s,
    capacity,
    closed_tokens_per_s,
    decode_step_s,
    launches_s,
    prompt_s,
    tpot_s,
    ttft_s,
    weighted_s,
)

PROFILE = Profile(
    gemm=2.0,
    attention=3.0,
    moe=5.0,
    all_reduce=7.0,
    dispatch=11.0,
    prefill=0.5,
    layer_s=1e-5,
    expert_layer_s=2e-5,
    step_s=1e-3,
    sequence_s=1e-4,
    prompt_s=2e-3,
    handover_s=1e-5,
    host_s=0.1,
    alone=1.5,
    waiting=0.25,
    running=2.0,
    saturation_s=0.01,
)
DEPTH = Depth(layers=10.0, expert_layers=4.0, expert_doublings=3.0)
TIMES = np.array([1e-3, 2e-3, 3e-3, 4e-3, 5e-3, 6e-3, 7e-3])


def test_classes_have_their_factors() -> None:
    assert CLASSES[5:] == ("lm_head", "elementwise")
    assert weighted_s(TIMES, PROFILE) == pytest.approx(
        1e-3 * (1 * 2 + 2 * 3 + 3 * 5 + 4 * 7 + 5 * 11 + 6 * 2 + 7)
    )


def test_layers_with_experts_launch_more() -> None:
    assert launches_s(DEPTH, PROFILE) == pytest.approx(
        1e-5 * 10 + 2e-5 * 4 * (1 + 3 * SPREAD_SHARE)
    )


def test_a_step_of_a_pipeline_pays_for_handing_over() -> None:
    launches = launches_s(DEPTH, PROFILE)
    base = 0.125 + launches + 1e-3 + 1e-4 * 8
    assert decode_step_s(TIMES, 8.0, 32.0, 1.0, DEPTH, PROFILE) == pytest.approx(base)
    assert decode_step_s(TIMES, 8.0, 32.0, 4.0, DEPTH, PROFILE) == pytest.approx(
        base + 1e-5 * 32 * 3 / 4
    )


def test_prompts_overlap_over_stages_but_one_alone_does_not() -> None:
    launches = launches_s(DEPTH, PROFILE)
    one = prompt_s(TIMES, 1.0, DEPTH, PROFILE)
    assert one == pytest.approx(0.5 * (0.125 + launches + 2e-3))
    assert prompt_s(TIMES, 4.0, DEPTH, PROFILE) == pytest.approx(one / 4)
    assert alone_s(TIMES, DEPTH, PROFILE) == pytest.approx(
        0.5 * (0.125 + launches + 1e-3)
    )


def test_others_prompts_are_read_between_tokens() -> None:
    assert tpot_s(0.01, 0.1, 1.0, 101.0) == pytest.approx(0.01)
    assert tpot_s(0.01, 0.1, 11.0, 101.0) == pytest.approx(0.02)
    assert tpot_s(0.01, 0.1, 11.0, 1.0) == pytest.approx(1.01)


def test_time_to_first_token_waits_for_host_prompts_and_a_full_front_end() -> None:
    found = ttft_s(0.2, 0.05, 0.01, 8.0, 2e4, PROFILE)
    assert found == pytest.approx(
        0.1 + 1.5 * 0.2 + 0.25 * 8 * 0.05 + 2 * 0.01 + 0.01 * 16
    )


def test_requests_sent_at_once_run_in_waves() -> None:
    # 2 full batches of 40 and a last one of 20
    rate = at_once_tokens_per_s(0.02, 0.015, 0.1, 2.0, 20.0, 100.0, 50.0)
    assert rate == pytest.approx(100 * 50 / (100 * 0.1 + 50 * (2 * 0.02 + 0.015)))
    whole = at_once_tokens_per_s(0.02, 0.015, 0.1, 2.0, 0.0, 80.0, 50.0)
    assert whole == pytest.approx(80 * 50 / (80 * 0.1 + 50 * 2 * 0.02))


def test_capacity_is_of_all_replicas_and_at_least_one() -> None:
    assert capacity(np.array(10e9), 1e9, 4.0) == pytest.approx(40)
    assert capacity(np.array(0.0), 1e9, 4.0) == pytest.approx(1)
    assert closed_tokens_per_s(0.02, 8.0, 101.0) == pytest.approx(404)


def test_jitted_jax_gives_what_numpy_gives() -> None:
    batch = np.array([1.0, 3.0, 40.0])

    def served(times, batch):
        decode = decode_step_s(times, batch, batch, 2.0, DEPTH, PROFILE)
        prompt = prompt_s(times, 2.0, DEPTH, PROFILE)
        tpot = tpot_s(decode, prompt, batch, 100.0)
        rate = closed_tokens_per_s(tpot, batch, 100.0)
        alone = alone_s(times, DEPTH, PROFILE)
        waves = capacity(batch, 2.0, 1.0)
        return (
            ttft_s(alone, prompt, decode, batch, rate, PROFILE),
            tpot,
            at_once_tokens_per_s(decode, decode, prompt, waves, batch, 100.0, 9.0),
        )

    times = np.tile(TIMES, (3, 1))
    plain = served(times, batch)
    jitted = jax.jit(served)(jnp.asarray(times), jnp.asarray(batch))
    for one, two in zip(plain, jitted, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5)
