"""A decoder as a value: its prefill and decode, and their abstract arguments."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from lts.models.architecture import Quantization
from lts.models.caches import Cache
from lts.models.config import DecoderConfig, float_dtype
from lts.models.forward import cached_positions, forward
from lts.models.leaves import abstract_leaf, initial_params, named_leaf
from lts.models.parameters import LayerForm, build, build_cache, count, is_uniform
from lts.models.weights import NamedShape, Params

Phase = Literal["prefill", "decode"]


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """A decoder's functions and abstract arguments; hashable, holds no weights.

    Args:
      config: sizes and switches.
      layers: "scan" keeps the arrays of equal layers stacked as [layers, ...] and scans
        over them; "unrolled" keeps lists of layers.
    """

    config: DecoderConfig
    layers: LayerForm = "scan"

    def __post_init__(self) -> None:
        if self.layers not in get_args(LayerForm):
            raise ValueError(
                f"layers must be 'scan' or 'unrolled', got {self.layers!r}"
            )

    @property
    def name(self) -> str:
        """What messages call the model."""
        return self.config.name

    @property
    def num_params(self) -> int:
        """Number of parameters, without scales of quantized ones."""
        return count(self.config)

    @property
    def stageable_layers(self) -> int:
        """What a number of pipeline stages must divide: 1 where layers differ."""
        return self.config.num_hidden_layers if is_uniform(self.config) else 1

    def check_stages(self, stages: int) -> None:
        """Raises ValueError unless the layers can be split into equal stages."""
        if self.stageable_layers % stages:
            depth, equal = self.config.num_hidden_layers, is_uniform(self.config)
            why = "the layers differ" if not equal else "the number must divide them"
            raise ValueError(
                f"cannot split the {depth} layers of {self.name!r} over {stages} "
                f"pipeline stages: {why}"
            )

    def abstract_params(self, dtype: DTypeLike | None = None) -> Params:
        """Shapes and dtypes of the parameters.

        `dtype` None is the config's own: quantized weights are `BlockScaled` pairs,
        values and scales. With a dtype given all are plain arrays in it.
        """
        plain, form = float_dtype(self.config, dtype), self._quantization(dtype)

        return build(self.config, self.layers, lambda w: abstract_leaf(w, plain, form))

    def init_params(self, key: jax.Array, dtype: DTypeLike | None = None) -> Params:
        """Random parameters: matrices and biases normal / sqrt(fan in), norms one.

        Meant for small models: all numbers are drawn as one float32 array.
        """
        plain, form = float_dtype(self.config, dtype), self._quantization(dtype)
        return initial_params(self.config, self.layers, plain, form, key)

    def _quantization(self, dtype: DTypeLike | None) -> Quantization | None:
        return self.config.quantization if dtype is None else None

    def abstract_cache(
        self, batch: int, length: int, dtype: DTypeLike | None = None
    ) -> Cache:
        """Shapes of the KV cache of `batch` requests, `length` positions each.

        Scan form: "key" and "value" of [layers, b, g, t, k], or "latent" [layers, b, t,
        r] and "rope" [layers, b, t, k]; unrolled form: a list over layers, without the
        leading dim. Where layers differ, such a dict or list per segment, as the
        parameters have it. A layer with a window has t at most its window. `dtype` None
        is the config's own.
        """
        dtype = float_dtype(self.config, dtype)

        def make(array: NamedShape) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(array.shape, dtype)

        return build_cache(self.config, self.layers, batch, length, make)

    def dim_names(self, weight_dtype: DTypeLike | None = None) -> tuple[Params, Cache]:
        """The trees of parameters and cache, with a `NamedShape` for every array.

        Args:
          weight_dtype: as `args`; sizes of the cache are those of one position.
        """
        form = self._quantization(weight_dtype)
        params = build(self.config, self.layers, lambda w: named_leaf(w, form))
        cache = build_cache(self.config, self.layers, 1, 1, lambda array: array)
        return params, cache

    def init_cache(
        self, batch: int, length: int, dtype: DTypeLike | None = None
    ) -> Cache:
        """An empty cache (zeros); arguments as `abstract_cache`."""
        return jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, leaf.dtype),
            self.abstract_cache(batch, length, dtype),
        )

    def args(
        self,
        phase: Phase,
        batch: int,
        *,
        input_len: int,
        cache_len: int,
        weight_dtype: DTypeLike | None = None,
        kv_dtype: DTypeLike | None = None,
    ) -> tuple[Any, ...]:
        """Abstract arguments of `prefill` or `decode`, in their order.

        Args:
          phase: "prefill" or "decode".
          batch: requests in one step.
          input_len: prompt tokens per request (decode does not depend on it).
          cache_len: positions of the cache.
          weight_dtype: of the parameters; None for the config's own.
          kv_dtype: of the cache; None for the config's own.

        Raises:
          ValueError: for another phase, or a size that is not a positive integer.
        """
        if phase not in get_args(Phase):
            raise ValueError(f"phase must be 'prefill' or 'decode', got {phase!r}")
        sizes = {"batch": batch, "input_len": input_len, "cache_len": cache_len}
        for name, size in sizes.items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(f"{name} must be a positive integer, got {size!r}")
        params = self.abstract_params(weight_dtype)
        cache = self.abstract_cache(batch, cache_len, kv_dtype)
        if phase == "prefill":
            return params, cache, _int32(batch, input_len)
        return params, cache, _int32(batch), _int32()

    def prefill(
        self, params: Params, cache: Cache, tokens: jax.Array | np.ndarray
    ) -> tuple[jax.Array, Cache]:
        """Reads whole prompts, all of one length, into cache positions 0 .. s - 1.

        Args:
          params: as `abstract_params`.
          cache: as `abstract_cache`, at least s positions long.
          tokens: [b, s] int32.

        Returns:
          Logits [b, vocab] after the last token, and the updated cache.

        Raises:
          ValueError: if the prompts do not fit in the cache.
        """
        length = self._cache_length(cache)
        if length is not None and tokens.shape[1] > length:
            raise ValueError(
                f"cannot prefill {tokens.shape[1]} tokens into a cache of {length} "
                f"positions; make the cache longer"
            )
        return forward(self.config, params, cache, tokens, 0, from_cache=False)

    def _cache_length(self, cache: Cache) -> int | None:
        """Positions that a cache is for; None if every layer has its whole window."""
        kept = cached_positions(self.config, cache)
        lengths = [n for a, n in kept.items() if getattr(a, "window", None) != n]
        return min(lengths, default=None)

    def decode(
        self,
        params: Params,
        cache: Cache,
        tokens: jax.Array | np.ndarray,
        position: jax.Array | int,
    ) -> tuple[jax.Array, Cache]:
        """Takes one token of each request, all at one position.

        Args:
          params: as `abstract_params`.
          cache: as `abstract_cache`, filled below `position`.
          tokens: [b] int32.
          position: [] int32, where the tokens stand; below the cache's length.

        Returns:
          Logits [b, vocab] for the next token, and the updated cache.
        """
        tokens = lax.expand_dims(tokens, (1,))
        return forward(self.config, params, cache, tokens, position, from_cache=True)

    def stage_step(
        self,
        params: Params,
        cache: Cache,
        hidden: jax.Array,
        position: jax.Array | int,
        *,
        phase: Phase,
        first: bool,
        last: bool,
    ) -> tuple[jax.Array, Cache]:
        """One pipeline stage of `prefill` or `decode`.

        Args:
          params: of the stage, as `stage_params` gives them.
          cache: of the stage's layers.
          hidden: [b, s] int32 tokens for the first stage, else the residual stream
            [b, s, d] that the stage before returned.
          position: [] int32, of the first token.
          phase: "prefill" or "decode".
          first, last: whether the stage embeds tokens, and whether it gives logits.

        Returns:
          Logits [b, vocab] of the last stage, else the residual stream [b, s, d]; and
          the updated cache.
        """
        return forward(
            self.config,
            params,
            cache,
            hidden,
            position,
            from_cache=phase == "decode",
            first=first,
            last=last,
        )

    def stage_params(self, params: Params, stage: int, stages: int) -> Params:
        """The share of one pipeline stage: its layers, and what its ends need.

        A tied embedding is on the first stage and on the last.

        Raises:
          ValueError: if layers differ, do not divide, or are not in scan form.
        """
        self.check_stages(stages)
        depth = self.config.num_hidden_layers
        if self.layers != "scan":
            raise ValueError(
                f"cannot split layers in {self.layers} form over {stages} stages; use "
                "the scan form"
            )
        own = slice(stage * depth // stages, (stage + 1) * depth // stages)
        ends = {"embed"} if stage == 0 else set()
        if stage == stages - 1:
            tied = self.config.tie_word_embeddings
            ends |= {"norm", "embed" if tied else "unembed"}
        layers = jax.tree.map(lambda array: array[own], params["layers"])
        return {**{name: params[name] for name in sorted(ends)}, "layers": layers}


def _int32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)
