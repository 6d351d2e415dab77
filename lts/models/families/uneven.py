"""Families whose layers differ in more than a window or a dense start.

Source: transformers (5.24) for llama4; NVIDIA's `modeling_decilm.py` for nemotron-nas.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lts.models.architecture import (
    DenseFfn,
    ExpertFfn,
    GroupedAttention,
    Layer,
    Routing,
)
from lts.models.checks import check_number
from lts.models.families.dense import rope_layers
from lts.models.families.parts import CHUNKED, FULL, expert_layers, grouped
from lts.models.fields import Fields

# What a block of nemotron-nas may say; anything else that is on is not supported.
_DECI_KNOWN = {"no_op", "n_heads_in_group", "ffn_mult", "intermediate_size"}
_DECI_MULTIPLE = 256


def llama4(fields: Fields) -> tuple[Layer, ...]:
    """Chunked attention with rotary embedding, every fourth layer full without it.

    Layers with experts come every n-th; others are dense with a size of their own.
    """
    attentions = _llama4_attentions(fields)
    depth = len(attentions)
    size = fields.size("intermediate_size")
    experts = ExpertFfn(
        num_experts=fields.size("num_local_experts"),
        top_k=fields.size("num_experts_per_tok"),
        size=size,
        shared_size=size,
        routing=Routing(scores="sigmoid", normalised=False, on_input=True),
    )
    step = fields.size("interleave_moe_layer_step", 1)
    listed = fields.list("moe_layers")
    sparse = range(step - 1, depth, step) if listed is None else listed
    return expert_layers(
        fields, attentions, experts, lambda n: n in sparse, "intermediate_size_mlp"
    )


def _llama4_attentions(fields: Fields) -> list[GroupedAttention]:
    bias = fields.flag("attention_bias")
    bare = grouped(fields, head_dim=128, qkv_bias=bias, out_bias=bias, theta=500_000.0)
    turned = replace(
        bare, qk_norm="unit" if fields.flag("use_qk_norm", True) else "none"
    )
    # A null chunk size means full attention, an absent one the type's own.
    if (
        fields.get("attention_chunk_size")
        or "attention_chunk_size" not in fields.values
    ):
        window = fields.size("attention_chunk_size", 8192)
        turned = replace(turned, window=window, chunked=True)
    scaling = None
    if fields.flag("attn_temperature_tuning", True):
        floor, scale = (
            fields.size("floor_scale", 8192),
            fields.number("attn_scale", 0.1),
        )
        scaling = (float(floor), float(scale))
    bare = replace(bare, rope=None, query_scaling=scaling)
    has_rope = rope_layers(fields, fields.size("num_hidden_layers"))
    attentions = [turned if own else bare for own in has_rope]
    kinds = [CHUNKED if own.chunked else FULL for own in attentions]
    fields.only("layer_types", kinds, [])
    return attentions


def nemotron_nas(fields: Fields) -> tuple[Layer, ...]:
    """Each block says its heads per KV head and its feed-forward size, or that one of
    them is left out; a block without both does nothing and is dropped."""
    fields.only("hidden_act", "silu")
    fields.ignore("intermediate_size", "num_key_value_heads")
    depth = fields.size("num_hidden_layers")
    blocks = fields.list("block_configs", depth)
    if blocks is None:
        raise fields.fault("field 'block_configs' is missing")
    layers = []
    for block in blocks[:depth]:
        attention, ffn = (_deci_part(fields, block, p) for p in ("attention", "ffn"))
        if attention is not None or ffn is not None:
            own = None if attention is None else _deci_attention(fields, attention)
            size = None if ffn is None else DenseFfn(size=_deci_size(fields, ffn))
            layers.append(Layer(attention=own, ffn=size))
    return tuple(layers)


def _deci_part(fields: Fields, block: Any, part: str) -> Mapping[str, Any] | None:
    own = block.get(part) if isinstance(block, Mapping) else None
    if not isinstance(own, Mapping):
        raise fields.fault(f"block_configs: a block has no '{part}'")
    for field, value in own.items():
        if value and field not in _DECI_KNOWN:
            raise fields.fault(f"block_configs: {field} in {part} is not supported")
    return None if own.get("no_op") else own


def _deci_attention(fields: Fields, own: Mapping[str, Any]) -> GroupedAttention:
    heads, group = fields.size("num_attention_heads"), own.get("n_heads_in_group")
    if not isinstance(group, int) or group < 1 or heads % group:
        raise fields.fault(
            f"block_configs: n_heads_in_group {group!r} does not divide {heads} heads"
        )
    bias = fields.flag("attention_bias")
    return replace(
        grouped(fields, kv_heads=heads, qkv_bias=bias, out_bias=bias),
        num_kv_heads=heads // group,
    )


def _deci_size(fields: Fields, own: Mapping[str, Any]) -> int:
    """Two thirds of the multiple of hidden_size, rounded up to a multiple of 256."""
    if own.get("intermediate_size"):
        return own["intermediate_size"]
    factor: Any = own.get("ffn_mult")
    check_number(factor, "block_configs: ffn_mult", fields.name)
    plain = int(2 * factor * fields.size("hidden_size") / 3)
    return -(-plain // _DECI_MULTIPLE) * _DECI_MULTIPLE


def switch_decoder(fields: Fields) -> tuple[Layer, ...]:
    """A type of this package: the layers of a Switch Transformer as one decoder stack.

    Ungated relu experts in every layer; the chosen expert's softmax score is its
    weight, not normalised.

    Source: Fedus et al. 2021, arXiv 2101.03961, section 2.1 and table 9.
    """
    fields.only("hidden_act", "relu")
    experts = ExpertFfn(
        num_experts=fields.size("num_experts"),
        top_k=fields.size("num_experts_per_tok"),
        size=fields.size("intermediate_size"),
        gated=False,
        routing=Routing(scores="softmax", normalised=False),
    )
    attention = grouped(fields, kv_heads=fields.size("num_attention_heads"))
    layer = Layer(attention=attention, ffn=experts)
    return (layer,) * fields.size("num_hidden_layers")
