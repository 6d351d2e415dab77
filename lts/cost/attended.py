"""Time of the contractions of a fused attention: each its share of the kernel."""

from dataclasses import replace

import numpy as np

from lts.cost.distinct import Column, evaluated, local_elements
from lts.cost.operators.decode_attention import (
    decode_attention_key,
    decode_attention_time_s,
)
from lts.cost.operators.mla import mla_context_time_s, mla_generation_time_s
from lts.cost.operators.prefill_attention import prefill_attention_time_s
from lts.cost.pricing import Pricing
from lts.cost.sharding import Sharding
from lts.graph import Attention, Node

_WHOLE = 1.0
_MEASURED_DIMS = 64.0, 256.0
"""Head sizes between which kernels were measured; others scale from the nearest."""


def attention_time_s(node: Node, sharding: Sharding, pricing: Pricing) -> np.ndarray:
    """Seconds of one execution of a contraction that is part of an attention.

    Returns:
      `[degrees, choices, batches]`.
    """
    mark = node.attention
    assert mark is not None
    arrays = [*node.operands, *node.results]
    rows, stored = arrays[mark.query_operand], arrays[mark.key_operand]
    queries = _positions(mark.queries, mark.query_factor, sharding)
    keys = _positions(mark.keys, mark.key_factor, sharding)
    sequences, power = _sequences(node, sharding)
    width = _width(node, sharding)
    columns: list[Column] = [
        (sequences, power),
        (queries, 0),
        (keys, 0),
        (local_elements(rows, sharding) / width, rows.array.batch_power),
        (local_elements(stored, sharding) / width, stored.array.batch_power),
    ]

    def model(
        batch: np.ndarray,
        q_len: np.ndarray,
        kv_len: np.ndarray,
        asked: np.ndarray,
        held: np.ndarray,
    ) -> np.ndarray:
        heads = np.maximum(asked / (batch * q_len), _WHOLE)
        kv_heads = np.clip(held / (batch * kv_len), _WHOLE, heads)
        kv_bytes = np.array(min(stored.array.itemsize, 2.0))
        return mark.share * _kernel_s(
            mark, batch, q_len, kv_len, heads, kv_heads, kv_bytes, pricing
        )

    return evaluated(sharding, columns, model)


def attention_key(node: Node) -> str:
    """Key of the fit that prices a contraction of an attention."""
    mark = node.attention
    assert mark is not None
    stored = [*node.operands, *node.results][mark.key_operand]
    dtype = _stored_dtype(stored.array.itemsize)
    if mark.latent:
        return f"mla_{'generation' if mark.queries == 1 else 'context'}/{dtype}"
    if mark.queries == 1:
        return decode_attention_key(dtype, 2, 1, ())
    return f"prefill_attention/{dtype}"


def _kernel_s(
    mark: Attention,
    batch: np.ndarray,
    q_len: np.ndarray,
    kv_len: np.ndarray,
    heads: np.ndarray,
    kv_heads: np.ndarray,
    kv_bytes: np.ndarray,
    pricing: Pricing,
) -> np.ndarray:
    dtype = _stored_dtype(float(kv_bytes))
    chip = pricing.chip
    if pricing.engine is None:
        # one call was measured over and over; in a stack of layers its cache is cold.
        # Profiles were fitted with what was measured.
        chip = replace(chip, l2_bytes=1)
    decodes = mark.queries == 1
    if decodes:
        kv_len = np.minimum(kv_len, pricing.context)
    if not decodes and not mark.causal:
        # as many pairs as a causal mask leaves of a longer prefix
        kv_len = kv_len + q_len / 2
    if mark.latent:
        kind = "generation" if decodes else "context"
        values = pricing.values(f"mla_{kind}/{dtype}")
        if decodes:
            return mla_generation_time_s(
                batch, kv_len, heads, kv_bytes, values=values, chip=chip
            )
        return mla_context_time_s(
            batch, q_len, kv_len, heads, kv_bytes, values=values, chip=chip
        )
    head_dim = np.clip(np.array(mark.head_dim, float), *_MEASURED_DIMS)
    scale = mark.head_dim / head_dim
    window = np.array(mark.window, float)
    if decodes:
        key = decode_attention_key(dtype, 2, 1, ())
        time = decode_attention_time_s(
            batch,
            kv_len,
            heads,
            kv_heads,
            head_dim,
            window,
            kv_bytes,
            values=pricing.values(key),
            chip=chip,
        )
    else:
        time = prefill_attention_time_s(
            batch,
            q_len,
            kv_len,
            heads,
            kv_heads,
            head_dim,
            window,
            kv_bytes,
            values=pricing.values(f"prefill_attention/{dtype}"),
            chip=chip,
        )
    return time * np.maximum(scale, 1.0)


def _positions(size: int, factor: int | None, sharding: Sharding) -> np.ndarray:
    ways = 1 if factor is None else sharding.ways[:, :, factor]
    return np.broadcast_to(size / np.asarray(ways, float), sharding.ways.shape[:2])


def _sequences(node: Node, sharding: Sharding) -> tuple[np.ndarray, int]:
    """Sequences of one device at the traced batch, and their batch power."""
    found = np.ones(sharding.ways.shape[:2])
    batched = [i for i, factor in enumerate(node.factors) if factor.batched]
    for i in batched:
        found = found * node.factors[i].size / sharding.ways[:, :, i]
    return found, 1 if batched else 0


def _width(node: Node, sharding: Sharding) -> np.ndarray:
    """Elements of one head's row in the stored operand, on one device."""
    scores = next(o for o in (*node.operands, *node.results) if not o.streamed)
    return node.flops / 2 / sharding.split / local_elements(scores, sharding)


def _stored_dtype(itemsize: float) -> str:
    """The measured dtype of a cache that stands for one of so many bytes."""
    return "float8_e4m3fn" if itemsize < 2 else "bfloat16"
