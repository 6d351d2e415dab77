"""How the fields of each model type become layers."""

from collections.abc import Callable
from dataclasses import dataclass

from lts.models.architecture import Layer
from lts.models.families.dense import (
    ernie4_5,
    llama,
    mistral,
    phi3,
    qwen2,
    qwen3,
    seed_oss,
    smollm3,
)
from lts.models.families.experts import (
    dots1,
    ernie4_5_moe,
    glm4_moe,
    minimax_m2,
    mixtral,
    olmoe,
    qwen2_moe,
    qwen3_moe,
)
from lts.models.families.latent import deepseek_v2, deepseek_v3
from lts.models.families.uneven import llama4, nemotron_nas, switch_decoder
from lts.models.fields import Fields


@dataclass(frozen=True, kw_only=True)
class Family:
    """One model type.

    Attributes:
      layers: reads the layers.
      tied: whether logits reuse the embedding where the file is silent.
      eps: of the norms where the file is silent.
      harmless: fields that look like a feature and neither cost nor change anything.
      notes: what messages should say about every model of the type.
    """

    layers: Callable[[Fields], tuple[Layer, ...]]
    tied: bool = False
    eps: float = 1e-6
    harmless: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


_ONE_STACK = (
    "the published Switch Transformer is an encoder and a decoder with relative "
    "position biases; here its layers are one decoder stack with rotary embedding"
)
_MINIMAX_OFF = (
    "layernorm_full_attention_beta",
    "layernorm_linear_attention_beta",
    "layernorm_mlp_beta",
    "shared_moe_mode",
)
FAMILIES: dict[str, Family] = {
    "llama": Family(layers=llama),
    "mistral": Family(layers=mistral),
    "phi3": Family(layers=phi3, eps=1e-5),
    "qwen2": Family(layers=qwen2),
    "mimo": Family(layers=qwen2),
    "qwen3": Family(layers=qwen3),
    "seed_oss": Family(layers=seed_oss),
    "ernie4_5": Family(layers=ernie4_5, tied=True, eps=1e-5),
    "smollm3": Family(layers=smollm3, tied=True),
    "nemotron-nas": Family(layers=nemotron_nas),
    "mixtral": Family(layers=mixtral, eps=1e-5),
    "qwen2_moe": Family(layers=qwen2_moe),
    "qwen3_moe": Family(layers=qwen3_moe),
    "olmoe": Family(layers=olmoe, eps=1e-5),
    "glm4_moe": Family(layers=glm4_moe, eps=1e-5),
    "dots1": Family(layers=dots1),
    "minimax_m2": Family(layers=minimax_m2, harmless=_MINIMAX_OFF),
    "ernie4_5_moe": Family(
        layers=ernie4_5_moe,
        tied=True,
        eps=1e-5,
        harmless=("moe_capacity", "moe_gate", "moe_use_aux_free", "moe_norm_min"),
    ),
    "deepseek_v2": Family(layers=deepseek_v2),
    "deepseek_v3": Family(layers=deepseek_v3),
    "kimi_k2": Family(layers=deepseek_v3),
    "llama4_text": Family(layers=llama4, eps=1e-5),
    "switch_decoder": Family(layers=switch_decoder, notes=(_ONE_STACK,)),
}
# Text models beside a vision tower, which in older files stands in the same object.
# With text alone the three positions of their rotary embedding are one.
FAMILIES |= {
    "qwen2_vl": FAMILIES["qwen2"],
    "qwen2_5_vl": FAMILIES["qwen2"],
    "qwen2_vl_text": FAMILIES["qwen2"],
    "qwen2_5_vl_text": FAMILIES["qwen2"],
    "qwen3_vl_text": FAMILIES["qwen3"],
    "qwen3_vl_moe_text": FAMILIES["qwen3_moe"],
}
NESTED = (
    "kimi_k25",
    "llama4",
    "llava",
    "mistral3",
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "qwen3_vl_moe",
)
"""Types whose files hold a vision tower, and a text model of one of `FAMILIES` in
`text_config`."""
