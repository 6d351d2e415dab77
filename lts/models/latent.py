"""Multi-head latent attention (MLA): weights, and the step in its two forms.

Per position a small latent [r] is cached, and beside it one rotated key that all heads
share. Prefill expands keys and values of the new tokens from their latents. Decode is
absorbed: the up-projections are applied to the query and to the mixed latents instead,
so that all heads attend over the latents themselves.

Queries have an unrotated part that meets the latent and a rotated part that meets the
shared key; each has a weight of its own, and their scores are added.

Source: DeepSeek-V2, arXiv 2405.04434, section 2.1.
"""

from typing import Any

import jax
import jax.numpy as jnp

from lts.models.architecture import LatentAttention
from lts.models.arrays import float32_product, product, rms_norm
from lts.models.caches import read, write
from lts.models.step import Step
from lts.models.weights import Params, Weight, matrix, vector


def latent_weights(hidden_size: int, attention: LatentAttention) -> dict[str, Weight]:
    """Arrays of one layer's attention, without the norm before it."""
    sizes = {
        "hidden": hidden_size,
        "heads": attention.num_heads,
        "nope": attention.nope_dim,
        "rope": attention.rope.size,
        "latent": attention.kv_rank,
        "value_head": attention.value_dim,
    }
    weights, entering = {}, "hidden"
    if attention.query_rank is not None:
        sizes["query_rank"], entering = attention.query_rank, "query_rank"
        weights["query_down"] = matrix(sizes, "hidden", "query_rank")
        weights["query_norm"] = vector(sizes, "query_rank")
    return weights | {
        "query_up": matrix(sizes, entering, "heads nope"),
        "query_rope": matrix(sizes, entering, "heads rope"),
        "kv_down": matrix(sizes, "hidden", "latent"),
        "key_rope": matrix(sizes, "hidden", "rope"),
        "kv_norm": vector(sizes, "latent"),
        "key_up": matrix(sizes, "latent", "heads nope"),
        "value_up": matrix(sizes, "latent", "heads value_head"),
        "out": matrix(sizes, "heads value_head", "hidden"),
    }


def latent_attention(
    step: Step,
    attention: LatentAttention,
    weights: Params,
    x: jax.Array,  # [b, s, d]
    cache: Any,
    index: jax.Array | None,
) -> tuple[jax.Array, Any]:
    """What attention adds to the residual stream, [b, s, d], and the updated cache.

    `index` is the layer's place in a stacked cache, None for an own cache.
    """
    query, turned_query = _queries(step, attention, weights, x)
    latent, turned_key = _latents(step, attention, weights, x)
    with jax.named_scope("write_latent"):
        latents = write(cache["latent"], latent, index, step.start)
    with jax.named_scope("write_rope"):
        turned_keys = write(cache["rope"], turned_key, index, step.start)
    if step.from_cache:
        latent = read(latents, index).astype(x.dtype)
        turned_key = read(turned_keys, index).astype(x.dtype)
    with jax.named_scope("scores_rope"):
        scores = float32_product("bhsk,btk->bhst", turned_query, turned_key)
    mix = _absorbed if step.from_cache else _expanded
    heads = mix(step, attention, weights, query, scores, latent)
    with jax.named_scope("out"):
        out = product("bhsv,hvd->bsd", heads, weights["out"])
    return out, {"latent": latents, "rope": turned_keys}


def _queries(
    step: Step, attention: LatentAttention, weights: Params, x: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Unrotated [b, h, s, n] and rotated [b, h, s, k] queries."""
    frame = step.frames[attention]
    if attention.query_rank is not None:
        with jax.named_scope("query_down"):
            x = product("bsd,dr->bsr", x, weights["query_down"])
        x = rms_norm(x, weights["query_norm"], step.config.rms_norm_eps)
    with jax.named_scope("query_up"):
        query = product("bsr,rhn->bhsn", x, weights["query_up"])
    with jax.named_scope("query_rope"):
        turned = product("bsr,rhk->bhsk", x, weights["query_rope"])
    return query, frame.rotated(turned)


def _latents(
    step: Step, attention: LatentAttention, weights: Params, x: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """What is cached of the new tokens: latents [b, s, r], rotated keys [b, s, k]."""
    frame = step.frames[attention]
    with jax.named_scope("kv_down"):
        latent = product("bsd,dr->bsr", x, weights["kv_down"])
    latent = rms_norm(latent, weights["kv_norm"], step.config.rms_norm_eps)
    with jax.named_scope("key_rope"):
        key = product("bsd,dk->bsk", x, weights["key_rope"])
    return latent, frame.rotated(key)


def _expanded(
    step: Step,
    attention: LatentAttention,
    weights: Params,
    query: jax.Array,  # [b, h, s, n]
    scores: jax.Array,  # [b, h, s, t] of the rotated parts
    latent: jax.Array,  # [b, t, r]
) -> jax.Array:
    """Mixed values [b, h, s, v], from keys and values of every head."""
    with jax.named_scope("key_up"):
        key = product("btr,rhn->bhtn", latent, weights["key_up"])
    with jax.named_scope("value_up"):
        value = product("btr,rhv->bhtv", latent, weights["value_up"])
    with jax.named_scope("scores"):
        scores = scores + float32_product("bhsn,bhtn->bhst", query, key)
    shares = _shares(step, attention, scores, value.dtype)
    with jax.named_scope("attend"):
        return jnp.einsum("bhst,bhtv->bhsv", shares, value)


def _absorbed(
    step: Step,
    attention: LatentAttention,
    weights: Params,
    query: jax.Array,  # [b, h, s, n]
    scores: jax.Array,  # [b, h, s, t] of the rotated parts
    latent: jax.Array,  # [b, t, r]
) -> jax.Array:
    """Mixed values [b, h, s, v], attending over latents."""
    with jax.named_scope("key_up"):
        query = product("bhsn,rhn->bhsr", query, weights["key_up"])
    with jax.named_scope("scores"):
        scores = scores + float32_product("bhsr,btr->bhst", query, latent)
    shares = _shares(step, attention, scores, latent.dtype)
    with jax.named_scope("attend"):
        mixed = jnp.einsum("bhst,btr->bhsr", shares, latent)
    with jax.named_scope("value_up"):
        return product("bhsr,rhv->bhsv", mixed, weights["value_up"])


def _shares(
    step: Step, attention: LatentAttention, scores: jax.Array, dtype: Any
) -> jax.Array:
    """What each position gets, [b, h, s, t]."""
    scale = (attention.nope_dim + attention.rope.size) ** -0.5
    scores = scores * (scale * attention.rope.attention_scale)
    scores = jnp.where(step.frames[attention].visible, scores, -jnp.inf)
    return jax.nn.softmax(scores, axis=-1).astype(dtype)
