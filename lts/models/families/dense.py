"""Families without experts: which fields they have, and what their type implies.

Source: the configuration and modeling files of transformers (5.24) for each type.
"""

from dataclasses import replace

from lts.models.architecture import GroupedAttention, Layer
from lts.models.families.parts import (
    FULL,
    SLIDING,
    all_or_none_windowed,
    dense_layers,
    grouped,
    layer_kinds,
    windowed,
)
from lts.models.fields import Fields


def llama(fields: Fields) -> tuple[Layer, ...]:
    """The first files have no KV heads: every query head had its own."""
    bias = fields.flag("attention_bias")
    attention = grouped(
        fields, kv_heads=_query_heads(fields), qkv_bias=bias, out_bias=bias
    )
    return dense_layers(fields, unwindowed(fields, attention))


def mistral(fields: Fields) -> tuple[Layer, ...]:
    """All layers slide, with a window of 4096 where the file does not name one."""
    return dense_layers(fields, all_or_none_windowed(fields, grouped(fields), 4096))


def phi3(fields: Fields) -> tuple[Layer, ...]:
    """Fused projections in the files; the rotary embedding may be partial."""
    attention = grouped(fields, kv_heads=_query_heads(fields), partial=1.0)
    if attention.rope is not None and attention.rope.scaling is not None:
        raise fields.fault("scaled rotary embedding is not supported in phi3")
    return dense_layers(fields, all_or_none_windowed(fields, attention))


def qwen2(fields: Fields) -> tuple[Layer, ...]:
    """Three biases by definition, and never one at the output."""
    fields.ignore("attention_bias")
    return dense_layers(fields, _qwen_windows(fields, grouped(fields, qkv_bias=True)))


def qwen3(fields: Fields) -> tuple[Layer, ...]:
    """A norm over each query and key head; the head size has to be given."""
    return dense_layers(fields, _qwen_windows(fields, qwen3_attention(fields)))


def seed_oss(fields: Fields) -> tuple[Layer, ...]:
    """Biases of queries, keys and values, and of the output, each with a switch."""
    attention = grouped(
        fields,
        head_dim=128,
        qkv_bias=fields.flag("attention_bias", True),
        out_bias=fields.flag("attention_out_bias"),
    )
    return dense_layers(fields, unwindowed(fields, attention))


def ernie4_5(fields: Fields) -> tuple[Layer, ...]:
    """As llama, with a head size and rotary base of its own."""
    attention = grouped(fields, head_dim=128, theta=500_000.0)
    return dense_layers(fields, unwindowed(fields, attention))


def smollm3(fields: Fields) -> tuple[Layer, ...]:
    """Some layers, every fourth by default, go without rotary embedding."""
    bias = fields.flag("attention_bias")
    attention = grouped(fields, qkv_bias=bias, out_bias=bias, theta=2_000_000.0)
    attentions = unwindowed(fields, attention)
    turned = rope_layers(fields, len(attentions))
    bare = replace(attention, rope=None)
    return dense_layers(fields, [attention if own else bare for own in turned])


def qwen3_attention(fields: Fields) -> GroupedAttention:
    """Attention of qwen3 and qwen3_moe."""
    fields.needed("head_dim")
    fields.only("use_qk_norm", True)
    bias = fields.flag("attention_bias")
    return grouped(fields, qk_norm="head", qkv_bias=bias, out_bias=bias)


def unwindowed(fields: Fields, attention: GroupedAttention) -> list[GroupedAttention]:
    """One attention per layer, for families without windows."""
    full = [FULL] * fields.size("num_hidden_layers")
    if SLIDING in layer_kinds(fields, full):
        raise fields.fault("sliding-window layers (layer_types) are not supported here")
    return [attention] * len(full)


def rope_layers(fields: Fields, depth: int) -> list[bool]:
    """Which layers have rotary embedding: as listed, or all but every n-th."""
    listed = fields.list("no_rope_layers", depth)
    step = fields.size("no_rope_layer_interval", 4)
    if listed is not None:
        return [bool(own) for own in listed[:depth]]  # 1 stands for rotary embedding
    return [(number + 1) % step != 0 for number in range(depth)]


def _query_heads(fields: Fields) -> int:
    return fields.size("num_attention_heads")


def _qwen_windows(
    fields: Fields, attention: GroupedAttention
) -> list[GroupedAttention]:
    """Windows stand behind a switch; layers from `max_window_layers` on slide."""
    depth, slides = fields.size("num_hidden_layers"), fields.flag("use_sliding_window")
    full = min(fields.count("max_window_layers", 28), depth) if slides else depth
    kinds = layer_kinds(fields, [FULL] * full + [SLIDING] * (depth - full))
    if SLIDING in kinds and not slides:
        raise fields.fault(
            "layer_types has sliding layers, use_sliding_window is false"
        )
    return windowed(fields, attention, kinds)
