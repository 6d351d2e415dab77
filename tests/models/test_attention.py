"""Attention in all its forms, against a decoder that recomputes every position."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lts.models import Decoder, DecoderConfig
from lts.models.architecture import GroupedAttention, LatentAttention, Layer, Rope
from lts.models.rope import YarnRope
from tests.models.decoder_oracle import assert_equals_the_oracle, random_params

ROPE = Rope(size=8, theta=100.0)
YARN = YarnRope(factor=4.0, original_max_position_embeddings=16, attention_scale=1.4)


def attention_only(*attention: GroupedAttention | LatentAttention) -> Decoder:
    config = DecoderConfig(
        name="attention",
        vocab_size=17,
        hidden_size=12,
        layers=tuple(Layer(attention=one, ffn=None) for one in attention),
        max_position_embeddings=64,
        dtype="float32",
    )
    return Decoder(config=config)


def grouped(rope: Rope | None = ROPE, **switches) -> GroupedAttention:
    sizes = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8}
    return GroupedAttention(rope=rope, **sizes, **switches)


GROUPED = {
    "part of a head rotated": grouped(Rope(size=4, theta=100.0)),
    "yarn": grouped(Rope(size=8, theta=100.0, scaling=YARN)),
    "scaled queries without rope": grouped(None, query_scaling=(4.0, 0.5)),
    "norm over the layer": grouped(qk_norm="layer", qkv_bias=True, out_bias=True),
    "norm without scale": grouped(qk_norm="unit"),
}


@pytest.mark.parametrize("name", GROUPED)
def test_grouped_attention_equals_full_recomputation(name) -> None:
    model = attention_only(GROUPED[name])
    params = random_params(model)
    assert_equals_the_oracle(model, params, prompt=5, steps=4, cache_len=12)


@pytest.mark.parametrize("prompt", [2, 3, 7], ids=lambda n: f"{n} prompt tokens")
def test_windows_equal_full_recomputation_before_and_behind_their_end(prompt) -> None:
    # The last window is longer than the cache, the first shorter than most prompts.
    sliding, chunked = grouped(window=3), grouped(window=4, chunked=True)
    model = attention_only(sliding, chunked, grouped(), grouped(window=40))
    params = random_params(model)
    assert_equals_the_oracle(model, params, prompt=prompt, steps=8, cache_len=16)


def test_a_windowed_cache_holds_the_window_with_positions_modulo_its_size() -> None:
    model = attention_only(grouped(window=3), grouped(window=3), grouped())
    cache = model.init_cache(2, 8)
    assert cache["layers0"]["key"].shape == (2, 2, 2, 3, 8)
    assert cache["layers2"]["key"].shape == (1, 2, 2, 8, 8)
    tokens = np.arange(14, dtype=np.int32).reshape(2, 7)
    params = random_params(model)
    _, cache = jax.jit(model.prefill)(params, cache, tokens)
    full = attention_only(grouped(), grouped(), grouped())
    plain = {name: tree for name, tree in params.items() if name[:6] != "layers"}
    stacked = jax.tree.map(
        lambda *leaves: np.concatenate(leaves), params["layers0"], params["layers2"]
    )
    every = full.init_cache(2, 8)
    _, every = jax.jit(full.prefill)(plain | {"layers": stacked}, every, tokens)
    # Positions 4, 5 and 6 of the first layer lie at 1, 2 and 0.
    held = every["key"][0][..., jnp.array([6, 4, 5]), :]
    np.testing.assert_allclose(cache["layers0"]["key"][0], held, rtol=1e-6)


def test_only_layers_that_see_everything_bound_the_prompt() -> None:
    windowed = attention_only(grouped(window=3))
    args = windowed.args("prefill", 2, input_len=20, cache_len=8)
    logits, cache = jax.eval_shape(windowed.prefill, *args)
    assert logits.shape == (2, 17) and cache["key"].shape == (1, 2, 2, 3, 8)
    for other in (grouped(), grouped(window=9)):
        mixed = attention_only(grouped(window=3), other)
        args = mixed.args("prefill", 2, input_len=9, cache_len=8)
        with pytest.raises(ValueError, match="cannot prefill 9 tokens into .* 8 pos"):
            jax.eval_shape(mixed.prefill, *args)


def latent(query_rank: int | None, scaling: YarnRope | None = None) -> LatentAttention:
    return LatentAttention(
        num_heads=3,
        query_rank=query_rank,
        kv_rank=10,
        nope_dim=6,
        value_dim=5,
        rope=Rope(size=4, theta=100.0, scaling=scaling),
    )


@pytest.mark.parametrize("query_rank", [None, 7])
def test_latent_attention_equals_whole_keys_and_values_of_every_head(
    query_rank,
) -> None:
    # Prefill expands the latents, decode is absorbed: both must give the same.
    model = attention_only(*[latent(query_rank, YARN)] * 2)
    params = random_params(model)
    assert_equals_the_oracle(model, params, prompt=5, steps=4, cache_len=12)


def test_a_latent_cache_holds_one_latent_and_one_rotated_key_per_position() -> None:
    model = attention_only(latent(7), latent(7))
    cache = model.abstract_cache(3, 12, "bfloat16")
    assert {name: leaf.shape for name, leaf in cache.items()} == {
        "latent": (2, 3, 12, 10),
        "rope": (2, 3, 12, 4),
    }


def test_latent_weights_keep_heads_apart() -> None:
    layers = attention_only(latent(7)).abstract_params()["layers"]
    shapes = {name: leaf.shape[1:] for name, leaf in layers.items()}
    assert shapes == {
        "norm_attention": (12,),
        "query_down": (12, 7),
        "query_norm": (7,),
        "query_up": (7, 3, 6),
        "query_rope": (7, 3, 4),
        "kv_down": (12, 10),
        "key_rope": (12, 4),
        "kv_norm": (10,),
        "key_up": (10, 3, 6),
        "value_up": (10, 3, 5),
        "out": (3, 5, 12),
    }
    full = attention_only(latent(None)).abstract_params()["layers"]
    assert full["query_up"].shape == (1, 12, 3, 6)
    assert full["query_rope"].shape == (1, 12, 3, 4)
    assert not {"query_down", "query_norm"} & set(full)
