"""What a decoder is made of: layers, their attention and feed-forward parts.

Frozen records, hashable, in the field's own terms; `lts.models.reading` makes them from
config.json files. Layers may differ; runs of equal ones become loops (`segments`).
"""

from dataclasses import dataclass
from typing import Literal

from lts.models.rope import RopeScaling, YarnRope

QkNorm = Literal["none", "head", "layer", "unit"]
"""RMS norm of queries and keys: none, over each head, over all heads of a layer at
once, or over each head without a learnt scale."""


@dataclass(frozen=True, kw_only=True)
class Rope:
    """Rotary embedding of the first `size` elements of a head (all of them, mostly)."""

    size: int
    theta: float = 10_000.0
    scaling: RopeScaling | None = None

    @property
    def attention_scale(self) -> float:
        """What scores are multiplied by, beside 1 / sqrt(head size): YaRN's, or 1."""
        scaling = self.scaling
        return scaling.attention_scale if isinstance(scaling, YarnRope) else 1.0


@dataclass(frozen=True, kw_only=True)
class GroupedAttention:
    """Attention with query heads grouped over KV heads.

    Attributes:
      num_heads, num_kv_heads, head_dim: `num_kv_heads` divides `num_heads`.
      rope: None for layers without position embedding.
      window: how many positions, the own one included, a token sees back; None for
        all. The cache of such a layer holds no more than `window` positions.
      chunked: the window does not slide: a token sees its own chunk of `window`
        positions.
      qk_norm: see `QkNorm`.
      qkv_bias, out_bias: projections add a bias.
      query_scaling: (floor, scale): queries at position p are multiplied by
        1 + scale * log(floor((p + 1) / floor) + 1); None for not at all.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: Rope | None
    window: int | None = None
    chunked: bool = False
    qk_norm: QkNorm = "none"
    qkv_bias: bool = False
    out_bias: bool = False
    query_scaling: tuple[float, float] | None = None

    @property
    def queries_per_kv_head(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (MLA): keys and values from one small latent.

    Source: DeepSeek-V2, arXiv 2405.04434, section 2.1.

    Attributes:
      query_rank: of the query projection; None for a full one.
      kv_rank: size of the cached latent; beside it a key of `rope.size` elements that
        all heads share is cached.
      nope_dim, value_dim: size of a head's unrotated query part, and of its value.
    """

    num_heads: int
    query_rank: int | None
    kv_rank: int
    nope_dim: int
    value_dim: int
    rope: Rope


@dataclass(frozen=True, kw_only=True)
class DenseFfn:
    """A feed-forward block: gated silu, or plain relu."""

    size: int
    gated: bool = True


@dataclass(frozen=True, kw_only=True)
class Routing:
    """How a token's experts and their weights come from the router's scores.

    Attributes:
      scores: softmax over all experts, softmax over the chosen ones only, or sigmoid.
      biased: a learnt bias is added for the choice, not for the weights.
      groups, top_groups: experts are chosen within the best `top_groups` of `groups`.
      group_best: a group's score is the sum of its `group_best` best experts' scores
        (biased ones where there is a bias).
      normalised: weights are divided by their sum.
      scale: weights are multiplied by it.
      on_input: weights multiply the expert's input, not its output (top-1 only).
    """

    scores: Literal["softmax", "softmax_of_chosen", "sigmoid"] = "softmax"
    biased: bool = False
    groups: int = 1
    top_groups: int = 1
    group_best: int = 2
    normalised: bool = True
    scale: float = 1.0
    on_input: bool = False


@dataclass(frozen=True, kw_only=True)
class ExpertFfn:
    """A mixture of experts, gated silu or plain relu, maybe beside a shared expert.

    Attributes:
      size: hidden size of one expert.
      shared_size: of the shared expert (all of them as one); 0 for none.
      shared_gated: the shared expert's output is multiplied by a sigmoid of the input.
    """

    num_experts: int
    top_k: int
    size: int
    gated: bool = True
    shared_size: int = 0
    shared_gated: bool = False
    routing: Routing = Routing()


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One decoder layer; a part that is None is left out, with its norm."""

    attention: GroupedAttention | LatentAttention | None
    ffn: DenseFfn | ExpertFfn | None


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """Weights of few bits with scales over blocks.

    Attributes:
      dtype: of the values, "float8_e4m3fn" or "int4".
      block: extent of a block along inputs and outputs of a matrix.
      scale_dtype: of the scales.
      scope: which matrices: all in the layers but routers and norms, or those of the
        routed experts only.
    """

    dtype: str
    block: tuple[int, int]
    scale_dtype: str = "float32"
    scope: Literal["layers", "experts"] = "layers"


@dataclass(frozen=True, kw_only=True)
class Segment:
    """`repeats` times the layers of `unit`, from layer `start` on."""

    start: int
    unit: tuple[Layer, ...]
    repeats: int

    @property
    def depth(self) -> int:
        """Number of layers."""
        return self.repeats * len(self.unit)


def segments(layers: tuple[Layer, ...], max_unit: int = 8) -> tuple[Segment, ...]:
    """Layers as runs of repeated units, each of at most `max_unit` layers.

    From the left, the unit that covers most layers, and the shortest among equals.
    """
    found, start = [], 0
    while start < len(layers):
        best = Segment(start=start, unit=(layers[start],), repeats=1)
        for length in range(1, min(max_unit, len(layers) - start) + 1):
            unit = layers[start : start + length]
            repeats = 1
            while layers[start + repeats * length :][:length] == unit:
                repeats += 1
            run = Segment(start=start, unit=unit, repeats=repeats)
            if repeats > 1 and run.depth > best.depth:
                best = run
        found.append(best)
        start += best.depth
    return tuple(found)
