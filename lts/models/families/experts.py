"""Families with experts and grouped attention.

Source: the configuration and modeling files of transformers (5.24) for each type.
"""

from collections.abc import Callable
from dataclasses import replace

from lts.models.architecture import ExpertFfn, Layer, Routing
from lts.models.families.dense import qwen3_attention, unwindowed
from lts.models.families.parts import (
    FULL,
    SLIDING,
    all_or_none_windowed,
    expert_layers,
    grouped,
    layer_kinds,
    windowed,
)
from lts.models.fields import Fields


def mixtral(fields: Fields) -> tuple[Layer, ...]:
    """Weights are a softmax over the chosen experts."""
    experts = ExpertFfn(
        num_experts=fields.size("num_local_experts"),
        top_k=fields.size("num_experts_per_tok"),
        size=fields.size("intermediate_size"),
        routing=Routing(scores="softmax_of_chosen", normalised=False),
    )
    attention = grouped(fields, theta=1_000_000.0)
    attentions = all_or_none_windowed(fields, attention)
    return expert_layers(fields, attentions, experts, _everywhere)


def qwen2_moe(fields: Fields) -> tuple[Layer, ...]:
    """Beside the experts a shared one behind a gate."""
    attention = grouped(fields, qkv_bias=fields.flag("qkv_bias", True))
    kinds = layer_kinds(fields, [FULL] * fields.size("num_hidden_layers"))
    if fields.flag("use_sliding_window") and fields.get("layer_types") is None:
        raise fields.fault("use_sliding_window needs layer_types in qwen2_moe")
    experts = replace(
        _qwen_experts(fields, "moe_intermediate_size"),
        shared_size=fields.size("shared_expert_intermediate_size"),
        shared_gated=True,
    )
    attentions = windowed(fields, attention, kinds)
    return expert_layers(fields, attentions, experts, _qwen_sparse(fields))


def qwen3_moe(fields: Fields) -> tuple[Layer, ...]:
    """Norms over each query and key head; no shared expert."""
    attention = qwen3_attention(fields)
    if fields.flag("use_sliding_window"):
        attentions = all_or_none_windowed(fields, attention, 4096)
    else:
        fields.ignore("sliding_window")
        attentions = unwindowed(fields, attention)
    experts = _qwen_experts(fields, "moe_intermediate_size")
    return expert_layers(fields, attentions, experts, _qwen_sparse(fields))


def olmoe(fields: Fields) -> tuple[Layer, ...]:
    """Norms over all query heads, and over all key heads, at once."""
    bias = fields.flag("attention_bias")
    attention = grouped(
        fields,
        kv_heads=fields.size("num_attention_heads"),
        qk_norm="layer",
        qkv_bias=bias,
        out_bias=bias,
    )
    experts = _qwen_experts(fields, "intermediate_size")
    attentions = unwindowed(fields, attention)
    return expert_layers(fields, attentions, experts, _everywhere)


def glm4_moe(fields: Fields) -> tuple[Layer, ...]:
    """Half of each head is turned; first layers are dense."""
    attention = grouped(
        fields,
        qk_norm="head" if fields.flag("use_qk_norm") else "none",
        qkv_bias=fields.flag("attention_bias"),
        partial=0.5,
    )
    attentions = unwindowed(fields, attention)
    experts = sigmoid_experts(fields)
    return expert_layers(fields, attentions, experts, after_dense(fields))


def dots1(fields: Fields) -> tuple[Layer, ...]:
    """As glm4_moe, with heads turned whole and always normed; last layers may slide."""
    bias = fields.flag("attention_bias")
    attention = grouped(fields, qk_norm="head", qkv_bias=bias, out_bias=bias)
    depth = fields.size("num_hidden_layers")
    full = min(fields.count("max_window_layers", 62), depth)
    if fields.get("sliding_window") is None:
        full = depth
    kinds = layer_kinds(fields, [FULL] * full + [SLIDING] * (depth - full))
    attentions = windowed(fields, attention, kinds)
    experts = sigmoid_experts(fields)
    return expert_layers(fields, attentions, experts, after_dense(fields))


def minimax_m2(fields: Fields) -> tuple[Layer, ...]:
    """Part of a head is turned; norms over all heads of a layer at once."""
    fields.only("use_qk_norm", True)
    fields.only("qk_norm_type", "per_layer")
    fields.only("scoring_func", "sigmoid")
    fields.only("shared_intermediate_size", 0)
    fields.only("attn_type_list", [1] * fields.size("num_hidden_layers"))
    head_dim = fields.size("head_dim")
    partial = fields.size("rotary_dim", head_dim) / head_dim
    attention = grouped(fields, qk_norm="layer", theta=5_000_000.0, partial=partial)
    experts = ExpertFfn(
        num_experts=fields.size("num_local_experts"),
        top_k=fields.size("num_experts_per_tok"),
        size=fields.size("intermediate_size"),
        routing=Routing(scores="sigmoid", biased=fields.flag("use_routing_bias", True)),
    )
    attentions = unwindowed(fields, attention)
    return expert_layers(fields, attentions, experts, _everywhere)


def ernie4_5_moe(fields: Fields) -> tuple[Layer, ...]:
    """Softmax scores with a bias for the choice; experts in a range of layers."""
    attention = grouped(fields, theta=500_000.0)
    size = fields.size("moe_intermediate_size")
    experts = ExpertFfn(
        num_experts=fields.size("moe_num_experts"),
        top_k=fields.size("moe_k"),
        size=size,
        shared_size=size * fields.count("moe_num_shared_experts"),
        routing=Routing(scores="softmax", biased=True),
    )
    attentions = unwindowed(fields, attention)
    first, last = fields.count("moe_layer_start_index"), len(attentions) - 1
    step = fields.size("moe_layer_interval", 1)
    if fields.get("moe_layer_end_index", -1) != -1:
        last = fields.count("moe_layer_end_index")

    def sparse(number: int) -> bool:
        return first <= number <= last and (number + 1) % step == 0

    return expert_layers(fields, attentions, experts, sparse)


def sigmoid_experts(
    fields: Fields, *, groups: int = 1, top_groups: int = 1, scale: float = 1.0
) -> ExpertFfn:
    """Experts as DeepSeek-V3 has them; the arguments are for where a file is silent."""
    fields.only("scoring_func", "sigmoid", "noaux_tc")  # dots1 writes the method here
    fields.only("topk_method", "noaux_tc")
    size = fields.size("moe_intermediate_size")
    return ExpertFfn(
        num_experts=fields.size("n_routed_experts"),
        top_k=fields.size("num_experts_per_tok"),
        size=size,
        shared_size=size * fields.count("n_shared_experts", 0),
        routing=Routing(
            scores="sigmoid",
            biased=True,
            groups=fields.size("n_group", groups),
            top_groups=fields.size("topk_group", top_groups),
            normalised=fields.flag("norm_topk_prob", True),
            scale=fields.number("routed_scaling_factor", scale),
        ),
    )


def after_dense(fields: Fields) -> Callable[[int], bool]:
    """Which layers have experts: all after the first dense ones."""
    fields.only("moe_layer_freq", 1)
    dense = fields.count("first_k_dense_replace")
    return lambda number: number >= dense


def _qwen_experts(fields: Fields, size: str) -> ExpertFfn:
    return ExpertFfn(
        num_experts=fields.size("num_experts"),
        top_k=fields.size("num_experts_per_tok"),
        size=fields.size(size),
        routing=Routing(normalised=fields.flag("norm_topk_prob")),
    )


def _qwen_sparse(fields: Fields) -> Callable[[int], bool]:
    """Which layers have experts: every n-th, but for those that are listed."""
    dense = fields.list("mlp_only_layers") or []
    step = fields.size("decoder_sparse_step", 1)
    return lambda number: number not in dense and (number + 1) % step == 0


def _everywhere(number: int) -> bool:
    return True
