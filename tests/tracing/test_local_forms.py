"""Ops that run on each device's part: outputs are right, and nothing is gathered."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.tracing.forced import Forced


def normal(*shape: int, seed: int = 0) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def definite(count: int, size: int) -> jax.Array:
    x = normal(count, size, size)
    return x @ jnp.swapaxes(x, -1, -2) + size * jnp.eye(size)[None]


def triangular(count: int, size: int) -> jax.Array:
    return jnp.tril(normal(count, size, size)) + size * jnp.eye(size)[None]


def grouped(x: jax.Array, kernel: jax.Array) -> jax.Array:
    groups = x.shape[1] // kernel.shape[1]
    return lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", feature_group_count=groups
    )


IMAGES, KERNEL = normal(4, 24, 6, 6), normal(40, 3, 3, 3, seed=1)

CASES: dict[str, tuple[Any, tuple[Any, ...], dict[int, int], set[str]]] = {
    "fft": (lambda x: jnp.abs(jnp.fft.fft(x)), (normal(8, 12),), {8: 8}, set()),
    "fft_of_two_dims": (
        lambda x: jnp.abs(jnp.fft.rfft2(x)),
        (normal(8, 6, 12),),
        {4: 8},
        set(),
    ),
    "cholesky": (
        lambda x: lax.linalg.cholesky(x, symmetrize_input=False),
        (definite(8, 4),),
        {8: 8},
        set(),
    ),
    "qr": (lambda x: jnp.abs(jnp.linalg.qr(x)[1]), (normal(8, 4, 4),), {8: 8}, set()),
    "columns_of_a_triangular_solve": (
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
        (triangular(2, 4), normal(2, 4, 16)),
        {8: 16},
        set(),
    ),
    "top_k": (lambda x: lax.top_k(x, 3), (normal(8, 12),), {8: 8}, set()),
    "images_of_a_grouped_convolution": (
        grouped,
        (IMAGES, KERNEL),
        {4: 4},
        set(),
    ),
    "groups_of_a_grouped_convolution": (grouped, (IMAGES, KERNEL), {8: 8}, set()),
    "features_of_a_convolution": (
        lambda x, k: lax.conv_general_dilated(x, k, (1, 1), "SAME"),
        (IMAGES, normal(16, 24, 3, 3)),
        {8: 16},
        set(),
    ),
    "summed_features_of_a_convolution": (
        lambda x, k: lax.conv_general_dilated(x, k, (1, 1), "SAME"),
        (IMAGES, normal(16, 24, 3, 3)),
        {8: 24},
        {"all-reduce"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_split_op_gives_the_unsharded_output_and_gathers_nothing(name: str) -> None:
    function, args, sizes, collectives = CASES[name]
    forced = Forced(function, args, sizes)
    found = forced()
    expected = jax.tree.leaves(function(*args))
    for value, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=2e-4, atol=2e-4)
    assert any(not leaf.sharding.is_fully_replicated for leaf in forced.leaves)
    assert forced.collectives() == collectives


@pytest.mark.parametrize("name", ["fft", "cholesky", "top_k", "qr"])
def test_an_idle_mesh_axis_makes_nothing_gather(name: str) -> None:
    function, args, _, _ = CASES[name]
    nowhere = 1_000
    forced = Forced(function, args, {4: 8, 2: nowhere})
    for value, wanted in zip(forced(), jax.tree.leaves(function(*args)), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=2e-4, atol=2e-4)
    assert forced.collectives() == set()


def test_images_and_groups_of_a_convolution_may_be_split_at_once() -> None:
    forced = Forced(grouped, (IMAGES, KERNEL), {2: 4, 4: 8})
    (found,) = forced()
    np.testing.assert_allclose(found, grouped(IMAGES, KERNEL), rtol=2e-4, atol=2e-4)
    assert found.sharding.shard_shape(found.shape) == (2, 10, 6, 6)
    assert forced.collectives() == set()
