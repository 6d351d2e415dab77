"""One step of a decoder, over parameter and cache trees.

The forms are those that XLA compiles with the fewest copies: stacked caches travel in
the scan's carry and are updated in place (as scanned inputs and outputs they are copied
whole). Each contraction and each cache update stands under a `jax.named_scope` of its
own; where layers differ, all scopes of a segment stand under its name.
"""

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lts.models.architecture import GroupedAttention, Layer, Segment
from lts.models.arrays import product, rms_norm
from lts.models.attention import grouped_attention
from lts.models.caches import Cache
from lts.models.config import DecoderConfig
from lts.models.feed_forward import feed_forward
from lts.models.latent import latent_attention
from lts.models.parameters import by_place, is_uniform, segment_name
from lts.models.step import Attention, Step, prepared
from lts.models.weights import Params


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
      params: its parameters; those of a segment are dicts of stacked arrays, which are
        scanned over, or lists of layers, which are unrolled. A pipeline stage has
        fewer layers than the config.
      cache: caches in the same form.
      tokens: [b, s] int32.
      start: [] position of the first new token.
      from_cache: attend over the cache up to each token's position (decode, s = 1), or
        over the new tokens alone (prefill, `start` 0).
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
    uniform = is_uniform(config)
    caches = {"layers": cache} if uniform else cache
    kept = cached_positions(config, cache)
    step = prepared(config, kept, tokens.shape[1], start, from_cache)
    updated = {}
    for segment in config.segments:
        name = segment_name(config, segment)
        weights = by_place(segment, params[name])
        own = by_place(segment, caches.get(name))
        scope = "" if uniform else name
        residual, own = _segment(step, segment, scope, weights, own, residual)
        if own:
            updated[name] = own["0"] if len(segment.unit) == 1 else own
    cache = updated.get("layers", cache) if uniform else updated
    return (_logits(config, params, residual) if last else residual), cache


def cached_positions(config: DecoderConfig, cache: Cache) -> dict[Attention, int]:
    """Positions that the cache holds, by kind of attention."""
    caches = {"layers": cache} if is_uniform(config) else cache
    found: dict[Attention, int] = {}
    for segment in config.segments:
        own = by_place(segment, caches.get(segment_name(config, segment)))
        for place, layer in enumerate(segment.unit):
            if layer.attention is not None:
                leaf = jax.tree.leaves(own[str(place)])[0]
                found[layer.attention] = leaf.shape[-2]
    return found


def _embedded(params: Params, tokens: jax.Array | np.ndarray) -> jax.Array:
    with jax.named_scope("embed"):
        # Out-of-range tokens are clipped: the default mode would add selects.
        return jnp.take(params["embed"], tokens, axis=0, mode="clip")


def _logits(config: DecoderConfig, params: Params, residual: jax.Array) -> jax.Array:
    """Logits [b, vocab] after the last token of `residual` [b, s, d]."""
    with jax.named_scope("last"):
        place = residual.shape[1] - 1
        last = lax.index_in_dim(residual, place, axis=1, keepdims=False)
        last = rms_norm(last, params["norm"], config.rms_norm_eps)
    with jax.named_scope("unembed"):
        if config.tie_word_embeddings:
            return product("bd,vd->bv", last, params["embed"])
        return product("bd,dv->bv", last, params["unembed"])


def _segment(
    step: Step,
    segment: Segment,
    scope: str,
    weights: dict[str, Any],
    caches: dict[str, Any],
    residual: jax.Array,
) -> tuple[jax.Array, dict[str, Any]]:
    """All repeats of a unit; weights and caches by place in it."""

    def unit(residual, weights, caches, index):
        caches = dict(caches)
        for place, layer in enumerate(segment.unit):
            key = str(place)
            own = weights[key], residual, caches.get(key)
            with _scope(scope if len(segment.unit) == 1 else f"{scope}/{key}"):
                residual, updated = _layer(step, layer, *own, index)
            if updated is not None:
                caches[key] = updated
        return residual, caches

    if any(isinstance(own, list) for own in weights.values()):
        updated = {key: [] for key in caches}
        for repeat in range(max(len(own) for own in weights.values())):
            mine = {key: own[repeat] for key, own in weights.items()}
            kept = {key: own[repeat] for key, own in caches.items()}
            residual, kept = unit(residual, mine, kept, None)
            for key, own in kept.items():
                updated[key].append(own)
        return residual, updated

    def body(carry, layer):
        return unit(carry[0], layer[0], carry[1], layer[1]), None

    depth = len(jax.tree.leaves(weights)[0])  # a stage has its share only
    indices = jnp.arange(depth, dtype=jnp.int32)
    (residual, caches), _ = lax.scan(body, (residual, caches), (weights, indices))
    return residual, caches


def _scope(name: str) -> Any:
    return jax.named_scope(name) if name else contextlib.nullcontext()


def _layer(
    step: Step,
    layer: Layer,
    weights: Params,
    residual: jax.Array,  # [b, s, d]
    cache: Any,
    index: jax.Array | None,
) -> tuple[jax.Array, Any]:
    """One layer; `index` is its place in a stacked cache, None for an own cache."""
    eps = step.config.rms_norm_eps
    if layer.attention is not None:
        x = rms_norm(residual, weights["norm_attention"], eps)
        with jax.named_scope("attention"):
            own = weights, x, cache, index
            if isinstance(layer.attention, GroupedAttention):
                attended, cache = grouped_attention(step, layer.attention, *own)
            else:
                attended, cache = latent_attention(step, layer.attention, *own)
        residual = residual + attended
    if layer.ffn is not None:
        x = rms_norm(residual, weights["norm_mlp"], eps)
        residual = residual + feed_forward(layer.ffn, weights, x)
    return residual, cache
