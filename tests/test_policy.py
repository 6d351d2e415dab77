"""The policy allows what it should, starts from copy and prior, and hides elites."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lts.cost.features import INHERIT_SHARE, GeneFeatures, gene_features
from lts.elite import Elites, empty_elites, insert
from lts.hardware import Cluster
from lts.policy import (
    PRIOR_SHARE,
    ElitePolicy,
    Reading,
    init_policy,
    log_policy,
    log_probability,
    sample,
)
from tests.methods.problems import plain_evaluator, small_decoder

POLICY = ElitePolicy()
CAPACITY = 4


@pytest.fixture(scope="module")
def features() -> GeneFeatures:
    """An MLP on 2 x 3 GPUs: 3 divides no dim, 2 does."""
    shapes = [(16, 32), (32, 64), (64, 32)]
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    evaluator = plain_evaluator(
        lambda x, up, down: jax.nn.relu(x @ up) @ down, args, Cluster.parse("h100:2x3")
    )
    return gene_features(evaluator.tables)


@pytest.fixture(scope="module")
def params(features):
    return jax.jit(lambda key: init_policy(features, POLICY, key))(jax.random.key(1))


def reading(count: int, elites: Elites) -> Reading:
    return Reading(
        focus=jnp.zeros((count, CAPACITY)),
        visible=jnp.broadcast_to(elites.filled[None], (count, CAPACITY)),
        temperature=jnp.ones(count),
    )


@pytest.fixture(scope="module")
def empty(features) -> Elites:
    return empty_elites(features.space.num_genes, CAPACITY)


@pytest.fixture(scope="module")
def drawn(features, params, empty):
    """64 draws and their log probabilities; the tests read a few of them."""
    found = jax.jit(
        lambda key: sample(features, POLICY, params, key, empty, reading(64, empty))
    )(jax.random.key(2))
    return jax.tree.map(np.asarray, found)


@pytest.fixture(scope="module")
def chances(features, params):
    """A function: probabilities and allowed values of three candidates."""

    @jax.jit
    def found(picks, elites, how):
        logits = log_policy(features, POLICY, params, picks, elites, how)
        return jnp.exp(logits), features.allowed(picks, features.meanings(picks))

    return lambda *args: [np.asarray(x) for x in found(*args)]


def test_axes_that_divide_nothing_are_left_alone(features, drawn):
    picks, _ = drawn
    sizes = features.space.sizes[0]
    for i, gene in enumerate(features.space.genes[1:], start=1):
        if sizes[gene.axis] == 2:
            continue
        allowed = picks[i] == 0
        assert allowed.all(), gene
    dead = [i for i, g in enumerate(features.space.genes) if sizes[g.axis] == 2]
    assert (picks[dead[1:]] > 0).any()


def test_draws_are_canonical_and_decode_differently(features, drawn):
    picks, _ = drawn
    np.testing.assert_array_equal(jax.jit(features.canonical)(picks), picks)
    distinct = np.unique(picks, axis=1)
    plans = {
        (int(p[0]), *features.space.choices(p).tolist(), *p[1:4].tolist())
        for p in distinct.T
    }
    assert len(plans) == distinct.shape[1]


def test_canonical_candidates_have_the_same_effect(features):
    space = features.space
    rng = np.random.default_rng(0)
    shape = (space.num_genes, 200)
    picks = (rng.random(shape) * space.cardinalities[:, None]).astype(np.int32)
    canonical = np.asarray(jax.jit(features.canonical)(picks))
    assert (canonical != picks).any()
    for before, after in zip(picks.T, canonical.T, strict=True):
        np.testing.assert_array_equal(space.choices(before), space.choices(after))


def test_log_probability_is_that_of_the_draw(features, params, empty, drawn):
    picks, log_probs = drawn
    again, entropy = jax.jit(
        lambda picks: log_probability(
            features, POLICY, params, picks, empty, reading(64, empty)
        )
    )(picks)
    np.testing.assert_allclose(again, log_probs, atol=1e-5)
    assert (np.asarray(entropy) >= -1e-6).all()


def test_without_elites_an_untrained_policy_is_the_prior(
    features, empty, drawn, chances
):
    chance, allowed = chances(drawn[0][:, :3], empty, reading(3, empty))
    assert (chance[~allowed] == 0).all()
    np.testing.assert_allclose(chance.sum(-1), 1.0, atol=1e-5)
    open_ = allowed.sum(-1) > 1
    override = open_ & (features.levels == 2)[None]
    np.testing.assert_allclose(chance[override][:, 0], INHERIT_SHARE, atol=1e-5)
    role = open_ & (features.levels == 1)[None]
    np.testing.assert_allclose(chance[role][:, 0], 1 / allowed[role].sum(-1), atol=1e-5)


def test_an_untrained_policy_copies_the_elite_that_it_may_see(
    features, empty, drawn, chances
):
    space = features.space
    picks = drawn[0][:, :3]
    rule = {"num_basin_genes": space.first_override, "quota": 2}
    one = insert(empty, picks[:, :1], jnp.array([1.0]), **rule)
    chance, allowed = chances(picks, one, reading(3, one))
    role = np.flatnonzero((allowed[0].sum(-1) > 1) & (features.levels == 1))
    assert len(role)
    own, count = picks[role, 0], allowed[0, role].sum(-1)
    expected = 1 - PRIOR_SHARE + PRIOR_SHARE / count
    np.testing.assert_allclose(chance[0, role, own], expected, atol=1e-5)

    hidden = reading(3, one)._replace(visible=jnp.zeros((3, CAPACITY), bool))
    blind, _ = chances(picks, one, hidden)
    np.testing.assert_allclose(blind[0, role, own], 1 / count, atol=1e-5)


def test_pinned_genes_have_one_value():
    decoder = small_decoder()
    pin = decoder.space.first_override
    space = dataclasses.replace(decoder.space, pinned=((pin, 2),))
    features = gene_features(dataclasses.replace(decoder.tables, space=space))
    picks = jnp.zeros((space.num_genes, 2), jnp.int32)
    allowed = jax.jit(lambda p: features.allowed(p, features.meanings(p)))(picks)
    assert np.flatnonzero(allowed[0, pin]).tolist() == [2]
    assert np.asarray(jax.jit(features.canonical)(picks))[pin].tolist() == [2, 2]


def test_features_are_finite_and_bounded():
    features = gene_features(small_decoder().tables)
    for array in (features.choice, features.decision):
        assert np.isfinite(array).all() and np.abs(array).max() <= 3.0
