"""Quantized weights as config.json files describe them.

Two forms are read: 8-bit floats with a scale per block of a matrix (`fp8`, and block
strategy of `compressed-tensors`), and 4-bit integers with a scale per group of inputs
(`compressed-tensors`). What is left unquantized is checked by name against the matrices
that the model has, so that a file with unquantized attention is not priced as if it
were quantized.

Source: transformers `quantizer_finegrained_fp8.py`; the compressed-tensors format.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from lts.models.architecture import (
    DenseFfn,
    ExpertFfn,
    GroupedAttention,
    LatentAttention,
    Layer,
    Quantization,
)
from lts.models.fields import Fields

_REMEDY = "give the file without quantization and a weight dtype of your choice instead"
_FP8 = ("e4m3", "float8_e4m3fn")
_GROUPED = ("q_proj", "k_proj", "v_proj", "o_proj")
_LATENT = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
_DENSE = ("gate_proj", "up_proj", "down_proj")


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
    method = found.get("quant_method")
    if method == "fp8":
        block = _fp8_block(fields, found)
        skipped = found.get("modules_to_not_convert")
        form, scale_dtype = "float8_e4m3fn", "float32"
    elif method == "compressed-tensors":
        form, block = _compressed(fields, found)
        skipped = found.get("ignore")
        scale_dtype = dtype
    else:
        raise fields.fault(
            f"quantization method {method!r} is not supported, only fp8 and "
            f"compressed-tensors are; {_REMEDY}"
        )
    scope = _scope(fields, layers, skipped or [])
    return Quantization(
        dtype=form,
        block=block,
        scale_dtype=scale_dtype,
        scope="layers" if scope == "layers" else "experts",
    )


def _fp8_block(fields: Fields, found: Mapping[str, Any]) -> tuple[int, int]:
    if found.get("fmt", "e4m3") not in _FP8:
        raise fields.fault(
            f"fp8 format {found['fmt']!r} is not supported, only e4m3 is"
        )
    return _block(fields, found.get("weight_block_size"), "weight_block_size")


def _block(fields: Fields, block: Any, field: str) -> tuple[int, int]:
    sizes = isinstance(block, list | tuple) and len(block) == 2
    if not sizes or not all(isinstance(n, int) and n > 0 for n in block):
        raise fields.fault(
            f"8-bit weights need a scale per block of a matrix ({field}: [128, 128]), "
            f"got {block!r}; {_REMEDY}"
        )
    outputs, inputs = block  # matrices of the files are [outputs, inputs]
    return inputs, outputs


def _compressed(
    fields: Fields, found: Mapping[str, Any]
) -> tuple[str, tuple[int, int]]:
    """Dtype and block of the one group of a compressed-tensors file."""
    groups = list((found.get("config_groups") or {}).values())
    if len(groups) != 1 or groups[0].get("targets") != ["Linear"]:
        raise fields.fault(
            f"compressed-tensors with {len(groups)} groups is not supported, only with "
            f"one for all Linear modules; {_REMEDY}"
        )
    if found.get("kv_cache_scheme"):
        raise fields.fault(
            "a quantized KV cache (kv_cache_scheme) is not read from the file; drop it "
            "and give a KV dtype"
        )
    weights = groups[0].get("weights") or {}
    kind, bits = weights.get("type"), weights.get("num_bits")
    strategy, group = weights.get("strategy"), weights.get("group_size")
    if (kind, bits, strategy) == ("float", 8, "block"):
        block = weights.get("block_structure")
        return "float8_e4m3fn", _block(fields, block, "block_structure")
    integers = (kind, bits, strategy, weights.get("symmetric"))
    if integers == ("int", 4, "group", True) and isinstance(group, int) and group > 0:
        if weights.get("actorder"):
            raise fields.fault(
                f"4-bit weights in activation order (actorder: {weights['actorder']}) "
                f"are not supported; {_REMEDY}"
            )
        return "int4", (group, 1)
    raise fields.fault(
        f"compressed-tensors weights of {bits} bits ({kind}, strategy {strategy!r}) are "
        f"not supported, only float 8 by block and symmetric int 4 by group; {_REMEDY}"
    )


def _scope(fields: Fields, layers: tuple[Layer, ...], skipped: list[str]) -> str:
    """Which matrices are quantized: those of "layers", or of "experts" only."""
    left: dict[str, set[bool]] = {}
    first: dict[str, str] = {}
    for part, module in _modules(layers):
        hit = next((entry for entry in skipped if _matches(entry, module)), None)
        left.setdefault(part, set()).add(hit is not None)
        if hit is not None:
            first.setdefault(part, hit)
    if all(states == {False} for states in left.values()):
        return "layers"
    others = {part: states for part, states in left.items() if part != "experts"}
    whole = all(states == {True} for states in others.values())
    if whole and left.get("experts") == {False}:
        return "experts"
    part = next(iter(first))
    raise fields.fault(
        f"weights of {part} left unquantized in part ({first[part]!r}) are not "
        f"supported, only none, or all but those of routed experts; {_REMEDY}"
    )


def _modules(layers: tuple[Layer, ...]) -> Iterator[tuple[str, str]]:
    """Part and name of every matrix in the layers that may be quantized.

    Names are those of transformers; experts stand for all by their first one.
    """
    for number, layer in enumerate(layers):
        block = f"model.layers.{number}"
        if isinstance(layer.attention, GroupedAttention):
            yield from (("attention", f"{block}.self_attn.{m}") for m in _GROUPED)
        elif isinstance(layer.attention, LatentAttention):
            yield from (("attention", f"{block}.self_attn.{m}") for m in _LATENT)
        if isinstance(layer.ffn, DenseFfn):
            yield from (("dense layers", f"{block}.mlp.{m}") for m in _DENSE)
        elif isinstance(layer.ffn, ExpertFfn):
            yield from (("experts", f"{block}.mlp.experts.0.{m}") for m in _DENSE)
            if layer.ffn.shared_size:
                shared = f"{block}.mlp.shared_experts"
                yield from (("shared experts", f"{shared}.{m}") for m in _DENSE)


def _matches(entry: str, module: str) -> bool:
    """Whether an entry of the list of unquantized modules covers a module.

    An entry is a regular expression after "re:", else a name or part of one between
    dots.
    """
    if entry.startswith("re:"):
        return re.match(entry.removeprefix("re:"), module) is not None
    return f".{entry}." in f".{module}."
