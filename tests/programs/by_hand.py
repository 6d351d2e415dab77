"""Programs in plain jax.numpy: experts by one-hot, a vision transformer, decoding."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.programs.program import Program, shape

TOKENS, EXPERTS, TOP_K, CAPACITY = 32, 8, 2, 16


def experts(features: int = 16, hidden: int = 32) -> Program:
    """A mixture of experts by one-hot dispatch, as in GShard (arXiv 2006.16668).

    Every expert has CAPACITY places; a token beyond them is dropped.
    """
    params = {
        "router": shape(features, EXPERTS),
        "up": shape(EXPERTS, features, hidden),
        "down": shape(EXPERTS, hidden, features),
    }

    def mixture(params, x):
        probs = jax.nn.softmax(x @ params["router"])
        weight, expert = jax.lax.top_k(probs, TOP_K)  # [tokens, k]
        weight = weight / weight.sum(-1, keepdims=True)
        chosen = jax.nn.one_hot(expert, EXPERTS)  # [tokens, k, experts]
        flat = chosen.reshape(TOKENS * TOP_K, EXPERTS)
        place = (jnp.cumsum(flat, axis=0) - flat).reshape(chosen.shape)
        place = jnp.sum(place * chosen, axis=-1).astype(jnp.int32)  # in its expert
        slot = jax.nn.one_hot(place, CAPACITY)  # zero where it is dropped
        combine = jnp.einsum("tk,tke,tkc->tec", weight, chosen, slot)
        dispatch = (combine > 0).astype(x.dtype)
        rows = jnp.einsum("tec,td->ecd", dispatch, x)
        rows = jax.nn.relu(jnp.einsum("ecd,edf->ecf", rows, params["up"]))
        rows = jnp.einsum("ecf,efd->ecd", rows, params["down"])
        return jnp.einsum("tec,ecd->td", combine, rows)

    return Program(function=mixture, args=(params, shape(TOKENS, features)))


PATCH, SIDE, HEADS, CLASSES = 4, 16, 8, 16


def patches(images: jax.Array) -> jax.Array:
    """[batch, SIDE, SIDE, 3] -> [batch, patches, PATCH * PATCH * 3]."""
    batch, across = images.shape[0], SIDE // PATCH
    x = images.reshape(batch, across, PATCH, across, PATCH, 3)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(batch, across**2, PATCH**2 * 3)


def layer_norm(x: jax.Array) -> jax.Array:
    """Over the last dim, without parameters."""
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(var + 1e-6)


def vision_transformer(features: int = 32, batch: int = 8) -> Program:
    """One block over patches and a class token (arXiv 2010.11929)."""
    head_dim = features // HEADS
    params = {
        "embed": shape(PATCH**2 * 3, features),
        "class": shape(1, 1, features),
        "positions": shape(1, (SIDE // PATCH) ** 2 + 1, features),
        "qkv": shape(features, 3, HEADS, head_dim),
        "out": shape(HEADS, head_dim, features),
        "up": shape(features, 4 * features),
        "down": shape(4 * features, features),
        "head": shape(features, CLASSES),
    }

    def classify(params, images):
        x = patches(images) @ params["embed"]
        first = jnp.broadcast_to(params["class"], (x.shape[0], 1, features))
        x = jnp.concatenate([first, x], axis=1) + params["positions"]
        qkv = jnp.einsum("bld,dnhk->nblhk", layer_norm(x), params["qkv"])
        y = jax.nn.dot_product_attention(*qkv)
        x = x + jnp.einsum("blhk,hkd->bld", y, params["out"])
        x = x + jax.nn.gelu(layer_norm(x) @ params["up"]) @ params["down"]
        return layer_norm(x[:, 0]) @ params["head"]

    return Program(function=classify, args=(params, shape(batch, SIDE, SIDE, 3)))


VOCAB, STEPS, CUT, BEAMS, BATCH = 64, 6, 8, 4, 8


def recurrent_params(features: int):
    """Parameters of the small recurrent model that the decoding loops run."""
    return {
        "embed": shape(VOCAB, features),
        "mix": shape(features, features),
        "head": shape(features, VOCAB),
    }


def next_logits(params, state: jax.Array, token: jax.Array):
    """state [..., features], token [...] -> the new state, logits [..., VOCAB]."""
    state = jnp.tanh(state @ params["mix"] + params["embed"][token])
    return state, state @ params["head"]


def sampling(features: int = 32) -> Program:
    """A loop that draws among the CUT likeliest tokens until all rows have ended."""

    def generate(params, token, key):
        def unfinished(carry):
            step, _, _, ended, _, _ = carry
            return (step < STEPS) & ~jnp.all(ended)

        def advance(carry):
            step, state, token, ended, text, key = carry
            key, drawn = jax.random.split(key)
            state, logits = next_logits(params, state, token)
            best, index = jax.lax.top_k(logits, CUT)
            choice = jax.random.categorical(drawn, best / 0.7)
            token = jnp.take_along_axis(index, choice[:, None], axis=-1)[:, 0]
            token = jnp.where(ended, 0, token)
            text = jax.lax.dynamic_update_slice(text, token[:, None], (0, step))
            return step + 1, state, token, ended | (token == 0), text, key

        start = (
            jnp.int32(0),
            jnp.zeros((BATCH, features)),
            token,
            jnp.zeros(BATCH, bool),
            jnp.zeros((BATCH, STEPS), jnp.int32),
            key,
        )
        return jax.lax.while_loop(unfinished, advance, start)[4]

    first = np.arange(1, BATCH + 1, dtype=np.int32)
    args = recurrent_params(features), first, jax.random.key(3)
    return Program(function=generate, args=args)


def beam_search(features: int = 32) -> Program:
    """The BEAMS best continuations of every row, by summed log probability."""

    def search(params, token):
        def advance(step, carry):
            state, token, score, text = carry
            state, logits = next_logits(params, state, token)
            total = score[..., None] + jax.nn.log_softmax(logits)
            score, place = jax.lax.top_k(total.reshape(BATCH, BEAMS * VOCAB), BEAMS)
            parent, token = place // VOCAB, place % VOCAB
            state = jnp.take_along_axis(state, parent[..., None], axis=1)
            text = jnp.take_along_axis(text, parent[..., None], axis=1)
            text = text.at[:, :, step].set(token)
            return state, token, score, text

        first = jnp.arange(BEAMS) == 0  # all beams start alike: only one may win
        start = (
            jnp.zeros((BATCH, BEAMS, features)),
            jnp.broadcast_to(token[:, None], (BATCH, BEAMS)),
            jnp.broadcast_to(jnp.where(first, 0.0, -jnp.inf), (BATCH, BEAMS)),
            jnp.zeros((BATCH, BEAMS, STEPS), jnp.int32),
        )
        _, _, score, text = jax.lax.fori_loop(0, STEPS, advance, start)
        return text, score

    first = np.arange(1, BATCH + 1, dtype=np.int32)
    return Program(function=search, args=(recurrent_params(features), first))
