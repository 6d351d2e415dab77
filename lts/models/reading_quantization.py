"""Quantized weights as config.json files describe them.

Two forms are read: 8-bit floats with a scale per block of a matrix (`fp8`, and block
strategy of `compressed-tensors`), and 4-bit integers with a scale per group of inputs
(`compressed-tensors`). What a file skips is checked by name against the matrices that
the model has, so that unquantized attention is not priced as if it were quantized.

Source: transformers `quantizer_finegrained_fp8.py`; the compressed-tensors format.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from lts.models.architecture import (
    DenseFfn,
    ExpertFfn,
    GroupedAttention,
    LatentAttention,
    Layer,
    Quantization,
)
from lts.models.fields import Fields

_REMEDY = "leave quantization out and give a weight dtype instead"
_FP8 = ("e4m3", "float8_e4m3fn")
# Names of modules in the files of transformers, of which families use one or another.
_HEADS = ("model", "language_model.model", "model.language_model")
_FFN = ("mlp", "block_sparse_moe", "feed_forward")
_GROUPED = ("q_proj", "k_proj", "v_proj", "o_proj")
_LATENT = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
_DENSE = ("gate_proj", "up_proj", "down_proj")
_OUTSIDE = {
    *("lm_head", "embed_tokens", "norm", "input_layernorm", "post_attention_layernorm"),
    *("q_norm", "k_norm", "q_a_layernorm", "kv_a_layernorm"),
    *("gate", "router", "e_score_correction_bias", "shared_expert_gate"),
    *(
        "visual",
        "vision_tower",
        "vision_model",
        "multi_modal_projector",
        "mm_projector",
    ),
}


def read_quantization(
    fields: Fields, layers: tuple[Layer, ...], dtype: str
) -> Quantization | None:
    """The form of the quantized weights; None where there are none.

    Args:
      fields: of the object that holds `quantization_config`.
      layers: of the model.
      dtype: of what is not quantized.

    Raises:
      ValueError: in one line, for another method, or for matrices left unquantized
        other than all but the routed experts.
    """
    found = fields.object("quantization_config") or fields.object("compression_config")
    if not found:
        return None
    own = Fields(found, fields.name)
    method = own.get("quant_method")
    if method == "fp8":
        form, block, scale_dtype = "float8_e4m3fn", _fp8_block(own), "float32"
        skipped = own.list("modules_to_not_convert")
    elif method == "compressed-tensors":
        form, block = _compressed(own)
        skipped, scale_dtype = own.list("ignore"), dtype
    else:
        raise fields.fault(
            f"quantization {method or own.get('quant_algo')!r} is not supported, "
            f"only fp8 and compressed-tensors are; {_REMEDY}"
        )
    return Quantization(
        dtype=form,
        block=block,
        scale_dtype=scale_dtype,
        scope=_scope(fields, layers, [str(entry) for entry in skipped or ()]),
    )


def _fp8_block(own: Fields) -> tuple[int, int]:
    own.only("fmt", *_FP8)
    return _block(own, "weight_block_size")


def _block(own: Fields, field: str) -> tuple[int, int]:
    block = own.list(field) or []
    if len(block) != 2 or not all(isinstance(n, int) and n > 0 for n in block):
        raise own.fault(
            f"8-bit weights need a scale per block of a matrix ({field}: [128, 128]), "
            f"got {own.get(field)!r}; {_REMEDY}"
        )
    outputs, inputs = block  # matrices of the files are [outputs, inputs]
    return inputs, outputs


def _compressed(own: Fields) -> tuple[str, tuple[int, int]]:
    """Dtype and block of the one group of a compressed-tensors file."""
    groups = Fields(own.object("config_groups"), own.name)
    parts = [Fields(groups.object(name), own.name) for name in groups.values]
    if [part.get("targets") for part in parts] != [["Linear"]]:
        raise own.fault(
            f"compressed-tensors with {len(parts)} groups is not supported, only with "
            f"one for all Linear modules; {_REMEDY}"
        )
    if own.get("kv_cache_scheme"):
        raise own.fault(
            "a quantized KV cache (kv_cache_scheme) is not read from the file; drop it "
            "and give a KV dtype"
        )
    weights = Fields(parts[0].object("weights"), own.name)
    kind = tuple(weights.get(field) for field in ("type", "num_bits", "strategy"))
    if kind == ("float", 8, "block"):
        return "float8_e4m3fn", _block(weights, "block_structure")
    if kind != ("int", 4, "group") or weights.get("symmetric") is not True:
        raise own.fault(
            f"compressed-tensors weights of {kind[1]} bits ({kind[0]}, by {kind[2]}) "
            f"are not supported, only 8-bit floats by block and symmetric 4-bit "
            f"integers by group; {_REMEDY}"
        )
    for field in ("actorder", "scale_dtype"):
        if weights.get(field):
            raise own.fault(
                f"4-bit weights with {field}: {weights.get(field)!r} are not "
                f"supported; {_REMEDY}"
            )
    return "int4", (weights.size("group_size"), 1)


def _scope(
    fields: Fields, layers: tuple[Layer, ...], skipped: list[str]
) -> Literal["layers", "experts"]:
    """Which matrices are quantized: those of the layers, or of routed experts only."""
    states: dict[str, set[bool]] = {}
    used: dict[str, str] = {}  # entry -> part that it leaves unquantized
    for part, names in _matrices(layers):
        hits = [entry for entry in skipped if _covers(entry, names)]
        states.setdefault(part, set()).add(bool(hits))
        used.update(dict.fromkeys(hits, part))
    for entry in skipped:
        if entry not in used and not _is_outside(entry, len(layers)):
            raise fields.fault(
                f"quantization skips {entry!r}, which is no module that is known here; "
                f"{_REMEDY}"
            )
    routed = states.pop("experts", set())
    if True not in routed.union(*states.values()):
        return "layers"
    if routed == {False} and all(state == {True} for state in states.values()):
        return "experts"
    entry, part = next(iter(used.items()))
    raise fields.fault(
        f"quantization skips weights of {part} ({entry!r}): not supported unless it "
        f"skips all but routed experts; {_REMEDY}"
    )


def _matrices(layers: tuple[Layer, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Part and possible names of every matrix in the layers that may be quantized.

    Experts stand for all by their first one.
    """
    for number, layer in enumerate(layers):
        if isinstance(layer.attention, GroupedAttention):
            yield from _named("attention", number, ("self_attn",), _GROUPED)
        elif isinstance(layer.attention, LatentAttention):
            yield from _named("attention", number, ("self_attn",), _LATENT)
        if isinstance(layer.ffn, DenseFfn):
            yield from _named("dense layers", number, _FFN, _DENSE)
        elif isinstance(layer.ffn, ExpertFfn):
            routed = [f"{ffn}.experts.0" for ffn in _FFN]
            yield from _named("experts", number, routed, _DENSE)
            if layer.ffn.shared_size:
                shared = [f"{ffn}.shared_expert{s}" for ffn in _FFN for s in ("s", "")]
                yield from _named("shared experts", number, shared, _DENSE)


def _named(
    part: str, number: int, blocks: Sequence[str], matrices: Sequence[str]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    for matrix in matrices:
        names = (f"layers.{number}.{block}.{matrix}" for block in blocks)
        yield part, tuple(f"{head}.{name}" for name in names for head in _HEADS)


def _covers(entry: str, names: tuple[str, ...]) -> bool:
    """Whether an entry of the skipped modules covers a matrix of one of these names.

    An entry is a regular expression after "re:", else a name or a part between dots.
    """
    if entry.startswith("re:"):
        pattern = entry.removeprefix("re:")
        return any(re.match(pattern, name) for name in names)
    return any(f".{entry}." in f".{name}." for name in names)


def _is_outside(entry: str, depth: int) -> bool:
    """Whether an entry is of what is never quantized here, or does not run."""
    if entry.startswith("re:") or not _OUTSIDE.isdisjoint(entry.split(".")):
        return True
    layer = re.search(r"layers\.(\d+)", entry)
    return layer is not None and int(layer[1]) >= depth
