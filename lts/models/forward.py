"""One step of a dense decoder, over parameter and cache trees.

The forms are those that XLA compiles with the fewest copies: caches are [.., g, t, k]
(with time before heads, each step transposes the cache), and stacked caches travel in
the scan's carry and are updated in place (as scanned inputs and outputs they are copied
whole). Each contraction is one `dot_general`; it and each cache update stand under a
`jax.named_scope` of their own. Indices are known not to be negative, and saying so
keeps selects out of the program.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lts.models.config import DecoderConfig
from lts.models.parameters import Params
from lts.models.rope import frequencies, rotary, rotate

# {"key", "value"} of [layers, b, g, t, k] each; unrolled: a list of {..: [b, g, t, k]}.
Cache = Any


@dataclass(frozen=True, kw_only=True)
class _Step:
    """What all layers of one step share."""

    config: DecoderConfig
    start: jax.Array | int  # [] first new position
    cos: jax.Array  # [s, k / 2]
    sin: jax.Array  # [s, k / 2]
    visible: jax.Array  # [1, 1, 1, s, t] bool
    from_cache: bool  # attend over the cache (decode) or the new tokens (prefill)


def forward(
    config: DecoderConfig,
    params: Params,
    cache: Cache,
    tokens: jax.Array | np.ndarray,
    start: jax.Array | int,
    *,
    from_cache: bool,
    first: bool = True,
    last: bool = True,
) -> tuple[jax.Array, Cache]:
    """Takes s new tokens of each request through all layers.

    Args:
      config: the decoder.
      params: its parameters; `params["layers"]` is a dict of stacked arrays, which are
        scanned over, or a list of layers, which are unrolled.
      cache: key and value caches in the same form.
      tokens: [b, s] int32.
      start: [] position of the first new token.
      from_cache: attend over the cache up to each token's position (decode), or over
        the new tokens alone (prefill, `start` 0).
      first: False for a later pipeline stage: `tokens` is then the residual stream
        [b, s, d] that the stage before handed over.
      last: False for an earlier stage: the residual stream is returned.

    Returns:
      Logits [b, vocab] after the last new token (or the residual stream), and the
      updated cache.
    """
    residual = _embedded(params, tokens) if first else jnp.asarray(tokens)
    if residual.dtype.itemsize < 2:  # 8-bit weights: activations stay in the config's
        residual = residual.astype(config.dtype)
    step = _step(config, cache, tokens.shape[1], start, from_cache)
    if isinstance(params["layers"], list):
        updated = []
        for weights, own in zip(params["layers"], cache, strict=True):
            residual, own = _layer(step, weights, residual, own, None)
            updated.append(own)
        cache = updated
    else:

        def body(carry, layer):
            (residual, cache), (weights, index) = carry, layer
            return _layer(step, weights, residual, cache, index), None

        depth = len(params["layers"]["norm_mlp"])  # a stage has its share only
        indices = jnp.arange(depth, dtype=jnp.int32)
        layers = (params["layers"], indices)
        (residual, cache), _ = lax.scan(body, (residual, cache), layers)
    return (_logits(config, params, residual) if last else residual), cache


def _embedded(params: Params, tokens: jax.Array | np.ndarray) -> jax.Array:
    with jax.named_scope("embed"):
        # Out-of-range tokens are clipped: the default mode would add selects.
        return jnp.take(params["embed"], tokens, axis=0, mode="clip")


def _logits(config: DecoderConfig, params: Params, residual: jax.Array) -> jax.Array:
    """Logits [b, vocab] after the last token of `residual` [b, s, d]."""
    with jax.named_scope("last"):
        place = residual.shape[1] - 1
        last = lax.index_in_dim(residual, place, axis=1, keepdims=False)
        last = _rms_norm(last, params["norm"], config.rms_norm_eps)
    with jax.named_scope("unembed"):
        if config.tie_word_embeddings:
            return _einsum("bd,vd->bv", last, params["embed"])
        return _einsum("bd,dv->bv", last, params["unembed"])


def _step(
    config: DecoderConfig,
    cache: Cache,
    num_new: int,
    start: jax.Array | int,
    from_cache: bool,
) -> _Step:
    positions = start + jnp.arange(num_new, dtype=jnp.int32)
    num_seen = jax.tree.leaves(cache)[0].shape[-2] if from_cache else num_new
    seen = jnp.arange(num_seen, dtype=jnp.int32)
    table = frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
    cos, sin = rotary(positions, table)
    seen = lax.expand_dims(seen, (0, 1, 2, 3))
    visible = seen <= lax.expand_dims(positions, (0, 1, 2, 4))
    return _Step(
        config=config,
        start=start,
        cos=cos,
        sin=sin,
        visible=visible,
        from_cache=from_cache,
    )


def _layer(
    step: _Step,
    weights: Params,
    residual: jax.Array,  # [b, s, d]
    cache: Any,
    index: jax.Array | None,
) -> tuple[jax.Array, Any]:
    """One layer; `index` is its place in a stacked cache, None for an own cache."""
    eps = step.config.rms_norm_eps
    x = _rms_norm(residual, weights["norm_attention"], eps)
    with jax.named_scope("attention"):
        attended, cache = _attention(step, weights, x, cache, index)
    residual = residual + attended
    x = _rms_norm(residual, weights["norm_mlp"], eps)
    with jax.named_scope("mlp"):
        with jax.named_scope("gate"):
            gate = _einsum("bsd,df->bsf", x, weights["gate"])
        with jax.named_scope("up"):
            up = _einsum("bsd,df->bsf", x, weights["up"])
        with jax.named_scope("down"):
            down = _einsum("bsf,fd->bsd", jax.nn.silu(gate) * up, weights["down"])
    return residual + down, cache


def _attention(
    step: _Step,
    weights: Params,
    x: jax.Array,  # [b, s, d]
    cache: Any,
    index: jax.Array | None,
) -> tuple[jax.Array, Any]:
    config, dtype = step.config, x.dtype
    with jax.named_scope("query"):
        query = _einsum("bsd,dgqk->bgqsk", x, weights["query"])
    with jax.named_scope("key"):
        key = _einsum("bsd,dgk->bgsk", x, weights["key"])
    with jax.named_scope("value"):
        value = _einsum("bsd,dgk->bgsk", x, weights["value"])
    if config.qkv_bias:
        query = query + _over_tokens(weights["query_bias"], dtype)
        key = key + _over_tokens(weights["key_bias"], dtype)
        value = value + _over_tokens(weights["value_bias"], dtype)
    if config.qk_norm:
        query = _rms_norm(query, weights["query_norm"], config.rms_norm_eps)
        key = _rms_norm(key, weights["key_norm"], config.rms_norm_eps)
    query = rotate(query, step.cos, step.sin)
    key = rotate(key, step.cos, step.sin)
    with jax.named_scope("write_key"):
        keys = _write(cache["key"], key, index, step.start)
    with jax.named_scope("write_value"):
        values = _write(cache["value"], value, index, step.start)
    cache = {"key": keys, "value": values}
    if step.from_cache:
        key = _read(keys, index).astype(dtype)
        value = _read(values, index).astype(dtype)
    with jax.named_scope("scores"):
        scores = jnp.einsum(
            "bgqsk,bgtk->bgqst", query, key, preferred_element_type=jnp.float32
        )
    scores = jnp.where(step.visible, scores * config.head_dim**-0.5, -jnp.inf)
    shares = jax.nn.softmax(scores, axis=-1).astype(dtype)
    with jax.named_scope("attend"):
        attended = jnp.einsum("bgqst,bgtk->bgqsk", shares, value)
    with jax.named_scope("out"):
        out = _einsum("bgqsk,gqkd->bsd", attended, weights["out"])
    if config.out_bias:
        out = out + lax.expand_dims(weights["out_bias"].astype(dtype), (0, 1))
    return out, cache


def _write(
    cache: jax.Array, new: jax.Array, index: jax.Array | None, start: jax.Array | int
) -> jax.Array:
    """Puts `new` [b, g, s, k] at position `start`, in place where donated."""
    new, origin = new.astype(cache.dtype), (0, 0, start, 0)
    if index is not None:
        new, origin = lax.expand_dims(new, (0,)), (index, *origin)
    return lax.dynamic_update_slice(cache, new, origin, allow_negative_indices=False)


def _read(cache: jax.Array, index: jax.Array | None) -> jax.Array:
    """The layer's own [b, g, t, k]."""
    if index is None:
        return cache
    return lax.dynamic_index_in_dim(
        cache, index, axis=0, keepdims=False, allow_negative_indices=False
    )


def _einsum(pattern: str, x: jax.Array, weight: jax.Array) -> jax.Array:
    """One contraction, in the activations' dtype."""
    return jnp.einsum(pattern, x, weight.astype(x.dtype))


def _over_tokens(bias: jax.Array, dtype: Any) -> jax.Array:
    """A bias [heads.., k] made to fit [b, heads.., s, k]."""
    return lax.expand_dims(bias.astype(dtype), (0, bias.ndim))


def _rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    """`x` [..., n] over its root mean square, in float32, times `scale` [n]."""
    wide = x.astype(jnp.float32)
    inverse = lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    scale = lax.expand_dims(scale.astype(x.dtype), tuple(range(x.ndim - 1)))
    return (wide * inverse).astype(x.dtype) * scale
