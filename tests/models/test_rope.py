"""Rotary frequencies under scaling, against what transformers 5.24 computes."""

import numpy as np
import pytest

from lts.models.rope import (
    LinearRope,
    Llama3Rope,
    RopeScaling,
    YarnRope,
    frequencies,
    yarn_mscale,
)

YARN_V3 = YarnRope(factor=40.0, original_max_position_embeddings=4096.0)
YARN_K2 = YarnRope(factor=32.0, original_max_position_embeddings=4096.0, beta_fast=1.0)
YARN_SHORT = YarnRope(factor=4.0, original_max_position_embeddings=1024.0)
YARN_OWN = YarnRope(
    factor=4.0, original_max_position_embeddings=32768.0, beta_fast=16.0
)
LLAMA = Llama3Rope(
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=8192.0,
)
STEP = Llama3Rope(
    factor=16.0,
    low_freq_factor=1.0,
    high_freq_factor=1.0,
    original_max_position_embeddings=8192.0,
)


@pytest.mark.parametrize(
    ("size", "theta", "scaling", "expected"),
    [
        (
            64,
            1e4,
            YARN_V3,  # DeepSeek-V3
            {14: 1.2447956e-2, 16: 5.5000004e-3, 19: 1.3705135e-3, 24: 2.5e-5},
        ),
        (
            64,
            5e4,
            YARN_K2,  # Kimi-K2: the ramp is one pair wide
            {16: 4.4721360e-3, 19: 1.6217600e-3, 24: 9.3459303e-6, 31: 8.7644128e-7},
        ),
        (
            32,
            1e6,
            YARN_SHORT,
            {4: 1.7392527e-2, 6: 1.4058533e-3, 8: 2.5000001e-4, 15: 5.9284343e-7},
        ),
        (
            128,
            1e6,
            YARN_OWN,
            {30: 1.2099423e-3, 32: 6.7857141e-4, 35: 2.7099418e-4, 63: 3.1023444e-7},
        ),
        (
            128,
            5e5,
            LLAMA,  # Llama 3.1
            {16: 3.7606031e-2, 30: 1.3718937e-3, 32: 5.2484602e-4, 63: 3.0689259e-7},
        ),
        (
            128,
            5e5,
            STEP,  # Llama 4 Scout: both bounds are one
            {30: 2.1311196e-3, 32: 1.4142134e-3, 35: 4.7781061e-5, 63: 1.5344629e-7},
        ),
    ],
)
def test_scaled_frequencies_are_those_of_the_published_code(
    size: int, theta: float, scaling: RopeScaling, expected: dict[int, float]
):
    found = frequencies(size, theta, scaling)
    assert found.shape == (size // 2,) and found.dtype == np.float32 and found[0] == 1.0
    places = list(expected)
    # The published code works in float32 throughout; ours rounds at the end.
    np.testing.assert_allclose(found[places], list(expected.values()), rtol=5e-7)


def test_plain_and_linear_frequencies_are_powers_of_the_base():
    plain = frequencies(8, 1e4, None)
    np.testing.assert_allclose(plain, [1.0, 0.1, 0.01, 0.001], rtol=1e-6)
    half = frequencies(8, 1e4, LinearRope(factor=2.0))
    np.testing.assert_allclose(half, plain / 2, rtol=1e-6)


def test_yarn_growth_is_a_tenth_of_the_logarithm():
    assert yarn_mscale(1.0) == yarn_mscale(0.5) == 1.0
    assert yarn_mscale(np.e) == pytest.approx(1.1)
    assert yarn_mscale(np.e, 0.707) == pytest.approx(1.0707)
