"""A decoder's config as plain JSON data, and back.

Every record is an object whose "kind" names its class; tuples are lists. Layers are
kept once each in "layer_kinds"; "layers" has their order, as repeated units of places
in that list, so that 88 equal layers are one.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from lts.models.architecture import (
    DenseFfn,
    ExpertFfn,
    GroupedAttention,
    LatentAttention,
    Layer,
    Quantization,
    Rope,
    Routing,
)
from lts.models.config import DecoderConfig
from lts.models.rope import LinearRope, Llama3Rope, YarnRope

_KINDS: dict[str, type] = {
    "layer": Layer,
    "grouped": GroupedAttention,
    "latent": LatentAttention,
    "dense": DenseFfn,
    "experts": ExpertFfn,
    "routing": Routing,
    "rope": Rope,
    "linear": LinearRope,
    "llama3": Llama3Rope,
    "yarn": YarnRope,
    "quantization": Quantization,
}
_KIND_OF = {record: kind for kind, record in _KINDS.items()}


def config_to_dict(config: DecoderConfig) -> dict[str, Any]:
    """Plain JSON data of a config; `config_from_dict` is its inverse."""
    kinds = list(dict.fromkeys(config.layers))
    data = {
        field.name: _plain(getattr(config, field.name))
        for field in fields(config)
        if field.name != "layers"
    }
    data["layer_kinds"] = [_plain(layer) for layer in kinds]
    data["layers"] = [
        {
            "repeats": segment.repeats,
            "unit": [kinds.index(layer) for layer in segment.unit],
        }
        for segment in config.segments
    ]
    return data


def config_from_dict(data: Mapping[str, Any]) -> DecoderConfig:
    """The config that `config_to_dict` wrote.

    Raises:
      ValueError: in one line, if a field is missing, unknown or bad.
    """
    try:
        read = {name: _record(value) for name, value in data.items()}
        kinds = read.pop("layer_kinds")
        read["layers"] = tuple(
            kinds[place]
            for segment in data["layers"]
            for place in segment["unit"] * segment["repeats"]
        )
        return DecoderConfig(**read)
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"not a decoder config: {error}") from None


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        own = {
            field.name: _plain(getattr(value, field.name)) for field in fields(value)
        }
        return {"kind": _KIND_OF[type(value)], **own}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _record(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_record(item) for item in value)
    if not isinstance(value, Mapping) or "kind" not in value:
        return value
    own = {name: _record(item) for name, item in value.items() if name != "kind"}
    return _KINDS[value["kind"]](**own)
