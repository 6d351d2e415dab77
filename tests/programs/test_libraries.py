"""Models of published packages, as they are: plan at a real width, run at a tiny one.

The packages are not in the `test` extra: gemma 3.3 brings tensorflow and kauldron (more
than 2 GB), and transformers has no Flax models from version 5 on. Where one is
installed, its models must trace, and run under a plan as they run alone.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.programs.judge import (
    assert_compiles_as_predicted,
    assert_same_outputs,
    searched,
)
from tests.programs.program import Program, token_ids

BATCH, LENGTH, VOCAB = 8, 16, 256


def gpt2(features: int):
    """transformers' GPT-2, two layers."""
    transformers = pytest.importorskip(
        "transformers", "4.46", reason="Flax models: pip install 'transformers<5'"
    )
    config = transformers.GPT2Config(
        n_embd=features, n_layer=2, n_head=8, vocab_size=VOCAB, n_positions=LENGTH
    )
    return transformers.FlaxGPT2LMHeadModel(config, _do_init=False)


def llama(features: int):
    """transformers' Llama, two layers, half as many KV heads as heads."""
    transformers = pytest.importorskip(
        "transformers", "4.46", reason="Flax models: pip install 'transformers<5'"
    )
    config = transformers.LlamaConfig(
        hidden_size=features,
        intermediate_size=2 * features,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=VOCAB,
        max_position_embeddings=1024,  # its table is cut to as many columns, too
    )
    return transformers.FlaxLlamaForCausalLM(config, _do_init=False)


def forward(build, features: int = 64) -> Program:
    """Logits of a whole prompt."""
    model = build(features)

    def run(params, ids):
        return model(ids, params=params).logits

    ids = token_ids(BATCH, LENGTH, VOCAB)
    return Program(function=run, args=(shapes_of(model), ids))


def shapes_of(model):
    """Shapes of a transformers model's parameters."""
    return jax.eval_shape(lambda: model.init_weights(jax.random.key(0), (1, 1)))


def decode(build, features: int = 64) -> Program:
    """One token through the cache."""
    model = build(features)

    def run(params, cache, ids, mask, positions):
        out = model(
            ids,
            params=params,
            past_key_values=cache,
            attention_mask=mask,
            position_ids=positions,
        )
        return out.logits, out.past_key_values

    args = (
        shapes_of(model),
        jax.eval_shape(lambda: model.init_cache(BATCH, LENGTH)),
        token_ids(BATCH, 1, VOCAB),
        np.ones((BATCH, LENGTH), np.int32),
        np.zeros((BATCH, 1), np.int32),
    )
    return Program(function=run, args=args, donated=("cache",))


def gemma(step: str, features: int = 64) -> Program:
    """The gemma package's transformer: one layer with a window, one without."""
    pytest.importorskip("gemma", reason="pip install gemma (brings tensorflow)")
    from gemma import gm

    local, full = (gm.nn.config.AttentionType[n] for n in ("LOCAL_SLIDING", "GLOBAL"))
    config = gm.nn.config.TransformerConfig(
        num_embed=VOCAB,
        embed_dim=features,
        hidden_dim=4 * features,
        num_heads=8,
        head_dim=features // 8,
        num_kv_heads=4,
        final_logit_softcap=30.0,
        use_post_attn_norm=True,
        use_post_ffw_norm=True,
        attention_types=(local, full),
        sliding_window_size=8,
        use_qk_norm=True,
    )
    model = gm.nn.Transformer(config=config, dtype=jnp.float32, tokens="tokens")
    ids = token_ids(BATCH, LENGTH, VOCAB)
    params = jax.eval_shape(model.init, jax.random.key(0), ids)["params"]

    def prefill(params, tokens):
        return model.apply({"params": params}, tokens).logits

    def decode(params, cache, tokens, positions, mask):
        out = model.apply(
            {"params": params},
            tokens,
            cache=cache,
            positions=positions,
            attention_mask=mask,
        )
        return out.logits, out.cache

    if step == "prefill":
        return Program(function=prefill, args=(params, ids))
    cache = jax.eval_shape(
        lambda: config.init_cache(BATCH, jnp.float32, cache_length=LENGTH)
    )
    positions = np.zeros((BATCH, 1), np.int32)
    mask = np.broadcast_to(np.arange(LENGTH) == 0, (BATCH, 1, LENGTH))
    args = params, cache, ids[:, :1], positions, mask
    return Program(function=decode, args=args, donated=("cache",))


MODELS = {
    "transformers' GPT-2": (forward, gpt2),
    "transformers' GPT-2, decoding": (decode, gpt2),
    "transformers' Llama": (forward, llama),
    "transformers' Llama, decoding": (decode, llama),
    "gemma": (gemma, "prefill"),
    "gemma, decoding": (gemma, "decode"),
}


@pytest.mark.filterwarnings("default")  # theirs
@pytest.mark.parametrize("name", MODELS)
def test_a_published_model_runs_under_its_plan_as_it_runs_alone(name):
    make, which = MODELS[name]
    with jax.numpy_rank_promotion("allow"):
        wide, tiny = make(which, features=4096), make(which)
        plan = searched(wide, method="annealing", budget=200)
        assert_same_outputs(plan, tiny, 1e-5)
        assert_compiles_as_predicted(plan, wide)
