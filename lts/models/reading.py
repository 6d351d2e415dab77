"""From the parsed object of a Hugging Face config.json to a `DecoderConfig`.

Every field that changes what a step costs or computes is read by the model's family
(`lts.models.families`), or the file is refused with the field's name. What stands
beside the text model and does not run is said in the config's notes.
"""

from collections.abc import Mapping
from typing import Any

from lts.models.checks import fault
from lts.models.config import DecoderConfig
from lts.models.families import FAMILIES, NESTED
from lts.models.features import LACKING, beside_notes, unsupported_features
from lts.models.fields import Fields
from lts.models.reading_quantization import read_quantization

MODEL_TYPES = tuple(sorted({*FAMILIES, *NESTED}))
"""What `model_type` may be."""

# Fields of the outer object that may stand there instead of in the text model.
_SHARED = ("torch_dtype", "dtype", "quantization_config", "compression_config")


def read_config(fields: Mapping[str, Any], name: str) -> DecoderConfig:
    """Reads the parsed object of a Hugging Face config.json.

    Args:
      fields: the parsed JSON object, of one of `MODEL_TYPES`; a text model may stand in
        `text_config` beside a vision tower.
      name: what messages and the result call the model.

    Raises:
      ValueError: in one line, for a missing or bad field, another model type, or a
        feature that changes the cost or the result and that the decoders lack.
    """
    text, model_type = _text_model(fields, name)
    family = FAMILIES[model_type]
    read = Fields(text, name)
    layers = family.layers(read)
    dtype = read.get("torch_dtype") or read.get("dtype") or "bfloat16"
    beside = beside_notes({**fields, **text}, nested=text is not fields)
    config = DecoderConfig(
        name=name,
        vocab_size=read.size("vocab_size"),
        hidden_size=read.size("hidden_size"),
        layers=layers,
        max_position_embeddings=read.size("max_position_embeddings"),
        rms_norm_eps=read.number("rms_norm_eps", family.eps),
        tie_word_embeddings=read.flag("tie_word_embeddings", family.tied),
        dtype=dtype,
        quantization=read_quantization(read, layers, dtype),
        notes=(*family.notes, *beside),
    )
    read.ignore(*family.harmless)
    lacking = unsupported_features(read.unread, known_type=True)
    if lacking:
        raise fault(
            name, f"{'; '.join(lacking)}: not supported in model_type {model_type!r}"
        )
    return config


def _text_model(fields: Mapping[str, Any], name: str) -> tuple[Mapping[str, Any], str]:
    """The object of the text model, and its type's name in `FAMILIES`."""
    outer = Fields(fields, name)
    model_type, nested = outer.name_of("model_type"), outer.object("text_config")
    architectures, text = outer.list("architectures") or [], fields
    if nested and model_type in NESTED:
        shared = {field: fields[field] for field in _SHARED if fields.get(field)}
        text = {**shared, **{k: v for k, v in nested.items() if v is not None}}
        if isinstance(fields.get("tie_word_embeddings"), bool):
            text["tie_word_embeddings"] = fields["tie_word_embeddings"]
        model_type = Fields(text, name).name_of("model_type")
    elif nested:
        raise _unknown(fields, nested, name)
    if model_type == "minimax" and "MiniMaxM2ForCausalLM" in architectures:
        model_type = "minimax_m2"  # what the first files of M2 call themselves
    if model_type not in FAMILIES:
        raise _unknown({**text, "model_type": model_type}, {}, name)
    return text, model_type


def _unknown(
    fields: Mapping[str, Any], nested: Mapping[str, Any], name: str
) -> ValueError:
    """The error for a type without a reader, with what it lacks as far as is known."""
    types = fields["model_type"], str(nested.get("model_type"))
    lacking = [LACKING[kind] for kind in types if kind in LACKING][:1]
    lacking += unsupported_features({**nested, **fields}, known_type=False)
    reason = f" ({'; '.join(lacking)})" if lacking else ""
    within = " with a text model of its own (text_config)" if nested else ""
    return fault(
        name,
        f"model_type {types[0]!r}{within} is not supported{reason}; accepted types are "
        f"{', '.join(MODEL_TYPES)}",
    )
