"""Shapes of a dense decoder's weights, and the trees built from them.

Matrices keep heads apart: `query` is [d, g, q, k] with g KV heads, q query heads per KV
head and head size k.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from lts.models.config import DecoderConfig

LayerForm = Literal["scan", "unrolled"]
Params = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Weight:
    """One array's shape, and how many products its output sums (0: a norm's scale)."""

    shape: tuple[int, ...]
    fan_in: int = 0


def model_weights(config: DecoderConfig) -> dict[str, Weight]:
    """Arrays outside the layers."""
    d, vocab = config.hidden_size, config.vocab_size
    weights = {
        "embed": Weight(shape=(vocab, d), fan_in=d),
        "norm": Weight(shape=(d,)),
    }
    if not config.tie_word_embeddings:
        weights["unembed"] = Weight(shape=(d, vocab), fan_in=d)
    return weights


def layer_weights(config: DecoderConfig) -> dict[str, Weight]:
    """Arrays of one layer."""
    d, f = config.hidden_size, config.intermediate_size
    g, q, k = config.num_key_value_heads, config.queries_per_kv_head, config.head_dim
    weights = {
        "norm_attention": Weight(shape=(d,)),
        "query": Weight(shape=(d, g, q, k), fan_in=d),
        "key": Weight(shape=(d, g, k), fan_in=d),
        "value": Weight(shape=(d, g, k), fan_in=d),
        "out": Weight(shape=(g, q, k, d), fan_in=g * q * k),
        "norm_mlp": Weight(shape=(d,)),
        "gate": Weight(shape=(d, f), fan_in=d),
        "up": Weight(shape=(d, f), fan_in=d),
        "down": Weight(shape=(f, d), fan_in=f),
    }
    if config.qkv_bias:
        weights["query_bias"] = Weight(shape=(g, q, k), fan_in=d)
        weights["key_bias"] = Weight(shape=(g, k), fan_in=d)
        weights["value_bias"] = Weight(shape=(g, k), fan_in=d)
    if config.out_bias:
        weights["out_bias"] = Weight(shape=(d,), fan_in=g * q * k)
    if config.qk_norm:
        weights["query_norm"] = Weight(shape=(k,))
        weights["key_norm"] = Weight(shape=(k,))
    return weights


def count(config: DecoderConfig) -> int:
    """Number of parameters."""
    outside = sum(prod(weight.shape) for weight in model_weights(config).values())
    inside = sum(prod(weight.shape) for weight in layer_weights(config).values())
    return outside + config.num_hidden_layers * inside


def build(
    config: DecoderConfig, form: LayerForm, make: Callable[[Weight], Any]
) -> Params:
    """The parameter tree with `make(weight)` at each leaf.

    In the scan form a layer's leaves have a leading dimension over layers.
    """
    params: Params = {name: make(w) for name, w in model_weights(config).items()}
    layer, depth = layer_weights(config), config.num_hidden_layers
    if form == "scan":
        params["layers"] = {
            name: make(Weight(shape=(depth, *w.shape), fan_in=w.fan_in))
            for name, w in layer.items()
        }
    else:
        params["layers"] = [
            {name: make(w) for name, w in layer.items()} for _ in range(depth)
        ]
    return params
