"""Finds a decoder by zoo name or by the path of a config.json.

The zoo is a folder of small files in the same format, so that one reader serves both.
"""

import difflib
import json
import os
from importlib import resources
from pathlib import Path
from typing import Any

from lts.models.decoder import Decoder
from lts.models.parameters import LayerForm
from lts.models.reading import read_config

_ZOO = resources.files("lts.models") / "zoo"
_QUANTIZATION_FILE = "hf_quant_config.json"


def names() -> tuple[str, ...]:
    """Names of the decoders that come with the package, sorted."""
    files = (entry.name for entry in _ZOO.iterdir())
    return tuple(
        sorted(file.removesuffix(".json") for file in files if file.endswith(".json"))
    )


def load(
    name_or_path: str | os.PathLike[str], *, layers: LayerForm = "scan"
) -> Decoder:
    """Loads a decoder's functions and shapes; no weights are read or made.

    Args:
      name_or_path: a zoo name (see `names`), or the path of a Hugging Face config.json
        or of a folder that holds one.
      layers: "scan" for parameters stacked over layers, "unrolled" for lists of layers.

    Raises:
      ValueError: in one line, for an unknown name, a path that cannot be read, or a
        config that `read_config` refuses.

    >>> load("llama-3.1-8b").num_params
    8030261248
    """
    asked = os.fspath(name_or_path)
    if asked in names():
        fields = json.loads((_ZOO / f"{asked}.json").read_text(encoding="utf-8"))
        return Decoder(config=read_config(fields, asked), layers=layers)
    path = Path(asked)
    if os.sep not in asked and not asked.endswith(".json") and not path.exists():
        raise ValueError(_unknown(asked))
    if path.is_dir():
        path = path / "config.json"
    fields = _with_quantization(_read_object(path), path)
    stem = path.stem.removesuffix("_config")
    if path.name == "config.json":
        stem = path.resolve().parent.name
    return Decoder(config=read_config(fields, stem), layers=layers)


def _with_quantization(fields: dict[str, Any], path: Path) -> dict[str, Any]:
    """The fields, with the quantization that some exporters keep in a file beside."""
    beside = path.with_name(path.name.removesuffix("config.json") + _QUANTIZATION_FILE)
    known = fields.get("quantization_config")
    if known or not path.name.endswith("config.json") or not beside.exists():
        return fields
    found = _read_object(beside).get("quantization")
    return {**fields, "quantization_config": found} if found else fields


def _read_object(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"cannot read model config '{path}': {error.strerror}; give a zoo name "
            f"({', '.join(names())}) or the path of a Hugging Face config.json"
        ) from None
    except ValueError as error:
        raise ValueError(f"model config '{path}' is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ValueError(
            f"model config '{path}' must hold a JSON object, found "
            f"{type(fields).__name__}"
        )
    return fields


def _unknown(asked: str) -> str:
    near = difflib.get_close_matches(asked.lower(), names(), n=3, cutoff=0.4)
    hint = f"did you mean {', '.join(near)}?" if near else f"have {', '.join(names())}"
    return (
        f"unknown model '{asked}': {hint} "
        f"(or give the path of a Hugging Face config.json)"
    )
