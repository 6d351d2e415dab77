"""A decoder in flax nnx: a list of blocks, split and merged around the function."""

import jax
from flax import nnx

from tests.programs.program import Program, token_ids

VOCAB, LENGTH, BATCH = 64, 16, 8


class Block(nnx.Module):
    """Attention and feed-forward, each after its norm and beside a residual."""

    def __init__(self, features: int, num_heads: int, *, rngs: nnx.Rngs):
        self.attention_norm = nnx.RMSNorm(features, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            num_heads, features, decode=False, rngs=rngs
        )
        self.mlp_norm = nnx.RMSNorm(features, rngs=rngs)
        self.up = nnx.Linear(features, 4 * features, rngs=rngs)
        self.down = nnx.Linear(4 * features, features, rngs=rngs)

    def __call__(self, x: jax.Array, mask: jax.Array | None) -> jax.Array:
        """x [batch, length, features]; mask is None when the cache masks."""
        x = x + self.attention(self.attention_norm(x), mask=mask)
        return x + self.down(nnx.silu(self.up(self.mlp_norm(x))))


class Transformer(nnx.Module):
    """Tokens [batch, length] to logits [batch, length, VOCAB]."""

    def __init__(
        self,
        *,
        rngs: nnx.Rngs,
        features: int = 32,
        num_heads: int = 8,
        num_layers: int = 2,
    ):
        self.features = features
        self.embed = nnx.Embed(VOCAB, features, rngs=rngs)
        self.blocks = nnx.List(
            [Block(features, num_heads, rngs=rngs) for _ in range(num_layers)]
        )
        self.norm = nnx.RMSNorm(features, rngs=rngs)
        self.head = nnx.Linear(features, VOCAB, use_bias=False, rngs=rngs)

    def __call__(self, tokens: jax.Array, mask: jax.Array | None) -> jax.Array:
        """Logits of the next token at every position."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


def transformer(**sizes: int) -> Program:
    """The forward pass over a whole prompt; parameters are the state that it takes."""
    model = nnx.eval_shape(lambda: Transformer(rngs=nnx.Rngs(0), **sizes))
    graphdef, params = nnx.split(model)

    def forward(params, tokens):
        model = nnx.merge(graphdef, params)
        return model(tokens, nnx.make_causal_mask(tokens))

    return Program(function=forward, args=(params, token_ids(BATCH, LENGTH, VOCAB)))


def decode_step(**sizes: int) -> Program:
    """One token through a cache of keys and values, carried in and out."""

    def build():
        model = Transformer(rngs=nnx.Rngs(0), **sizes)
        for block in model.blocks:
            block.attention.init_cache((BATCH, LENGTH, model.features))
        model.set_attributes(decode=True)
        return model

    graphdef, params, cache = nnx.split(nnx.eval_shape(build), nnx.Param, ...)

    def decode(params, cache, tokens):
        model = nnx.merge(graphdef, params, cache)
        logits = model(tokens, None)
        return logits, nnx.state(model, nnx.Not(nnx.Param))

    args = params, cache, token_ids(BATCH, 1, VOCAB)
    return Program(function=decode, args=args, donated=("cache",))
