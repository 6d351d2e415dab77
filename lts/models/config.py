"""What a dense decoder is made of, read from a Hugging Face style config.json.

Field names follow config.json, so that a reader needs one vocabulary for both.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from lts.models.features import unsupported_features
from lts.models.rope import (
    LinearRope,
    Llama3Rope,
    RopeScaling,
    read_rope_scaling,
)

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
_DTYPES = ("bfloat16", "float16", "float32")
_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)
# What transformers assumes where a file is silent; neither changes what a step costs.
_DEFAULT_NORM_EPS = 1e-6
_DEFAULT_ROPE_THETA = 10_000.0


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Sizes and switches of a dense decoder; hashable.

    Args:
      name: what messages call the model.
      num_key_value_heads: heads of the KV cache; divides `num_attention_heads`.
      head_dim: size of one head, even (rotary pairs its halves).
      max_position_embeddings: longest context that the model was made for, tokens.
      rope_scaling: how rotary frequencies are stretched; None for not at all.
      tie_word_embeddings: logits reuse the embedding, no array of their own.
      qkv_bias: query, key and value projections add a bias.
      out_bias: the attention's output projection adds a bias.
      qk_norm: each query and key head passes an RMS norm before rotary.
      dtype: what the weights are published in.

    Raises:
      ValueError: in one line, for a size that is not a positive integer, query heads
        that KV heads do not divide, an odd head size, or an unknown dtype.
    """

    name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float = _DEFAULT_NORM_EPS
    rope_theta: float = _DEFAULT_ROPE_THETA
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        for field in _SIZES:
            _check_size(getattr(self, field), field, self.name)
        for field in ("rms_norm_eps", "rope_theta"):
            value = getattr(self, field)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not value > 0:
                raise self._bad(
                    f"field '{field}' must be a positive number, got {value!r}"
                )
        if self.num_attention_heads % self.num_key_value_heads:
            raise self._bad(
                f"num_attention_heads ({self.num_attention_heads}) must be a multiple "
                f"of num_key_value_heads ({self.num_key_value_heads})"
            )
        if self.head_dim % 2:
            raise self._bad(
                f"head_dim must be even for rotary embedding, got {self.head_dim}"
            )
        if self.dtype not in _DTYPES:
            raise self._bad(
                f"dtype must be one of {', '.join(_DTYPES)}, got {self.dtype!r}"
            )

    @property
    def queries_per_kv_head(self) -> int:
        """Query heads that share one KV head."""
        return self.num_attention_heads // self.num_key_value_heads

    def _bad(self, what: str) -> ValueError:
        return ValueError(f"config of {self.name!r}: {what}")


def config_to_dict(config: DecoderConfig) -> dict[str, Any]:
    """Plain JSON data of a config; `config_from_dict` is its inverse."""
    return asdict(config)


def config_from_dict(data: Mapping[str, Any]) -> DecoderConfig:
    """The config that `config_to_dict` wrote.

    Raises:
      ValueError: if a field is missing, unknown or bad.
    """
    fields = dict(data)
    rope = fields.pop("rope_scaling", None)
    try:
        if rope is not None:
            kind = Llama3Rope if "low_freq_factor" in rope else LinearRope
            fields["rope_scaling"] = kind(**rope)
        return DecoderConfig(**fields)
    except TypeError as error:
        raise ValueError(f"not a decoder config: {error}") from None


def read_config(fields: Mapping[str, Any], name: str) -> DecoderConfig:
    """Reads the parsed object of a Hugging Face config.json.

    Args:
      fields: the parsed JSON object; model types llama, mistral, qwen2 and qwen3.
      name: what messages and the result call the model.

    Raises:
      ValueError: in one line, for a missing or bad field, another model type, or a
        feature that changes the cost and that these decoders lack.
    """
    lacking = unsupported_features(fields)
    if lacking:
        raise ValueError(
            f"config of {name!r} asks for {'; '.join(lacking)}: not supported, only "
            f"dense decoders with full attention are"
        )
    model_type = _required(fields, "model_type", name)
    if model_type not in MODEL_TYPES:
        raise ValueError(
            f"config of {name!r}: model_type {model_type!r} is not supported; accepted "
            f"types are {', '.join(MODEL_TYPES)}"
        )
    derived = {
        "num_key_value_heads": _kv_heads(fields, name, model_type),
        "head_dim": _head_dim(fields, name, model_type),
    }
    stated = [field for field in _SIZES if field not in derived]
    sizes = {field: _required(fields, field, name) for field in stated}
    attention_bias = _flag(fields, "attention_bias", name)
    rope, theta = _rope(fields, name)
    dtype = fields.get("torch_dtype") or fields.get("dtype") or "bfloat16"
    return DecoderConfig(
        name=name,
        **sizes,
        **derived,
        rms_norm_eps=fields.get("rms_norm_eps", _DEFAULT_NORM_EPS),
        rope_theta=theta,
        rope_scaling=rope,
        tie_word_embeddings=_flag(fields, "tie_word_embeddings", name),
        # Qwen2 has three biases by definition and never one at the output; elsewhere
        # the switch adds all four.
        qkv_bias=attention_bias or model_type == "qwen2",
        out_bias=attention_bias and model_type != "qwen2",
        qk_norm=model_type == "qwen3",
        dtype=dtype,
    )


def kv_bytes_per_token(config: DecoderConfig, dtype: DTypeLike | None = None) -> int:
    """Bytes that one token of one request keeps in the KV cache, over all layers.

    Args:
      config: the decoder.
      dtype: of the cache; None for the config's own.
    """
    per_layer = 2 * config.num_key_value_heads * config.head_dim
    return config.num_hidden_layers * per_layer * float_dtype(config, dtype).itemsize


def float_dtype(config: DecoderConfig, dtype: DTypeLike | None) -> np.dtype:
    """A dtype given by the caller, or the config's own where it is None.

    Raises:
      ValueError: if it is not the name of a floating-point dtype.
    """
    try:
        found = jnp.dtype(config.dtype if dtype is None else dtype)
    except TypeError:
        found = None
    if found is None or not jnp.issubdtype(found, jnp.floating):
        raise ValueError(
            f"weights and caches need a floating-point dtype such as bfloat16 or "
            f"float8_e4m3fn, got {dtype!r}"
        )
    return found


def _check_size(value: Any, field: str, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(
            f"config of {name!r}: field '{field}' must be an integer, got {value!r}"
        )
    if value < 1:
        raise ValueError(
            f"config of {name!r}: field '{field}' must be at least 1, got {value}"
        )


def _required(fields: Mapping[str, Any], field: str, name: str) -> Any:
    if fields.get(field) is None:
        raise ValueError(f"config of {name!r}: field '{field}' is missing")
    return fields[field]


def _flag(fields: Mapping[str, Any], field: str, name: str) -> bool:
    value = fields.get(field)
    if value is not None and not isinstance(value, bool):
        raise ValueError(
            f"config of {name!r}: field '{field}' must be true or false, got {value!r}"
        )
    return bool(value)


def _kv_heads(fields: Mapping[str, Any], name: str, model_type: str) -> Any:
    # The first Llama files predate the field: every query head had its own KV head.
    if model_type == "llama" and fields.get("num_key_value_heads") is None:
        return _required(fields, "num_attention_heads", name)
    return _required(fields, "num_key_value_heads", name)


def _head_dim(fields: Mapping[str, Any], name: str, model_type: str) -> Any:
    # Qwen3's head size is not hidden_size / heads, so its files have to say it.
    if model_type == "qwen3" or fields.get("head_dim") is not None:
        return _required(fields, "head_dim", name)
    hidden = _required(fields, "hidden_size", name)
    heads = _required(fields, "num_attention_heads", name)
    _check_size(hidden, "hidden_size", name)
    _check_size(heads, "num_attention_heads", name)
    if hidden % heads:
        raise ValueError(
            f"config of {name!r}: hidden_size ({hidden}) is not a multiple of "
            f"num_attention_heads ({heads}), so head_dim must be given"
        )
    return hidden // heads


def _rope(fields: Mapping[str, Any], name: str) -> tuple[RopeScaling | None, Any]:
    """Scaling and base; newer files hold both in `rope_parameters`."""
    newer = fields.get("rope_parameters") or {}
    scaling = fields.get("rope_scaling") or newer
    if not isinstance(scaling, Mapping) or not isinstance(newer, Mapping):
        raise ValueError(f"config of {name!r}: rope scaling must be an object")
    try:
        read = read_rope_scaling(scaling)
    except ValueError as error:
        raise ValueError(f"config of {name!r}: {error}") from None
    theta = newer.get("rope_theta", fields.get("rope_theta", _DEFAULT_ROPE_THETA))
    return read, theta
