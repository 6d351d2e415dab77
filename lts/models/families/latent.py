"""Families with latent attention (MLA).

Source: the configuration and modeling files of transformers (5.24) for deepseek_v2 and
deepseek_v3; the latter's files serve kimi_k2, too.
"""

from lts.models.architecture import ExpertFfn, LatentAttention, Layer, Routing
from lts.models.families.experts import after_dense, sigmoid_experts
from lts.models.families.parts import expert_layers
from lts.models.fields import Fields
from lts.models.reading_rope import read_latent_rope


def deepseek_v2(fields: Fields) -> tuple[Layer, ...]:
    """Softmax scores; a group of experts is as good as its best one."""
    method = fields.get("topk_method", "greedy")
    fields.only("topk_method", "greedy", "group_limited_greedy")
    fields.only("scoring_func", "softmax")
    fields.only("norm_topk_prob", False)
    grouped = method == "group_limited_greedy"
    fields.ignore("n_group", "topk_group")
    size = fields.size("moe_intermediate_size")
    experts = ExpertFfn(
        num_experts=fields.size("n_routed_experts"),
        top_k=fields.size("num_experts_per_tok"),
        size=size,
        shared_size=size * fields.count("n_shared_experts", 0),
        routing=Routing(
            scores="softmax",
            groups=fields.size("n_group") if grouped else 1,
            top_groups=fields.size("topk_group") if grouped else 1,
            group_best=1,
            normalised=False,
            scale=fields.number("routed_scaling_factor", 1.0),
        ),
    )
    return expert_layers(fields, _attentions(fields), experts, after_dense(fields))


def deepseek_v3(fields: Fields) -> tuple[Layer, ...]:
    """Sigmoid scores with a bias for the choice, within the best groups."""
    experts = sigmoid_experts(fields, groups=8, top_groups=4, scale=2.5)
    return expert_layers(fields, _attentions(fields), experts, after_dense(fields))


def _attentions(fields: Fields) -> list[LatentAttention]:
    fields.only("num_key_value_heads", fields.size("num_attention_heads"))
    fields.ignore("head_dim", "qk_head_dim")
    rank = fields.get("q_lora_rank")
    attention = LatentAttention(
        num_heads=fields.size("num_attention_heads"),
        query_rank=None if rank is None else fields.size("q_lora_rank"),
        kv_rank=fields.size("kv_lora_rank"),
        nope_dim=fields.size("qk_nope_head_dim"),
        value_dim=fields.size("v_head_dim"),
        rope=read_latent_rope(fields, fields.size("qk_rope_head_dim")),
    )
    return [attention] * fields.size("num_hidden_layers")
