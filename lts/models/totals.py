"""Number of parameters of a decoder, in all and at work on one token.

Closed forms of the sizes alone, independent of the arrays that `lts.models.parameters`
makes. Scales of quantized weights are not parameters.
"""

from lts.models.architecture import (
    DenseFfn,
    ExpertFfn,
    GroupedAttention,
    LatentAttention,
    Layer,
)
from lts.models.config import DecoderConfig


def num_params(config: DecoderConfig) -> int:
    """All parameters: embedding, layers, norms, and the head unless it is tied.

    What `config.notes` says does not run (vision towers, multi-token prediction) is
    not counted.
    """
    d = config.hidden_size
    ends = 1 if config.tie_word_embeddings else 2
    layers = sum(_attention(d, layer) + _ffn(d, layer) for layer in config.layers)
    return ends * config.vocab_size * d + layers + d


def active_params(config: DecoderConfig) -> int:
    """Parameters at work on one token: `top_k` of the routed experts, all else whole.

    Embedding and head count whole, as in Mixtral's published 12.9B of 46.7B
    (arXiv 2401.04088, section 2); some model cards leave one or both out.
    """
    idle = 0
    for layer in config.layers:
        if isinstance(layer.ffn, ExpertFfn):
            idle += (layer.ffn.num_experts - layer.ffn.top_k) * expert_params(
                config.hidden_size, layer.ffn
            )
    return num_params(config) - idle


def expert_params(hidden_size: int, ffn: ExpertFfn) -> int:
    """Parameters of one routed expert."""
    return _matrices(ffn.gated) * hidden_size * ffn.size


def _matrices(gated: bool) -> int:
    return 3 if gated else 2


def _attention(d: int, layer: Layer) -> int:
    """Of a layer's attention and the norm before it."""
    attention = layer.attention
    if isinstance(attention, GroupedAttention):
        return d + _grouped(d, attention)
    return 0 if attention is None else d + _latent(d, attention)


def _grouped(d: int, attention: GroupedAttention) -> int:
    head = attention.head_dim
    queries, keys = attention.num_heads * head, attention.num_kv_heads * head
    total = 2 * d * queries + 2 * d * keys
    total += queries + 2 * keys if attention.qkv_bias else 0
    total += d if attention.out_bias else 0
    norms = {"none": 0, "unit": 0, "head": 2 * head, "layer": queries + keys}
    return total + norms[attention.qk_norm]


def _latent(d: int, attention: LatentAttention) -> int:
    heads, rank, latent = attention.num_heads, attention.query_rank, attention.kv_rank
    turned, value = attention.rope.size, attention.value_dim
    query = heads * (attention.nope_dim + turned)
    total = d * query if rank is None else d * rank + rank + rank * query
    total += d * (latent + turned) + latent
    return total + latent * heads * (attention.nope_dim + value) + heads * value * d


def _ffn(d: int, layer: Layer) -> int:
    """Of a layer's feed-forward part and the norm before it."""
    ffn = layer.ffn
    if isinstance(ffn, DenseFfn):
        return d + _matrices(ffn.gated) * d * ffn.size
    return 0 if ffn is None else d + _experts(d, ffn)


def _experts(d: int, ffn: ExpertFfn) -> int:
    router = d * ffn.num_experts + (ffn.num_experts if ffn.routing.biased else 0)
    shared = _matrices(ffn.gated) * d * ffn.shared_size
    gate = d if ffn.shared_gated else 0
    return router + ffn.num_experts * expert_params(d, ffn) + shared + gate
