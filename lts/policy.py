"""The attention policy: which value each gene should take, given the elite buffer.

Genes are queries and elites are keys; what attention reads are the elites' own
choices, so that its result is a distribution over the values of the gene, the *copy*.
It is mixed with the prior, corrected by a small network that sees features of gene and
choice, and sampled level by level: degrees, roles, overrides, each given the levels
before. All inputs are features, so one set of weights serves any program and cluster.
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

_ELITE_BIAS = (-2.0, -1.0, 1.0)
"""First attention to an elite's rank, gap and feasibility."""
_MATCH_BIAS = 4.0
"""First attention to an elite of the same degrees, and to one of the same roles."""


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
        elites: jax.Array,  # [elites, elite features]
        matches: jax.Array,  # [candidates, elites, 2]  same degrees, same roles
        chosen: jax.Array,  # [genes, elites, choices]  one-hot
        levels: np.ndarray,  # [genes]
        reading: Reading,
    ) -> jax.Array:
        """Logits `[candidates, genes, choices]`; `MASKED` where not allowed."""
        shape, init = (self.heads, self.width), nn.initializers.lecun_uniform()
        query = nn.DenseGeneral(shape, kernel_init=init, name="query")(decision)
        key = nn.DenseGeneral(shape, kernel_init=init, use_bias=False, name="key")(
            elites
        )
        bias = self.param("elite_bias", lambda _: jnp.array(_ELITE_BIAS, jnp.float32))
        match = nn.DenseGeneral(
            (self.heads, 2),
            kernel_init=nn.initializers.zeros,
            bias_init=nn.initializers.constant(_MATCH_BIAS),
            name="match",
        )(decision)
        # degrees are known to roles, and both to overrides
        match = match * (levels[:, None] > np.arange(2))[None, :, None]
        scores = jnp.einsum("bghk,ehk->bghe", query, key) / np.sqrt(self.width)
        scores = scores + jnp.einsum("bghf,bef->bghe", match, matches)
        to_elite = (elites * bias[None]).sum(-1)[None] + reading.focus
        scores = scores + to_elite[:, None, None]
        visible = reading.visible[:, None, None]
        weights = nn.softmax(jnp.where(visible, scores, MASKED)) * visible
        copies = jnp.einsum("bghe,gec->bgch", weights, chosen)
        copies = copies * allowed[..., None]
        prior_share = nn.initializers.constant(np.log(PRIOR_SHARE / (1 - PRIOR_SHARE)))
        share = nn.sigmoid(self.param("prior_share", prior_share, ()))
        mixed = (1 - share) * copies.mean(-1) + share * jnp.exp(log_prior)
        base = jnp.log(mixed + 1e-9)
        hidden = nn.Dense(self.hidden, kernel_init=init, name="of_gene")(decision)
        facts = jnp.concatenate([choice, copies, base[..., None] / 5], axis=-1)
        of_choice = nn.Dense(
            self.hidden, kernel_init=init, use_bias=False, name="of_choice"
        )(facts)
        hidden = nn.relu(hidden[..., None, :] + of_choice)
        zeros = nn.initializers.zeros  # before training: copy and prior alone
        change = nn.Dense(1, kernel_init=zeros, use_bias=False, name="out")(hidden)
        gain = base - log_prior + change[..., 0]
        logits = log_prior + gain / reading.temperature[:, None, None]
        return jnp.where(allowed, logits, MASKED)


def init_policy(features: GeneFeatures, policy: ElitePolicy, key: jax.Array):
    """Fresh weights; consumes `key`."""
    own, choices = features.decision[:, :1], features.choice[:, :1]
    values = jnp.zeros((1, 1, choices.shape[2]))
    return policy.init(
        key,
        jnp.asarray(own[:1]),
        jnp.asarray(choices[:1]),
        values > 0,
        values,
        jnp.zeros((1, len(_ELITE_BIAS))),
        jnp.zeros((1, 1, 2)),
        values,
        features.levels[:1],
        Reading(jnp.zeros((1, 1)), jnp.ones((1, 1), bool), jnp.ones(1)),
    )


def log_policy(
    features: GeneFeatures,
    policy: ElitePolicy,
    params,
    picks: jax.Array,
    elites: Elites,
    reading: Reading,
) -> jax.Array:
    """Log probabilities of the values of all genes, given the levels before theirs.

    Args:
      picks: int32 `[genes, candidates]`; a gene of its own or a later level is not
        read for the result of a gene.

    Returns:
      `[candidates, genes, choices]`; `MASKED` or less where not allowed.
    """
    degrees, space = picks[0], features.space
    meanings = features.meanings(picks)
    allowed = features.allowed(picks, meanings)
    choice = jnp.asarray(features.choice)[degrees]
    choice = jnp.take_along_axis(choice, meanings[..., None], axis=2)
    decision = jnp.asarray(features.decision)[degrees]
    roles = slice(space.first_role, space.first_override)
    same_degrees = degrees[:, None] == elites.picks[:1]
    same_roles = picks[roles][:, :, None] == elites.picks[roles][:, None]
    same_roles = same_roles.sum(0) / max(1, roles.stop - roles.start)
    matches = jnp.stack([same_degrees, same_roles * same_degrees], axis=-1)
    logits = policy.apply(
        params,
        decision,
        choice,
        allowed,
        log_prior(features.levels, allowed),
        _elite_features(elites),
        matches,
        jax.nn.one_hot(elites.picks, features.num_choices),
        features.levels,
        reading,
    )
    return jax.nn.log_softmax(jnp.asarray(logits))


def log_prior(levels: np.ndarray, allowed: jax.Array) -> jax.Array:
    """Log of the prior `[candidates, genes, choices]`; `MASKED` where not allowed."""
    count = allowed.sum(-1, keepdims=True)
    inherits = (np.arange(allowed.shape[-1]) == 0)[None, None]
    others = jnp.log((1 - INHERIT_SHARE) / jnp.maximum(count - 1, 1))
    inherit = jnp.where(count > 1, np.log(INHERIT_SHARE), 0.0)
    override = (levels == LEVELS.index("override"))[None, :, None]
    found = jnp.where(
        override, jnp.where(inherits, inherit, others), -jnp.log(jnp.maximum(count, 1))
    )
    return jnp.where(allowed, found, MASKED)


def _elite_features(elites: Elites) -> jax.Array:
    """Rank, gap to the best, feasibility; `[elites, 3]`."""
    capacity = len(elites.fitness)
    fitness = jnp.where(elites.filled, elites.fitness, 0.0)
    gap = jnp.clip(fitness[0] - fitness, 0.0, 2.0)
    feasible = jnp.where(elites.fitness > -100.0, 1.0, 0.0)
    return jnp.stack([jnp.arange(capacity) / capacity, gap, feasible], axis=-1)


def sample(
    features: GeneFeatures,
    policy: ElitePolicy,
    params,
    key: jax.Array,
    elites: Elites,
    reading: Reading,
) -> tuple[jax.Array, jax.Array]:
    """One candidate per reading, all values allowed.

    Returns:
      The candidates, int32, and the log probability of every gene's value; both
      `[genes, candidates]`.
    """
    count, genes = len(reading.temperature), features.space.num_genes
    draws = jax.random.uniform(key, (count, genes, 1))

    def draw_level(known, level):
        picks, found = known
        logits = log_policy(features, policy, params, picks, elites, reading)
        chance = jnp.exp(logits)
        below = jnp.cumsum(chance, -1) <= draws * chance.sum(-1, keepdims=True)
        # rounding may leave the last value out of reach of the largest draw
        drawn = jnp.minimum(below.sum(-1, keepdims=True), _last(logits))
        taken = jnp.take_along_axis(logits, drawn, axis=2)[..., 0].T
        now = (jnp.asarray(features.levels) == level)[:, None]
        picks = jnp.where(now, drawn[..., 0].T.astype(jnp.int32), picks)
        return (picks, jnp.where(now, taken, found)), None

    nothing = jnp.zeros((genes, count), jnp.int32), jnp.zeros((genes, count))
    # the levels are one loop, though all genes are computed in each: compiled once
    known, _ = jax.lax.scan(draw_level, nothing, jnp.arange(len(LEVELS)))
    return known


def _last(logits: jax.Array) -> jax.Array:
    """The last value that is allowed; `[candidates, genes, 1]`."""
    values = jnp.arange(logits.shape[-1])[None, None]
    return jnp.where(logits > MASKED / 2, values, 0).max(-1, keepdims=True)


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
    logits = log_policy(features, policy, params, picks, elites, reading)
    taken = jnp.take_along_axis(logits, picks.T[..., None], axis=2)[..., 0]
    entropy = -(jnp.exp(logits) * jnp.maximum(logits, -50.0)).sum(-1)
    return jnp.where(taken > MASKED / 2, taken, 0.0).T, entropy.T
