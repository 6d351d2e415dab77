"""The attention policy: which value each gene should take, given the elite buffer.

Genes are queries and elites are keys; what attention reads are the elites' own choices,
so that its result is a distribution over the values of the gene, the *copy*. It is
mixed with the prior, corrected by a small network that sees features of gene and choice,
and sampled level by level: degrees, roles, overrides, each given the levels before. All
inputs are features, so one set of weights serves any program and cluster.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from lts.cost.features import INHERIT_SHARE, LEVELS, GeneFeatures
from lts.elite import Elites

MASKED = -1e9
PRIOR_SHARE = 0.1
"""Weight of the prior beside the copy, before any training: how much is explored."""

_ELITE_BIAS = (-2.0, -1.0, 1.0, 4.0, 4.0)
"""First attention to an elite's rank, gap, feasibility, same degrees, same roles."""


class Reading(NamedTuple):
    """How each candidate reads the buffer, `[candidates, ...]`.

    Attributes:
      focus: added to the attention of all its genes to each elite, so that a candidate
        follows few elites and keeps together what they chose; `[candidates, elites]`.
      visible: elites that may be read; bool `[candidates, elites]`.
      temperature: above 1 the policy is drawn towards the prior; `[candidates]`.
    """

    focus: jax.Array
    visible: jax.Array
    temperature: jax.Array


class ElitePolicy(nn.Module):
    """Logits of the values of the genes of one level."""

    heads: int = 2
    width: int = 8
    hidden: int = 32

    @nn.compact
    def __call__(
        self,
        decision: jax.Array,  # [candidates, genes, decision features]
        choice: jax.Array,  # [candidates, genes, choices, choice features]
        allowed: jax.Array,  # [candidates, genes, choices]
        log_prior: jax.Array,  # [candidates, genes, choices]
        elites: jax.Array,  # [candidates, elites, elite features]
        chosen: jax.Array,  # [genes, elites, choices]  one-hot
        reading: Reading,
    ) -> jax.Array:
        """Logits `[candidates, genes, choices]`; `MASKED` where not allowed."""
        shape = (self.heads, self.width)
        query = nn.DenseGeneral(shape, name="query")(decision)
        key = nn.DenseGeneral(shape, name="key")(elites)
        bias = self.param("elite_bias", lambda _: jnp.array(_ELITE_BIAS))
        to_elite = (elites * bias).sum(-1) + reading.focus
        scores = jnp.einsum("bghk,behk->bghe", query, key) / np.sqrt(self.width)
        scores = scores + to_elite[:, None, None]
        visible = reading.visible[:, None, None]
        weights = nn.softmax(jnp.where(visible, scores, MASKED)) * visible
        copies = jnp.einsum("bghe,gec->bgch", weights, chosen)
        copies = copies * allowed[..., None]
        share = nn.sigmoid(
            self.param("prior_share", lambda _: jnp.log(PRIOR_SHARE / (1 - PRIOR_SHARE)))
        )
        mixed = (1 - share) * copies.mean(-1) + share * jnp.exp(log_prior)
        base = jnp.log(mixed + 1e-9)
        hidden = nn.Dense(self.hidden, name="of_gene")(decision)[..., None, :]
        facts = jnp.concatenate([choice, copies, base[..., None] / 5], axis=-1)
        hidden = nn.relu(hidden + nn.Dense(self.hidden, name="of_choice")(facts))
        change = nn.Dense(1, kernel_init=nn.initializers.zeros, name="out")(hidden)
        gain = base - log_prior + change[..., 0]
        logits = log_prior + gain / reading.temperature[:, None, None]
        return jnp.where(allowed, logits, MASKED)


def init_policy(features: GeneFeatures, policy: ElitePolicy, key: jax.Array):
    """Fresh weights; consumes `key`."""
    own = features.levels[0]
    _, genes, choices, facts = own.choice.shape
    values = jnp.zeros((1, genes, choices))
    return policy.init(
        key,
        jnp.zeros((1, genes, own.decision.shape[-1])),
        jnp.zeros((1, genes, choices, facts)),
        values > 0,
        values,
        jnp.zeros((1, 1, len(_ELITE_BIAS))),
        jnp.zeros((genes, 1, choices)),
        Reading(jnp.zeros((1, 1)), jnp.ones((1, 1), bool), jnp.ones(1)),
    )


def level_logits(
    features: GeneFeatures,
    policy: ElitePolicy,
    params,
    level: int,
    picks: jax.Array,
    elites: Elites,
    reading: Reading,
) -> jax.Array:
    """Logits of one level's genes given the levels before; log probabilities.

    Args:
      picks: int32 `[genes, candidates]`; genes of later levels are not read.

    Returns:
      `[candidates, level genes, choices]`.
    """
    own, degrees = features.levels[level], picks[0]
    if LEVELS[level] == "degrees":
        degrees = jnp.zeros_like(degrees)  # not chosen yet; all rows are alike
    allowed = features.allowed(level, picks)
    meanings = features.meanings(level, picks)
    choice = jnp.asarray(own.choice)[degrees]
    choice = jnp.take_along_axis(choice, meanings[..., None], axis=2)
    logits = policy.apply(
        params,
        jnp.asarray(own.decision)[degrees],
        choice,
        allowed,
        log_prior(level, allowed),
        _elite_features(features, level, picks, elites),
        jax.nn.one_hot(elites.picks[own.genes], own.num_choices),
        reading,
    )
    return jax.nn.log_softmax(logits)


def log_prior(level: int, allowed: jax.Array) -> jax.Array:
    """Log of the prior over allowed values; `MASKED` elsewhere."""
    count = allowed.sum(-1, keepdims=True)
    if LEVELS[level] != "override":
        return jnp.where(allowed, -jnp.log(count), MASKED)
    inherits = jnp.arange(allowed.shape[-1]) == 0
    others = jnp.log((1 - INHERIT_SHARE) / jnp.maximum(count - 1, 1))
    inherit = jnp.where(count > 1, np.log(INHERIT_SHARE), 0.0)
    return jnp.where(allowed, jnp.where(inherits, inherit, others), MASKED)


def _elite_features(
    features: GeneFeatures, level: int, picks: jax.Array, elites: Elites
) -> jax.Array:
    """Rank, gap, feasibility, same degrees, same roles; `[candidates, elites, 5]`."""
    capacity, count = len(elites.fitness), picks.shape[1]
    rank = jnp.arange(capacity) / capacity
    best = jnp.where(elites.filled, elites.fitness, 0.0)
    gap = jnp.clip(best[0] - best, 0.0, 2.0)
    feasible = jnp.where(elites.fitness > -100.0, 1.0, 0.0)
    known = jnp.stack([rank, gap, feasible], axis=-1)
    known = jnp.broadcast_to(known, (count, capacity, 3))
    none = jnp.zeros((count, capacity))
    same_degrees = same_roles = none
    if level > 0:
        same_degrees = (picks[0][:, None] == elites.picks[0]).astype(jnp.float32)
    if level > 1:
        genes = features.levels[1].genes
        same = picks[genes][:, :, None] == elites.picks[genes][:, None]
        same_roles = same.mean(0) * same_degrees
    return jnp.concatenate([known, same_degrees[..., None], same_roles[..., None]], -1)


def sample(
    features: GeneFeatures,
    policy: ElitePolicy,
    params,
    key: jax.Array,
    elites: Elites,
    reading: Reading,
) -> jax.Array:
    """One candidate per reading, int32 `[genes, candidates]`; all values allowed."""
    count = len(reading.temperature)
    picks = jnp.zeros((features.space.num_genes, count), jnp.int32)
    for level, own in enumerate(features.levels):
        if len(own.cardinalities) == 0:
            continue
        logits = level_logits(features, policy, params, level, picks, elites, reading)
        key, level_key = jax.random.split(key)
        drawn = jax.random.categorical(level_key, logits).astype(jnp.int32)
        picks = picks.at[own.genes].set(drawn.T)
    return picks


def log_probability(
    features: GeneFeatures,
    policy: ElitePolicy,
    params,
    picks: jax.Array,
    elites: Elites,
    reading: Reading,
) -> tuple[jax.Array, jax.Array]:
    """Log probability of candidates, and the entropy of their genes' distributions.

    Genes whose value is not allowed (of candidates that were not sampled) are left out.

    Returns:
      Both `[genes, candidates]`.
    """
    found, entropies = [], []
    for level, own in enumerate(features.levels):
        logits = level_logits(features, policy, params, level, picks, elites, reading)
        value = picks[own.genes].T[..., None]
        taken = jnp.take_along_axis(logits, value, axis=2)[..., 0]
        found.append(jnp.where(taken > MASKED / 2, taken, 0.0).T)
        entropies.append(-(jnp.exp(logits) * jnp.maximum(logits, -50.0)).sum(-1).T)
    return jnp.concatenate(found), jnp.concatenate(entropies)
