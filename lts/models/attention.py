"""Grouped-query attention: weights, and the step over new or cached positions."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lts.models.architecture import GroupedAttention
from lts.models.arrays import (
    float32_product,
    over_tokens,
    product,
    rms_norm,
    unit_rms,
)
from lts.models.caches import read, write
from lts.models.step import Step
from lts.models.weights import Params, Weight, matrix, vector


def grouped_weights(hidden_size: int, attention: GroupedAttention) -> dict[str, Weight]:
    """Arrays of one layer's attention, without the norm before it."""
    g, q, k = (
        attention.num_kv_heads,
        attention.queries_per_kv_head,
        attention.head_dim,
    )
    sizes = {"hidden": hidden_size, "kv_heads": g, "group": q}
    sizes |= {"head": k, "value_head": k}
    weights = {
        "query": matrix(sizes, "hidden", "kv_heads group head"),
        "key": matrix(sizes, "hidden", "kv_heads head"),
        "value": matrix(sizes, "hidden", "kv_heads value_head"),
        "out": matrix(sizes, "kv_heads group value_head", "hidden"),
    }
    if attention.qkv_bias:
        weights["query_bias"] = vector(sizes, "kv_heads group head", hidden_size)
        weights["key_bias"] = vector(sizes, "kv_heads head", hidden_size)
        weights["value_bias"] = vector(sizes, "kv_heads value_head", hidden_size)
    if attention.out_bias:
        weights["out_bias"] = vector(sizes, "hidden", g * q * k)
    if attention.qk_norm == "head":
        weights["query_norm"] = vector(sizes, "head")
        weights["key_norm"] = vector(sizes, "head")
    elif attention.qk_norm == "layer":
        weights["query_norm"] = vector(sizes, "kv_heads group head")
        weights["key_norm"] = vector(sizes, "kv_heads head")
    return weights


def grouped_attention(
    step: Step,
    attention: GroupedAttention,
    weights: Params,
    x: jax.Array,  # [b, s, d]
    cache: Any,
    index: jax.Array | None,
) -> tuple[jax.Array, Any]:
    """What attention adds to the residual stream, [b, s, d], and the updated cache.

    `index` is the layer's place in a stacked cache, None for an own cache.
    """
    frame, dtype = step.frames[attention], x.dtype
    with jax.named_scope("query"):
        query = product("bsd,dgqk->bgqsk", x, weights["query"])
    with jax.named_scope("key"):
        key = product("bsd,dgk->bgsk", x, weights["key"])
    with jax.named_scope("value"):
        value = product("bsd,dgk->bgsk", x, weights["value"])
    if attention.qkv_bias:
        query = query + over_tokens(weights["query_bias"], dtype)
        key = key + over_tokens(weights["key_bias"], dtype)
        value = value + over_tokens(weights["value_bias"], dtype)
    query, key = _normed(step, attention, weights, query, key)
    query, key = frame.rotated(query), frame.rotated(key)
    if frame.query_scale is not None:
        query = (query * frame.query_scale).astype(dtype)
    wraps = attention.window is not None
    with jax.named_scope("write_key"):
        keys = write(cache["key"], key, index, step.start, wraps=wraps)
    with jax.named_scope("write_value"):
        values = write(cache["value"], value, index, step.start, wraps=wraps)
    cache = {"key": keys, "value": values}
    if step.from_cache:
        key = read(keys, index).astype(dtype)
        value = read(values, index).astype(dtype)
    with jax.named_scope("scores"):
        scores = float32_product("bgqsk,bgtk->bgqst", query, key)
    scores = jnp.where(frame.visible, scores * _score_scale(attention), -jnp.inf)
    shares = jax.nn.softmax(scores, axis=-1).astype(dtype)
    with jax.named_scope("attend"):
        attended = jnp.einsum("bgqst,bgtk->bgqsk", shares, value)
    with jax.named_scope("out"):
        out = product("bgqsk,gqkd->bsd", attended, weights["out"])
    if attention.out_bias:
        out = out + lax.expand_dims(weights["out_bias"].astype(dtype), (0, 1))
    return out, cache


def _score_scale(attention: GroupedAttention) -> float:
    yarn = 1.0 if attention.rope is None else attention.rope.attention_scale
    return attention.head_dim**-0.5 * yarn


def _normed(
    step: Step,
    attention: GroupedAttention,
    weights: Params,
    query: jax.Array,  # [b, g, q, s, k]
    key: jax.Array,  # [b, g, s, k]
) -> tuple[jax.Array, jax.Array]:
    """Queries and keys under the norm that `QkNorm` names."""
    eps, kind = step.config.rms_norm_eps, attention.qk_norm
    if kind == "head":
        query = rms_norm(query, weights["query_norm"], eps)
        key = rms_norm(key, weights["key_norm"], eps)
    elif kind == "layer":
        query = unit_rms(query, eps, (1, 2, 4))
        query = query * over_tokens(weights["query_norm"], query.dtype)
        key = unit_rms(key, eps, (1, 3)) * over_tokens(weights["key_norm"], key.dtype)
    elif kind == "unit":
        query, key = unit_rms(query, eps), unit_rms(key, eps)
    return query, key
