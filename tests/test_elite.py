"""The elite buffer on cases small enough to write down."""

import jax
import jax.numpy as jnp
import numpy as np

from lts.elite import empty_elites, fingerprints, repeats
from lts.elite import insert as eager_insert

insert = jax.jit(eager_insert, static_argnames=("num_basin_genes", "quota"))
RULE = {"num_basin_genes": 1, "quota": 2}


def buffer(rows, fitness, capacity=4):
    return insert(
        empty_elites(2, capacity), jnp.array(rows).T, jnp.array(fitness), **RULE
    )


def held(elites):
    count = int(elites.filled.sum())
    assert not np.asarray(elites.filled)[count:].any()
    picks = np.asarray(elites.picks).T.tolist()[:count]
    return list(zip(picks, np.asarray(elites.fitness).tolist()[:count], strict=True))


def test_best_come_first_and_the_rest_is_empty():
    found = buffer([[0, 1], [1, 1], [2, 1]], [1.0, 3.0, 2.0])
    assert held(found) == [([1, 1], 3.0), ([2, 1], 2.0), ([0, 1], 1.0)]


def test_capacity_drops_the_worst():
    found = buffer([[i, 0] for i in range(6)], [1.0, 6.0, 2.0, 5.0, 3.0, 4.0])
    assert [fitness for _, fitness in held(found)] == [6.0, 5.0, 4.0, 3.0]


def test_equal_candidates_are_held_once():
    found = buffer([[0, 1], [0, 1], [1, 0]], [2.0, 2.0, 1.0])
    found = insert(found, jnp.array([[0, 1]]).T, jnp.array([2.0]), **RULE)
    assert held(found) == [([0, 1], 2.0), ([1, 0], 1.0)]


def test_a_basin_has_its_quota():
    found = buffer([[0, 1], [0, 2], [0, 3], [1, 0]], [4.0, 3.0, 2.0, 1.0])
    assert held(found) == [([0, 1], 4.0), ([0, 2], 3.0), ([1, 0], 1.0)]


def test_repeats_do_not_use_up_the_quota():
    found = buffer([[0, 1], [0, 1], [0, 2]], [4.0, 4.0, 3.0])
    assert held(found) == [([0, 1], 4.0), ([0, 2], 3.0)]


def test_nan_and_unscored_are_never_held():
    found = buffer([[0, 1], [1, 1], [2, 2]], [float("nan"), -jnp.inf, -150.0])
    assert held(found) == [([2, 2], -150.0)]


def test_of_equal_fitness_the_first_found_stays():
    found = buffer([[i, 0] for i in range(4)], [1.0] * 4)
    found = insert(found, jnp.array([[9, 9]]).T, jnp.array([1.0]), **RULE)
    assert [picks for picks, _ in held(found)] == [[i, 0] for i in range(4)]


def test_fingerprints_tell_permuted_and_neighbouring_candidates_apart():
    picks = np.indices((8, 8, 8)).reshape(3, -1)
    hashes = fingerprints(jnp.asarray(picks))
    assert not np.asarray(repeats(hashes)).any()
    # the two words are different hashes, each good by itself
    assert all(len(set(word)) == picks.shape[1] for word in np.asarray(hashes).tolist())
    twice = jnp.concatenate([hashes[:, :3], hashes[:, :3]], axis=1)
    assert np.asarray(repeats(twice)).tolist() == [False] * 3 + [True] * 3
