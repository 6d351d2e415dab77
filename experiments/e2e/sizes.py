"""Sizes of a model from the fields of its config.json, features ignored.

For models that `lts.models` refuses since it cannot run them: what a step of them costs
follows from their sizes. Grouped, latent, linear and compressed attention, indexers,
dense and expert feed-forward parts; whatever else there is does not cost much.
"""

from collections.abc import Mapping
from typing import Any

from lts.cost.served import (
    CompressedAttention,
    Indexer,
    LinearAttention,
    ServedLayer,
    ServedModel,
)
from lts.models.architecture import (
    DenseFfn,
    ExpertFfn,
    GroupedAttention,
    LatentAttention,
    Rope,
)

Fields = Mapping[str, Any]


def read_sizes(fields: Fields, name: str) -> ServedModel:
    """Sizes of the text model.

    Raises:
      ValueError: in one line, if a size is missing.
    """
    fields = {**fields, **fields.get("text_config", {})}
    try:
        return _read(fields, name)
    except KeyError as error:
        raise ValueError(f"config of {name!r}: field {error} is missing") from None


def _read(fields: Fields, name: str) -> ServedModel:
    depth = fields["num_hidden_layers"]
    counts: dict[ServedLayer, int] = {}
    for number in range(depth):
        layer = ServedLayer(
            attention=_attention(fields, number),
            ffn=_ffn(fields, number),
            repeats=1,
            output_gate=_gated(fields),
            indexer=_indexer(fields, number),
            expert_input=fields.get("routed_expert_hidden_size"),
        )
        counts[layer] = counts.get(layer, 0) + 1
    layers = tuple(
        ServedLayer(**{**vars(layer), "repeats": count})
        for layer, count in counts.items()
    )
    return ServedModel(
        name=name,
        hidden_size=fields["hidden_size"],
        vocab_size=fields["vocab_size"],
        layers=layers,
        tied=bool(fields.get("tie_word_embeddings")),
    )


def _gated(fields: Fields) -> bool:
    return bool(fields.get("attn_output_gate") or fields.get("mla_use_output_gate"))


def _is_linear(fields: Fields, number: int) -> bool:
    if kinds := fields.get("layer_types"):
        return kinds[number] == "linear_attention"
    if listed := fields.get("linear_attn_config", {}).get("full_attn_layers"):
        return number + 1 not in listed  # counted from one
    step = fields.get("full_attention_interval")
    return bool(step) and (number + 1) % step != 0


def _attention(fields: Fields, number: int):
    heads = fields["num_attention_heads"]
    if _is_linear(fields, number):
        own = fields.get("linear_attn_config", {})
        size = own.get("head_dim")
        return LinearAttention(
            num_key_heads=own.get("num_heads") or fields["linear_num_key_heads"],
            num_value_heads=own.get("num_heads") or fields["linear_num_value_heads"],
            key_dim=size or fields["linear_key_head_dim"],
            value_dim=size or fields["linear_value_head_dim"],
        )
    if "compress_ratios" in fields:
        return CompressedAttention(
            num_heads=heads,
            head_dim=fields["head_dim"],
            query_rank=fields["q_lora_rank"],
            output_rank=fields["o_lora_rank"],
            groups=fields["o_groups"],
            window=fields["sliding_window"],
            ratio=fields["compress_ratios"][number],
        )
    if fields.get("kv_lora_rank"):
        return LatentAttention(
            num_heads=heads,
            query_rank=fields.get("q_lora_rank"),
            kv_rank=fields["kv_lora_rank"],
            nope_dim=fields["qk_nope_head_dim"],
            value_dim=fields["v_head_dim"],
            rope=Rope(size=fields["qk_rope_head_dim"]),
        )
    head_dim = fields.get("head_dim") or fields["hidden_size"] // heads
    return GroupedAttention(
        num_heads=heads,
        num_kv_heads=fields.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        rope=None,
        window=_window(fields, number),
    )


def _window(fields: Fields, number: int) -> int | None:
    kinds = fields.get("layer_types")
    slides = kinds is not None and kinds[number] == "sliding_attention"
    return fields.get("sliding_window") if slides else None


def _indexer(fields: Fields, number: int) -> Indexer | None:
    ratios = fields.get("compress_ratios")
    if not fields.get("index_topk") or (ratios and ratios[number] != 4):
        return None
    return Indexer(
        num_heads=fields["index_n_heads"],
        head_dim=fields["index_head_dim"],
        top_k=fields["index_topk"],
    )


def _ffn(fields: Fields, number: int) -> DenseFfn | ExpertFfn:
    gated = fields.get("gated", True)
    experts = next(
        (fields[n] for n in ("n_routed_experts", "num_experts", "num_local_experts")
         if fields.get(n)),
        0,
    )  # fmt: skip
    if not experts or number < fields.get("first_k_dense_replace", 0):
        return DenseFfn(size=fields["intermediate_size"], gated=gated)
    size = fields.get("moe_intermediate_size") or fields["intermediate_size"]
    shared = fields.get("shared_expert_intermediate_size")
    count = fields.get("n_shared_experts") or fields.get("num_shared_experts") or 0
    return ExpertFfn(
        num_experts=experts,
        top_k=fields.get("num_experts_per_tok") or fields["num_experts_per_token"],
        size=size,
        shared_size=shared if shared is not None else count * size,
    )
