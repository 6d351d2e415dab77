"""Which experts a token goes to, and with what weights.

All of it is float32, and local to a token: batch and sequence stay dims of their own,
and chosen scores are picked by comparing, not by gathering, so both can be sharded.
"""

import jax
import jax.numpy as jnp
from jax import lax

from lts.models.architecture import ExpertFfn, Routing


def route(
    ffn: ExpertFfn,
    logits: jax.Array,  # [b, s, e]
    bias: jax.Array | None,  # [e]
) -> tuple[jax.Array, jax.Array]:
    """Weights float32 [b, s, k] and experts int32 [b, s, k], best first.

    `bias` is added for the choice, where the routing has one.
    """
    routing = ffn.routing
    scores = _scores(routing, logits)
    ranking = scores
    if bias is not None:
        ranking = ranking + lax.expand_dims(bias.astype(jnp.float32), (0, 1))
    if routing.groups > 1:
        ranking = _within_groups(routing, ranking)
    with jax.named_scope("top_k"):
        weight, expert = lax.top_k(ranking, ffn.top_k)
    if ranking is not scores:
        weight = _picked(scores, expert)
    if routing.scores == "softmax_of_chosen":
        weight = jax.nn.softmax(weight, axis=-1)
    elif routing.normalised:
        weight = weight / weight.sum(axis=-1, keepdims=True)
    if routing.scale != 1.0:
        weight = weight * routing.scale
    return weight, expert.astype(jnp.int32)


def _scores(routing: Routing, logits: jax.Array) -> jax.Array:
    logits = logits.astype(jnp.float32)
    if routing.scores == "softmax":
        return jax.nn.softmax(logits, axis=-1)
    return jax.nn.sigmoid(logits) if routing.scores == "sigmoid" else logits


def _within_groups(routing: Routing, ranking: jax.Array) -> jax.Array:
    """`ranking` [b, s, e] with experts outside the best groups at -inf.

    Source: DeepSeek-V3, arXiv 2412.19437, section 2.1.2.
    """
    *tokens, experts = ranking.shape
    grouped = ranking.reshape(*tokens, routing.groups, experts // routing.groups)
    with jax.named_scope("group_scores"):
        best, _ = lax.top_k(grouped, routing.group_best)
    with jax.named_scope("groups"):
        _, chosen = lax.top_k(best.sum(axis=-1), routing.top_groups)
    inside = _one_hot(chosen, routing.groups).any(axis=-2)  # [b, s, groups]
    inside = lax.expand_dims(inside, (inside.ndim,))
    return jnp.where(inside, grouped, -jnp.inf).reshape(ranking.shape)


def _picked(scores: jax.Array, expert: jax.Array) -> jax.Array:
    """`scores` [b, s, e] of the experts [b, s, k]."""
    own = _one_hot(expert, scores.shape[-1])  # [b, s, k, e]
    scores = lax.expand_dims(scores, (scores.ndim - 1,))
    return jnp.where(own, scores, 0.0).sum(axis=-1)


def _one_hot(places: jax.Array, size: int) -> jax.Array:
    """Bool [.., k, size]: which place each of `places` [.., k] is."""
    every = jnp.arange(size, dtype=places.dtype)
    every = lax.expand_dims(every, tuple(range(places.ndim)))
    return lax.expand_dims(places, (places.ndim,)) == every
