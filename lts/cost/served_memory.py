"""Bytes per GPU of a served model: weights, and the caches of requests."""

import numpy as np

from lts.cost.served import (
    CompressedAttention,
    LinearAttention,
    ServedLayer,
    ServedModel,
    expert_values,
    matrices,
)
from lts.cost.served_step import STATE_BYTES, Layout, Precision, Size
from lts.models.architecture import GroupedAttention, LatentAttention

FORM_BYTES = {
    "bfloat16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0,
    "w8": 1.0,
    "int4": 0.5 + 2 / 32,  # a bfloat16 scale for every 32 values
    "fp4": 0.5 + 1 / 16,  # an 8-bit scale for every 16
}
"""Bytes per value of a weight or cache, with its scales."""


def weight_bytes(model: ServedModel, layout: Layout, precision: Precision) -> float:
    """Of one GPU: of the stage with most, the one that holds the head.

    Layers divide evenly over the stages; one embedding and one head, split by tensor
    parallelism, lie on different stages where there are several.
    """
    total = 0.0
    for layer in model.layers:
        total += layer.repeats * _layer_bytes(layer, model, layout, precision)
    ends = 1 if model.tied or layout.pp > 1 else 2
    vocab = model.vocab_size * model.hidden_size * FORM_BYTES["bfloat16"] / layout.tp
    return total / layout.pp + ends * vocab


def _layer_bytes(
    layer: ServedLayer, model: ServedModel, layout: Layout, precision: Precision
) -> float:
    forms = {
        "attention": precision.attention,
        "ffn": precision.ffn,
        "router": "bfloat16",
    }
    total = 0.0
    for part, found in matrices(layer, model.hidden_size).items():
        for inputs, outputs, split in found:
            ways = layout.tp if split in ("in", "out") else 1
            if split == "kv":
                assert isinstance(layer.attention, GroupedAttention)
                ways = min(layout.tp, layer.attention.num_kv_heads)
            total += inputs * outputs * FORM_BYTES[forms[part]] / ways
    experts = expert_values(layer, model.hidden_size) / layout.stage_gpus
    return total + experts * FORM_BYTES[precision.experts]


def request_bytes(
    model: ServedModel, layout: Layout, precision: Precision, length: Size
) -> np.ndarray:
    """Cache of one request of `length` positions on each GPU of its replica."""
    value = FORM_BYTES[precision.cache]
    total = np.zeros(np.shape(length))
    for layer in model.layers:
        total = total + layer.repeats * _cache(layer, layout, length, value)
    return total / layout.pp


def _cache(layer: ServedLayer, layout: Layout, length: Size, value: float) -> Size:
    attention = layer.attention
    kept: Size = np.asarray(length, float)
    if isinstance(attention, GroupedAttention):
        if attention.window is not None:
            kept = np.minimum(kept, attention.window)
        heads = max(1.0, attention.num_kv_heads / layout.tp)
        return kept * 2 * heads * attention.head_dim * value / layout.cp
    if isinstance(attention, LinearAttention):
        heads = attention.num_value_heads / layout.tp
        return heads * attention.key_dim * attention.value_dim * STATE_BYTES
    index = layer.indexer.head_dim if layer.indexer is not None else 0  # one byte each
    if isinstance(attention, LatentAttention):
        width = (attention.kv_rank + attention.rope.size) * value + index
        return kept * width / layout.cp
    if isinstance(attention, CompressedAttention):
        far = kept / attention.ratio if attention.ratio else 0.0
        near = np.minimum(kept, attention.window) * attention.head_dim * value
        return near + far * (attention.head_dim * value + index)
    return 0.0
