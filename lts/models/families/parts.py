"""What the readers of several model families share."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from lts.models.architecture import (
    DenseFfn,
    ExpertFfn,
    GroupedAttention,
    LatentAttention,
    Layer,
    QkNorm,
)
from lts.models.fields import Fields
from lts.models.reading_rope import read_rope

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"


def grouped(
    fields: Fields,
    *,
    head_dim: int | None = None,
    kv_heads: int | None = None,
    qk_norm: QkNorm = "none",
    qkv_bias: bool = False,
    out_bias: bool = False,
    theta: float = 10_000.0,
    partial: float | None = None,
) -> GroupedAttention:
    """Attention over the whole context, from fields whose names most families share.

    Args:
      fields: of the text model.
      head_dim, kv_heads: where the file is silent; None for what it then has to be:
        hidden_size over the heads, and an error.
      theta, partial: of the rotary embedding where the file is silent (`read_rope`).
    """
    heads = fields.size("num_attention_heads")
    if fields.get("head_dim") is None:
        head_dim = head_dim or _even_share(fields, heads)
    head_dim = fields.size("head_dim", head_dim)
    return GroupedAttention(
        num_heads=heads,
        num_kv_heads=fields.size("num_key_value_heads", kv_heads),
        head_dim=head_dim,
        rope=read_rope(fields, head_dim, theta=theta, partial=partial),
        qk_norm=qk_norm,
        qkv_bias=qkv_bias,
        out_bias=out_bias,
    )


def _even_share(fields: Fields, heads: int) -> int:
    hidden = fields.size("hidden_size")
    if hidden % heads:
        raise fields.fault(
            f"hidden_size ({hidden}) is not a multiple of num_attention_heads "
            f"({heads}), so head_dim must be given"
        )
    return hidden // heads


def layer_kinds(fields: Fields, default: Sequence[str]) -> Sequence[str]:
    """The kind of attention of each layer: `layer_types`, or the default.

    Raises:
      ValueError: for a kind other than full and sliding attention, or a wrong number.
    """
    depth = fields.size("num_hidden_layers")
    kinds = fields.list("layer_types", depth)
    if kinds is None:
        return default
    others = sorted({str(kind) for kind in kinds} - {FULL, SLIDING})
    if others:
        raise fields.fault(
            f"layers of {', '.join(others)} (layer_types) are not supported, only "
            f"{FULL} and {SLIDING} are"
        )
    return kinds[:depth]


def windowed(
    fields: Fields, attention: GroupedAttention, kinds: Sequence[str]
) -> list[GroupedAttention]:
    """One attention per layer; sliding ones see `sliding_window` positions."""
    if SLIDING not in kinds:
        fields.ignore("sliding_window")
        return [attention] * len(kinds)
    sliding = replace(attention, window=fields.size("sliding_window"))
    return [sliding if kind == SLIDING else attention for kind in kinds]


def all_or_none_windowed(
    fields: Fields, attention: GroupedAttention, default: int | None = None
) -> list[GroupedAttention]:
    """One attention per layer, all of them sliding where `sliding_window` is a number.

    `default` is for a file without the field; null in a file means no window.
    """
    if "sliding_window" in fields.values:
        default = None
    slides = fields.get("sliding_window", default) is not None
    if slides:
        attention = replace(attention, window=fields.size("sliding_window", default))
    kinds = [SLIDING if slides else FULL] * fields.size("num_hidden_layers")
    if any(kind != kinds[0] for kind in layer_kinds(fields, kinds)):
        raise fields.fault(
            "layer_types that differ from sliding_window are not supported here"
        )
    return [attention] * len(kinds)


def dense_layers(
    fields: Fields, attentions: Sequence[GroupedAttention]
) -> tuple[Layer, ...]:
    """Layers with a gated feed-forward part of `intermediate_size`."""
    fields.only("hidden_act", "silu")
    ffn = DenseFfn(size=fields.size("intermediate_size"))
    return tuple(Layer(attention=attention, ffn=ffn) for attention in attentions)


def expert_layers(
    fields: Fields,
    attentions: Sequence[GroupedAttention | LatentAttention],
    experts: ExpertFfn,
    has_experts: Callable[[int], bool],
    dense_size: str = "intermediate_size",
) -> tuple[Layer, ...]:
    """Layers with experts where `has_experts(number)`, else dense of `dense_size`."""
    fields.only("hidden_act", "silu")
    sparse = [has_experts(number) for number in range(len(attentions))]
    fields.ignore(dense_size)
    dense = None if all(sparse) else DenseFfn(size=fields.size(dense_size))
    return tuple(
        Layer(attention=attention, ffn=experts if own else dense)
        for attention, own in zip(attentions, sparse, strict=True)
    )
