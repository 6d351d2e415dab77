"""Fields of small models of many types, and what is read from them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lts.models import DecoderConfig, read_config
from lts.models.architecture import (
    DenseFfn,
    ExpertFfn,
    GroupedAttention,
    LatentAttention,
    Rope,
)

BASE = {
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
ROUTED = {"num_experts_per_tok": 2, "moe_intermediate_size": 96}
QWEN = {"num_experts": 6, **ROUTED}
DEEPSEEK = {
    **ROUTED,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 2,
    "num_key_value_heads": 8,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_group": 4,
    "topk_group": 2,
}
GLM = {
    **ROUTED,
    "n_routed_experts": 6,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}
ERNIE = {
    "moe_num_experts": 6,
    "moe_k": 2,
    "moe_intermediate_size": 96,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
    "moe_layer_end_index": 4,
    "moe_layer_interval": 1,
    "moe_use_aux_free": True,
    "moe_capacity": [64, 64, 64],
}
MINIMAX = {
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "head_dim": 64,
    "rotary_dim": 32,
    "attn_type_list": [1] * 6,
    "layernorm_linear_attention_beta": 1.0,
}
LLAMA4 = {
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "intermediate_size_mlp": 1024,
    "interleave_moe_layer_step": 2,
    "head_dim": 64,
}
HEAD = GroupedAttention(
    num_heads=8, num_kv_heads=2, head_dim=32, rope=Rope(size=32, theta=1e4)
)
WIDE = replace(HEAD, head_dim=64, rope=Rope(size=64, theta=1e4))


def read(
    model_type: str, changes: Mapping[str, Any] | None = None, **more: Any
) -> DecoderConfig:
    """The config of `BASE` with changes."""
    return read_config(
        {**BASE, "model_type": model_type, **(changes or {}), **more}, "m"
    )


def attentions(
    config: DecoderConfig,
) -> list[GroupedAttention | LatentAttention | None]:
    """Of every layer."""
    return [layer.attention for layer in config.layers]


def ffns(config: DecoderConfig) -> list[DenseFfn | ExpertFfn | None]:
    """Of every layer."""
    return [layer.ffn for layer in config.layers]
