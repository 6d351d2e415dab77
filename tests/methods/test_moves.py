"""The prior and the moves that methods share."""

import dataclasses

import jax
import numpy as np

from lts.cost.features import INHERIT_SHARE
from lts.methods.moves import NUM_UNIFORMS, live_genes, quick_key
from lts.methods.moves import move as eager_move
from lts.methods.moves import sample_prior as eager_prior


def sample_prior(space, key, count):
    return jax.jit(lambda key: eager_prior(space, key, count))(key)


def move(space, uniforms, picks):
    return jax.jit(lambda *args: eager_move(space, *args))(uniforms, picks)


def test_prior_inherits_as_often_as_it_says(decoder, key):
    space = decoder.space
    picks = np.asarray(sample_prior(space, quick_key(key), 4000))
    overrides = picks[space.first_override :]
    uniform = (1 / space.cardinalities[space.first_override :]).mean()
    expected = INHERIT_SHARE + (1 - INHERIT_SHARE) * uniform
    # 4000 x about 100 draws: a standard error of 0.0003
    assert abs((overrides == 0).mean() - expected) < 0.0015
    role = space.first_role
    counts = np.bincount(picks[role], minlength=space.cardinalities[role])
    # 4000 draws over a handful of values: a standard error below 35
    assert abs(counts - 4000 / space.cardinalities[role]).max() < 140


def test_a_move_changes_one_gene_or_swaps_two_roles(decoder, key):
    space = decoder.space
    prior_key, move_key = jax.random.split(quick_key(key))
    before = np.asarray(sample_prior(space, prior_key, 500))
    uniforms = jax.random.uniform(move_key, (NUM_UNIFORMS, 500))
    after = np.asarray(move(space, uniforms, before))
    changed = before != after
    assert ((0 <= after) & (after < space.cardinalities[:, None])).all()
    assert set(changed.sum(0)) <= {0, 1, 2}
    assert (changed.sum(0) > 0).mean() > 0.95
    levels = np.array([gene.kind for gene in space.genes])
    assert {"degrees", "role", "override"} == set(levels[changed.any(1)])
    for i in np.flatnonzero(changed.sum(0) == 2):
        here, there = np.flatnonzero(changed[:, i])
        assert space.genes[here].owner == space.genes[there].owner
        assert levels[here] == levels[there] == "role"
        assert before[here, i] == after[there, i] and before[there, i] == after[here, i]
    # of a swap one axis may have size 1: the role then comes from there or goes there
    live = np.asarray(live_genes(space, before[0]))
    assert (live & changed).any(0)[changed.any(0)].all()
    alone = changed & (changed.sum(0) == 1)
    assert live[alone].all()


def test_pinned_genes_keep_their_value(decoder, key):
    pin = decoder.space.first_override
    space = dataclasses.replace(decoder.space, pinned=((pin, 1),))
    prior_key, move_key = jax.random.split(quick_key(key))
    picks = sample_prior(space, prior_key, 300)
    assert (np.asarray(picks)[pin] == 1).all()
    uniforms = jax.random.uniform(move_key, (NUM_UNIFORMS, 300))
    assert (np.asarray(move(space, uniforms, picks))[pin] == 1).all()


def test_quick_key_takes_old_and_new_keys(key):
    old = quick_key(jax.random.key_data(key))
    np.testing.assert_array_equal(
        jax.random.uniform(old, (3,)), jax.random.uniform(quick_key(key), (3,))
    )
