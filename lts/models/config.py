"""The whole of a decoder: sizes, layers, and in what form its weights are published."""

from dataclasses import dataclass
from functools import cached_property

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from lts.models.architecture import (
    DenseFfn,
    GroupedAttention,
    Layer,
    Quantization,
    Rope,
    Segment,
    segments,
)
from lts.models.checks import check_layer, check_number, check_quantization, check_size
from lts.models.rope import RopeScaling

DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Sizes and layers of a decoder; hashable.

    Args:
      name: what messages call the model.
      layers: in order; they may differ.
      max_position_embeddings: longest context that the model was made for, tokens.
      tie_word_embeddings: logits reuse the embedding, no array of their own.
      dtype: what activations, and weights that are not quantized, are in.
      quantization: form of the other weights; None if all are in `dtype`.
      notes: what the published model has beside this decoder and a step does not run.

    Raises:
      ValueError: in one line, for a size that is not a positive integer, query heads
        that KV heads do not divide, an odd rotary size, more experts per token than
        there are, or an unknown dtype.
    """

    name: str
    vocab_size: int
    hidden_size: int
    layers: tuple[Layer, ...]
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    dtype: str = "bfloat16"
    quantization: Quantization | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in ("vocab_size", "hidden_size", "max_position_embeddings"):
            check_size(getattr(self, field), field, self.name)
        check_number(self.rms_norm_eps, "rms_norm_eps", self.name)
        if not self.layers:
            raise self._bad("there must be at least one layer")
        if self.dtype not in DTYPES:
            raise self._bad(
                f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}"
            )
        for layer in dict.fromkeys(self.layers):
            check_layer(layer, self.name)
        if self.quantization is not None:
            check_quantization(self.quantization, self.name)

    @property
    def num_hidden_layers(self) -> int:
        """Number of layers."""
        return len(self.layers)

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The layers as runs of repeated units."""
        return segments(self.layers)

    def _bad(self, what: str) -> ValueError:
        return ValueError(f"config of {self.name!r}: {what}")


def dense_decoder(
    *,
    name: str,
    vocab_size: int,
    hidden_size: int,
    intermediate_size: int,
    num_hidden_layers: int,
    num_attention_heads: int,
    num_key_value_heads: int,
    head_dim: int,
    max_position_embeddings: int,
    rms_norm_eps: float = 1e-6,
    rope_theta: float = 10_000.0,
    rope_scaling: RopeScaling | None = None,
    tie_word_embeddings: bool = False,
    qkv_bias: bool = False,
    out_bias: bool = False,
    qk_norm: bool = False,
    dtype: str = "bfloat16",
) -> DecoderConfig:
    """A decoder of equal dense layers with grouped-query attention, by hand.

    Args are named as the fields of config.json; `qk_norm` is over each head.

    Raises:
      ValueError: as `DecoderConfig`.
    """
    check_size(num_hidden_layers, "num_hidden_layers", name)
    layer = Layer(
        attention=GroupedAttention(
            num_heads=num_attention_heads,
            num_kv_heads=num_key_value_heads,
            head_dim=head_dim,
            rope=Rope(size=head_dim, theta=rope_theta, scaling=rope_scaling),
            qk_norm="head" if qk_norm else "none",
            qkv_bias=qkv_bias,
            out_bias=out_bias,
        ),
        ffn=DenseFfn(size=intermediate_size),
    )
    return DecoderConfig(
        name=name,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        layers=(layer,) * num_hidden_layers,
        max_position_embeddings=max_position_embeddings,
        rms_norm_eps=rms_norm_eps,
        tie_word_embeddings=tie_word_embeddings,
        dtype=dtype,
    )


def kv_bytes_per_token(config: DecoderConfig, dtype: DTypeLike | None = None) -> int:
    """Bytes that one token of one request keeps in the KV cache, over all layers.

    A layer with a window counts in full: a context no longer than the window pays it.
    For longer ones see `cache_bytes`.

    Args:
      config: the decoder.
      dtype: of the cache; None for the config's own.
    """
    return cache_bytes(config, 1, dtype)


def cache_bytes(
    config: DecoderConfig, context_len: int, dtype: DTypeLike | None = None
) -> int:
    """Bytes of the KV cache of one request of `context_len` tokens.

    A layer keeps no more than its window.

    Args:
      config: the decoder.
      context_len: positions, prompt and generated tokens together.
      dtype: of the cache; None for the config's own.
    """
    values = 0
    for layer in config.layers:
        attention = layer.attention
        if isinstance(attention, GroupedAttention):
            kept = min(context_len, attention.window or context_len)
            values += kept * 2 * attention.num_kv_heads * attention.head_dim
        elif attention is not None:
            values += context_len * (attention.kv_rank + attention.rope.size)
    return values * float_dtype(config, dtype).itemsize


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


def published_dtype(config: DecoderConfig) -> str:
    """What the weights are published in; of experts alone, `int4 experts`."""
    form = config.quantization
    if form is None:
        return config.dtype
    return form.dtype if form.scope == "layers" else f"{form.dtype} experts"
