"""What a served model is made of, in the sizes that a step of it costs.

More than `lts.models` can build: layers with linear attention, with an indexer that
picks the positions to attend to, or with compressed caches are priced from their sizes
alone. `served_model` makes the record of a decoder that `lts.models` knows.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from lts.models.architecture import (
    DenseFfn,
    ExpertFfn,
    GroupedAttention,
    LatentAttention,
)
from lts.models.config import DecoderConfig


@dataclass(frozen=True, kw_only=True)
class LinearAttention:
    """A recurrent layer (gated delta rule): a state per value head instead of a cache.

    Source: Yang et al. 2024, arXiv 2412.06464; its projections as in Qwen3-Next.
    """

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True, kw_only=True)
class CompressedAttention:
    """One key-value head whose cache holds a window and every `ratio`-th position.

    Queries and outputs go through low ranks, outputs in `groups`. Source: sizes as in
    the published configuration of DeepSeek-V4.

    Attributes:
      ratio: positions that one cached entry stands for; 0 for the window alone.
    """

    num_heads: int
    head_dim: int
    query_rank: int
    output_rank: int
    groups: int
    window: int
    ratio: int


Attention = GroupedAttention | LatentAttention | LinearAttention | CompressedAttention


@dataclass(frozen=True, kw_only=True)
class Indexer:
    """Scores all positions with small heads; `top_k` of them are attended to."""

    num_heads: int
    head_dim: int
    top_k: int


@dataclass(frozen=True, kw_only=True)
class ServedLayer:
    """`repeats` equal layers.

    Attributes:
      output_gate: a projection of the input, as wide as the heads, gates the output.
      indexer: None where all positions of the cache are attended to.
      expert_input: width of what the routed experts read and write; None for the
        hidden size (else two projections lie around them).
    """

    attention: Attention | None
    ffn: DenseFfn | ExpertFfn | None
    repeats: int
    output_gate: bool = False
    indexer: Indexer | None = None
    expert_input: int | None = None


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """Sizes of a model that serves tokens."""

    name: str
    hidden_size: int
    vocab_size: int
    layers: tuple[ServedLayer, ...]
    tied: bool = False

    @property
    def num_layers(self) -> int:
        """Layers in all."""
        return sum(layer.repeats for layer in self.layers)

    @property
    def num_expert_layers(self) -> int:
        """Layers with routed experts."""
        return sum(
            layer.repeats for layer in self.layers if isinstance(layer.ffn, ExpertFfn)
        )


def served_model(config: DecoderConfig) -> ServedModel:
    """The record of a decoder of `lts.models`."""
    counts: dict = {}
    for layer in config.layers:
        counts[layer] = counts.get(layer, 0) + 1
    return ServedModel(
        name=config.name,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        layers=tuple(
            ServedLayer(attention=layer.attention, ffn=layer.ffn, repeats=count)
            for layer, count in counts.items()
        ),
        tied=config.tie_word_embeddings,
    )


def matrices(
    layer: ServedLayer, hidden: int
) -> Mapping[str, list[tuple[int, int, str]]]:
    """Dense matrices of a layer as (inputs, outputs, what tensor parallelism splits).

    By part: `attention`, `ffn` (dense or shared expert), `router`. What is split:
    "in", "out", or "" for a matrix that every rank holds whole; "kv" splits outputs
    over KV heads no further than there are (`kv_outputs`).
    """
    parts: dict[str, list[tuple[int, int, str]]] = {"attention": [], "ffn": []}
    own = parts["attention"]
    attention = layer.attention
    gate = 2 if layer.output_gate else 1
    if isinstance(attention, GroupedAttention):
        width = attention.num_heads * attention.head_dim
        kv = attention.num_kv_heads * attention.head_dim
        own += [
            (hidden, gate * width, "out"),
            (hidden, 2 * kv, "kv"),
            (width, hidden, "in"),
        ]
    elif isinstance(attention, LatentAttention):
        own += _latent(attention, hidden, layer.output_gate)
    elif isinstance(attention, LinearAttention):
        keys = attention.num_key_heads * attention.key_dim
        values = attention.num_value_heads * attention.value_dim
        rates = 2 * attention.num_value_heads
        own += [(hidden, 2 * keys + 2 * values + rates, "out"), (values, hidden, "in")]
    elif isinstance(attention, CompressedAttention):
        width = attention.num_heads * attention.head_dim
        out = attention.groups * attention.output_rank
        own += [
            (hidden, attention.query_rank + attention.head_dim, ""),
            (attention.query_rank, width, "out"),
            (width // attention.groups, out, "out"),
            (out, hidden, "in"),
        ]
    if layer.indexer is not None:
        rank = getattr(attention, "query_rank", None) or hidden
        index = layer.indexer
        own += [
            (rank, index.num_heads * index.head_dim, ""),
            (hidden, index.head_dim + index.num_heads, ""),
        ]
    _ffn(parts, layer, hidden)
    return parts


def _latent(
    attention: LatentAttention, hidden: int, output_gate: bool
) -> list[tuple[int, int, str]]:
    heads, rank = attention.num_heads, attention.query_rank
    query = heads * (attention.nope_dim + attention.rope.size)
    value = heads * attention.value_dim
    down = attention.kv_rank + attention.rope.size
    own = [(hidden, down + (rank or 0), ""), (rank or hidden, query, "out")]
    # the latent's way to keys and values, absorbed into queries and outputs in decode
    own.append((attention.kv_rank, heads * attention.nope_dim + value, "out"))
    if output_gate:
        own.append((hidden, value, "out"))
    return [*own, (value, hidden, "in")]


def _ffn(
    parts: dict[str, list[tuple[int, int, str]]], layer: ServedLayer, hidden: int
) -> None:
    ffn = layer.ffn
    if ffn is None:
        return
    size = ffn.size if isinstance(ffn, DenseFfn) else ffn.shared_size
    if size:
        up = 2 * size if ffn.gated else size
        parts["ffn"] += [(hidden, up, "out"), (size, hidden, "in")]
    if isinstance(ffn, ExpertFfn):
        parts["router"] = [(hidden, ffn.num_experts, "")]
        if layer.expert_input is not None:
            around = layer.expert_input
            parts["router"] += [(hidden, around, ""), (around, hidden, "")]


def expert_values(layer: ServedLayer, hidden: int) -> int:
    """Values of all routed experts of a layer."""
    if not isinstance(layer.ffn, ExpertFfn):
        return 0
    width = layer.expert_input or hidden
    return (
        layer.ffn.num_experts * (3 if layer.ffn.gated else 2) * width * layer.ffn.size
    )
