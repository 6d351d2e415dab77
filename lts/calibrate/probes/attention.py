"""Probes of attention: plain, and cuDNN's where it is; the quicker one counts."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lts.calibrate.probes.base import BFLOAT16_BYTES, Chain, Family, Probe, numbers
from lts.cost.operators.decode_attention import DECODE_ATTENTION
from lts.cost.operators.prefill_attention import PREFILL_ATTENTION

_HEADS, _KV_HEADS, _HEAD_DIM = 32, 8, 128
_ROOM = 128  # tokens of a cache beyond a prompt


def prefill_family(*, quick: bool) -> Family:
    """Causal attention of whole prompts; the next queries are this one's output."""
    shapes = [(1, 64), (1, 128), (1, 256), (1, 1024), (1, 4096), (8, 1024)]
    if not quick:
        shapes += [(1, 512), (1, 2048), (1, 8192), (4, 512), (32, 256), (4, 4096)]
    return Family(
        key="prefill_attention/bfloat16",
        operator=PREFILL_ATTENTION,
        free=("launch_s", "mm_efficiency", "pair_s"),
        unit="FLOP",
        probes=tuple(
            Probe(
                sizes=_attention_sizes(batch, length) | {"q_len": length},
                amount=2.0 * _HEAD_DIM * _HEADS * batch * length**2,
                ways=_attention_ways(batch, length, length),
            )
            for batch, length in shapes
        ),
    )


def decode_family(*, quick: bool) -> Family:
    """Attention of one new token over a cache that it is written into."""
    shapes = [(1, 128), (1, 512), (4, 512), (1, 4096), (16, 1024), (64, 4096)]
    if not quick:
        shapes += [(1, 32768), (4, 2048), (16, 8192), (64, 512), (128, 1024)]
        shapes += [(256, 256), (256, 2048)]
    token = 2 * _KV_HEADS * _HEAD_DIM * BFLOAT16_BYTES
    return Family(
        key="decode_attention/bfloat16",
        operator=DECODE_ATTENTION,
        free=("launch_s", "hbm_efficiency", "l2_bytes_per_s", "block_s", "task_s"),
        unit="B",
        probes=tuple(
            Probe(
                sizes=_attention_sizes(batch, length),
                amount=float(batch * length * token),
                ways=_attention_ways(batch, 1, length),
            )
            for batch, length in shapes
        ),
    )


def _attention_sizes(batch: int, length: int) -> dict[str, float]:
    return {
        "batch": batch,
        "kv_len": length,
        "n_heads": _HEADS,
        "n_kv_heads": _KV_HEADS,
        "head_dim": _HEAD_DIM,
        "window": 0,
        "kv_bytes": BFLOAT16_BYTES,
    }


def _attention_ways(
    batch: int, q_len: int, kv_len: int
) -> Mapping[str, Callable[[], Chain]]:
    ways = {"plain": partial(_plain_chain, batch, q_len, kv_len)}
    if jax.default_backend() == "gpu":
        ways["cudnn"] = partial(_cudnn_chain, batch, q_len, kv_len)
    return ways


def _plain_chain(batch: int, q_len: int, kv_len: int) -> Chain:
    """Scores are written to memory; caches are by head, so that products read them."""
    group = _HEADS // _KV_HEADS
    seen = jnp.tri(q_len, kv_len, kv_len - q_len, dtype=bool)

    def attend(queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
        scores = jnp.einsum(
            "bkgtd,bksd->bkgts", queries, keys, preferred_element_type=jnp.float32
        )
        scores = jnp.where(seen[None, None, None], scores * _HEAD_DIM**-0.5, -jnp.inf)
        shares = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
        return jnp.einsum("bkgts,bksd->bkgtd", shares, values)

    return _chain(
        attend,
        lambda out: out[:, :, 0],
        queries=(batch, _KV_HEADS, group, q_len, _HEAD_DIM),
        cache=(batch, _KV_HEADS, kv_len, _HEAD_DIM),
        axis=2,
        start=kv_len - q_len,
    )


def _cudnn_chain(batch: int, q_len: int, kv_len: int) -> Chain:
    """Flash attention; caches are by token."""

    def attend(queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
        return jax.nn.dot_product_attention(
            queries, keys, values, is_causal=q_len > 1, implementation="cudnn"
        )

    return _chain(
        attend,
        lambda out: out[:, :, :_KV_HEADS],
        queries=(batch, q_len, _HEADS, _HEAD_DIM),
        cache=(batch, kv_len, _KV_HEADS, _HEAD_DIM),
        axis=1,
        start=kv_len - q_len,
    )


def _chain(
    attend: Callable[[jax.Array, jax.Array, jax.Array], jax.Array],
    new: Callable[[jax.Array], jax.Array],
    *,
    queries: tuple[int, ...],
    cache: tuple[int, ...],
    axis: int,
    start: int,
) -> Chain:
    """The output is the next queries, and some of it is written into the caches.

    Args:
      new: of the output, what stands for new keys and values.
      axis: tokens of a cache.
      start: of the new tokens; 0 for a prompt, which does not read the caches.
    """
    stored, at = list(cache), [0] * len(cache)
    at[axis] = start
    if not start:  # were a cache written whole, the earlier writes would be left out
        stored[axis] += _ROOM

    def step(carry: Any, fixed: Any) -> Any:
        asked, *caches = carry
        out = attend(asked, *(caches if start else fixed))
        written = (lax.dynamic_update_slice(old, new(out), at) for old in caches)
        return (out, *written)

    return Chain(
        step=step,
        carry=(numbers(*queries), numbers(*stored), numbers(*stored, scale=0.5)),
        fixed=() if start else (numbers(*cache), numbers(*cache, scale=0.5)),
    )
