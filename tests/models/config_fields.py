"""Fields of whole config.json files that several tests change, and the refusal."""

from collections.abc import Mapping
from typing import Any

import pytest

from lts.models import read_config

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 128256,
}
QWEN3 = LLAMA | {"model_type": "qwen3", "head_dim": 128, "use_sliding_window": False}
MOE = QWEN3 | {
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 768,
}
DEEPSEEK = LLAMA | {
    "model_type": "deepseek_v3",
    "num_key_value_heads": 32,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 64,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1024,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}


def message_of(fields: Mapping[str, Any]) -> str:
    """The one line with which the reader refuses the fields."""
    with pytest.raises(ValueError) as caught:
        read_config(fields, "m")
    text = str(caught.value)
    assert "\n" not in text and text.startswith("config of 'm'")
    return text
