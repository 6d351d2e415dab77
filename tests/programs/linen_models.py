"""A decoder in flax linen, as its guides write one: plain, scanned, rematerialised."""

import jax
from flax import linen as nn

from tests.programs.program import Program, token_ids

VOCAB, LENGTH, BATCH = 64, 16, 8


class Block(nn.Module):
    """Attention and feed-forward, each after its norm and beside a residual."""

    num_heads: int
    dropout: float = 0.1

    @nn.compact
    def __call__(self, x, mask):
        """x [batch, length, features]; mask [batch, 1, length, length]."""
        y = nn.LayerNorm()(x)
        y = nn.MultiHeadDotProductAttention(
            num_heads=self.num_heads, dropout_rate=self.dropout, deterministic=True
        )(y, mask=mask)
        x = x + nn.Dropout(self.dropout, deterministic=True)(y)
        y = nn.LayerNorm()(x)
        y = nn.gelu(nn.Dense(4 * x.shape[-1])(y))
        return x + nn.Dense(x.shape[-1])(y)


class ScannedBlock(nn.Module):
    """A block as the body of `nn.scan`: it carries x and stacks nothing."""

    num_heads: int

    @nn.compact
    def __call__(self, x, mask):
        """As `Block`, with no output per layer."""
        return Block(self.num_heads)(x, mask), None


class Transformer(nn.Module):
    """Tokens [batch, length] to logits [batch, length, VOCAB]; embeddings are tied.

    `layers`: "loop", "scan" or "remat".
    """

    layers: str = "loop"
    num_layers: int = 2
    num_heads: int = 8
    features: int = 32

    @nn.compact
    def __call__(self, tokens):
        """Logits of the next token at every position."""
        embed = nn.Embed(VOCAB, self.features)
        positions = self.param(
            "positions", nn.initializers.normal(0.02), (1, LENGTH, self.features)
        )
        x = embed(tokens) + positions
        mask = nn.make_causal_mask(tokens)
        if self.layers == "scan":
            blocks = nn.scan(
                ScannedBlock,
                variable_axes={"params": 0},
                split_rngs={"params": True},
                in_axes=nn.broadcast,
                length=self.num_layers,
            )
            x, _ = blocks(self.num_heads)(x, mask)
        else:
            block = nn.remat(Block) if self.layers == "remat" else Block
            for _ in range(self.num_layers):
                x = block(self.num_heads)(x, mask)
        return embed.attend(nn.LayerNorm()(x))


def transformer(layers: str, dtype: str = "float32", **sizes: int) -> Program:
    """The forward pass of `Transformer`, in the dtype of its parameters."""
    model = Transformer(layers=layers, **sizes)

    def forward(params, tokens):
        return model.apply({"params": params}, tokens)

    params = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), shapes_of(model)
    )
    return Program(function=forward, args=(params, token_ids(BATCH, LENGTH, VOCAB)))


def shapes_of(model: Transformer):
    """Shapes of a model's parameters."""
    tokens = token_ids(BATCH, LENGTH, VOCAB)
    return jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
