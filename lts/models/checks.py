"""What must hold for the records of a decoder; each fault is one line.

Messages begin with the decoder's name and name the sizes that disagree.
"""

from typing import Any, get_args

from lts.models.architecture import (
    DenseFfn,
    ExpertFfn,
    GroupedAttention,
    LatentAttention,
    Layer,
    QkNorm,
    Quantization,
    Rope,
    Routing,
)

_QUANTIZED_DTYPES = ("float8_e4m3fn", "int4")
_SCORES = ("softmax", "softmax_of_chosen", "sigmoid")


def check_size(value: Any, field: str, name: str) -> None:
    """Raises ValueError unless `value` is a positive integer."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise fault(name, f"field '{field}' must be an integer, got {value!r}")
    if value < 1:
        raise fault(name, f"field '{field}' must be at least 1, got {value}")


def check_number(value: Any, field: str, name: str) -> None:
    """Raises ValueError unless `value` is a positive, finite number."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value < float("inf"):
        raise fault(name, f"field '{field}' must be a positive number, got {value!r}")


def check_layer(layer: Layer, name: str) -> None:
    """Raises ValueError, in one line, where a layer's sizes do not fit together."""
    if layer.attention is None and layer.ffn is None:
        raise fault(name, "a layer needs attention or a feed-forward part")
    if isinstance(layer.attention, GroupedAttention):
        _check_grouped(layer.attention, name)
    elif isinstance(layer.attention, LatentAttention):
        _check_latent(layer.attention, name)
    if isinstance(layer.ffn, DenseFfn):
        check_size(layer.ffn.size, "size", name)
    elif isinstance(layer.ffn, ExpertFfn):
        _check_experts(layer.ffn, name)


def check_quantization(quantization: Quantization, name: str) -> None:
    """Raises ValueError for an unknown dtype, block or scope."""
    if quantization.dtype not in _QUANTIZED_DTYPES:
        raise fault(
            name,
            f"quantized weights must be {' or '.join(_QUANTIZED_DTYPES)}, got "
            f"{quantization.dtype!r}",
        )
    for extent in quantization.block:
        check_size(extent, "block", name)
    if quantization.scope not in ("layers", "experts"):
        raise fault(
            name, f"scope must be 'layers' or 'experts', got {quantization.scope!r}"
        )


def fault(name: str, what: str) -> ValueError:
    """The error of one decoder's config."""
    return ValueError(f"config of {name!r}: {what}")


def _check_sizes(record: Any, fields: tuple[str, ...], name: str) -> None:
    for field in fields:
        check_size(getattr(record, field), field, name)


def _check_grouped(attention: GroupedAttention, name: str) -> None:
    _check_sizes(attention, ("num_heads", "num_kv_heads", "head_dim"), name)
    heads, kv_heads = attention.num_heads, attention.num_kv_heads
    if heads % kv_heads:
        raise fault(
            name, f"query heads ({heads}) must be a multiple of KV heads ({kv_heads})"
        )
    if attention.rope is not None:
        _check_rope(attention.rope, attention.head_dim, name)
    if attention.window is not None:
        check_size(attention.window, "window", name)
    elif attention.chunked:
        raise fault(name, "chunked attention needs a window, got None")
    if attention.qk_norm not in get_args(QkNorm):
        raise fault(
            name,
            f"qk_norm must be one of {', '.join(get_args(QkNorm))}, got "
            f"{attention.qk_norm!r}",
        )
    for number in attention.query_scaling or ():
        check_number(number, "query_scaling", name)


def _check_latent(attention: LatentAttention, name: str) -> None:
    sizes = ("num_heads", "kv_rank", "nope_dim", "value_dim")
    _check_sizes(attention, sizes, name)
    if attention.query_rank is not None:
        check_size(attention.query_rank, "query_rank", name)
    _check_rope(attention.rope, attention.rope.size, name)


def _check_rope(rope: Rope, head_dim: int, name: str) -> None:
    check_size(rope.size, "rotary size", name)
    if rope.size % 2 or rope.size > head_dim:
        raise fault(
            name,
            f"the rotary size must be even and at most the head size ({head_dim}), "
            f"got {rope.size}",
        )
    check_number(rope.theta, "rope_theta", name)


def _check_experts(ffn: ExpertFfn, name: str) -> None:
    _check_sizes(ffn, ("num_experts", "top_k", "size"), name)
    if ffn.top_k > ffn.num_experts:
        raise fault(
            name,
            f"experts per token ({ffn.top_k}) must be at most the number of experts "
            f"({ffn.num_experts})",
        )
    if ffn.shared_size:
        check_size(ffn.shared_size, "shared_size", name)
    elif ffn.shared_gated:
        raise fault(name, "a gate of the shared expert needs a shared expert")
    _check_routing(ffn.routing, ffn, name)


def _check_routing(routing: Routing, ffn: ExpertFfn, name: str) -> None:
    _check_sizes(routing, ("groups", "top_groups", "group_best"), name)
    check_number(routing.scale, "scale", name)
    if routing.scores not in _SCORES:
        raise fault(
            name, f"scores must be one of {', '.join(_SCORES)}, got {routing.scores!r}"
        )
    groups, kept = routing.groups, routing.top_groups
    if ffn.num_experts % groups or kept > groups:
        raise fault(
            name,
            f"expert groups ({groups}) must divide the experts ({ffn.num_experts}), "
            f"and groups per token ({kept}) be at most as many",
        )
    if ffn.top_k > ffn.num_experts // groups * kept:
        raise fault(
            name,
            f"experts per token ({ffn.top_k}) must be at most those of the {kept} "
            f"chosen groups ({ffn.num_experts // groups * kept})",
        )
    if groups > 1 and routing.group_best > ffn.num_experts // groups:
        raise fault(
            name,
            f"a group's score sums {routing.group_best} experts, but a group has "
            f"{ffn.num_experts // groups}",
        )
    if routing.on_input and ffn.top_k != 1:
        raise fault(
            name, f"weights on the input need one expert per token, not {ffn.top_k}"
        )
