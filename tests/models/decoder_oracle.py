"""A decoder in plain numpy and float64: one request, all positions at once, no cache.

Written from the definitions of the records in `lts.models.architecture`, with loops
over heads and over tokens where the decoders have arrays, and without their second
forms (absorbed attention, rings of positions, segments).
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from lts.models import Decoder, DecoderConfig
from lts.models.architecture import (
    DenseFfn,
    ExpertFfn,
    GroupedAttention,
    LatentAttention,
    Rope,
)
from lts.models.quantized import BlockScaled
from lts.models.rope import frequencies

BATCH = 2


def random_params(model: Decoder):
    """Weights on the host; norm scales are not one, so that each of them is seen."""
    random = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: random.normal(0.1, 0.3, leaf.shape).astype(leaf.dtype),
        model.abstract_params(),
    )


def random_tokens(config: DecoderConfig, length: int) -> np.ndarray:
    """Tokens [b, length]."""
    shape = (BATCH, length)
    return np.random.default_rng(1).integers(0, config.vocab_size, shape, np.int32)


def run(model: Decoder, params, tokens: np.ndarray, prompt: int, cache_len: int):
    """Logits [length - prompt + 1, b, vocab]: a prefill, then decodes."""
    cache = model.init_cache(BATCH, cache_len)
    logits, cache = jax.jit(model.prefill)(params, cache, tokens[:, :prompt])
    collected = [logits]
    decode = jax.jit(model.decode, donate_argnums=1)
    for position in range(prompt, tokens.shape[1]):
        logits, cache = decode(params, cache, tokens[:, position], jnp.int32(position))
        collected.append(logits)
    return np.stack([np.asarray(logits) for logits in collected])


def assert_equals_the_oracle(
    model: Decoder, params, *, prompt: int, steps: int, cache_len: int
) -> None:
    """Prefill and decode steps give the logits of a recomputed sequence."""
    tokens = random_tokens(model.config, prompt + steps)
    found = run(model, params, tokens, prompt, cache_len)
    every = np.stack([reference_logits(model.config, params, row) for row in tokens])
    expected = np.swapaxes(every[:, prompt - 1 :], 0, 1)
    # float32 sums of a few dozen terms, a few layers deep.
    tolerance = 1e-5 * np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def plain(weight) -> np.ndarray:
    """A weight in float64, every value of a block times the block's scale."""
    if not isinstance(weight, BlockScaled):
        return np.asarray(weight, np.float64)
    values = np.asarray(weight.values).astype(np.float64)
    scale = np.asarray(weight.scale).astype(np.float64)
    for dim, (n, blocks) in enumerate(zip(values.shape, scale.shape, strict=True)):
        scale = np.repeat(scale, n // blocks, axis=dim)
    return values * scale


def layers_of(params) -> list[dict[str, np.ndarray]]:
    """Weights of every layer, in order, from a tree in scan form."""
    found: dict[int, dict[str, np.ndarray]] = {}
    for name, tree in params.items():
        if name.startswith("layers"):
            start = int(name.removeprefix("layers") or 0)
            for offset, weights in _numbered(tree):
                found[start + offset] = weights
    assert sorted(found) == list(range(len(found)))
    return [found[number] for number in sorted(found)]


def _numbered(tree) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    unit = tree if "0" in tree else {"0": tree}
    for place, weights in unit.items():
        stacks = {name: plain(weight) for name, weight in weights.items()}
        for repeat in range(len(next(iter(stacks.values())))):
            own = {name: stack[repeat] for name, stack in stacks.items()}
            yield repeat * len(unit) + int(place), own


def reference_logits(config: DecoderConfig, params, tokens: np.ndarray) -> np.ndarray:
    """Logits [s, vocab] after each of `tokens` [s]."""
    eps, embed = config.rms_norm_eps, plain(params["embed"])
    x = embed[tokens]
    for layer, weights in zip(config.layers, layers_of(params), strict=True):
        if layer.attention is not None:
            y = norm(x, eps) * weights["norm_attention"]
            attend = latent if isinstance(layer.attention, LatentAttention) else grouped
            x = x + attend(layer.attention, weights, y, eps)
        if layer.ffn is not None:
            y = norm(x, eps) * weights["norm_mlp"]
            x = x + np.stack([feed_forward(layer.ffn, weights, row) for row in y])
    last = norm(x, eps) * plain(params["norm"])
    return last @ (plain(params["unembed"]) if "unembed" in params else embed.T)


def norm(x: np.ndarray, eps: float) -> np.ndarray:
    """Rows over their root mean square."""
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)


def turn(x: np.ndarray, rope: Rope | None) -> np.ndarray:
    """Rows [s, k] with their first elements turned as complex numbers."""
    if rope is None:
        return x
    angle = np.outer(
        np.arange(len(x)), frequencies(rope.size, rope.theta, rope.scaling)
    )
    half = rope.size // 2
    turned = (x[:, :half] + 1j * x[:, half : rope.size]) * np.exp(1j * angle)
    return np.concatenate([turned.real, turned.imag, x[:, rope.size :]], axis=1)


def mixed(scores: np.ndarray, value: np.ndarray, sees) -> np.ndarray:
    """Rows of `value` mixed by softmax over the positions that each row sees."""
    rows = []
    for row, own in enumerate(scores):
        seen = [place for place in range(row + 1) if sees(row, place)]
        shares = np.exp(own[seen] - own[seen].max())
        rows.append(shares / shares.sum() @ value[seen])
    return np.stack(rows)


def grouped(
    attention: GroupedAttention, weights, y: np.ndarray, eps: float
) -> np.ndarray:
    """Grouped-query attention [s, d], head by head."""
    kv_heads, members = attention.num_kv_heads, attention.queries_per_kv_head
    query = np.einsum("sd,dgqk->sgqk", y, weights["query"])
    key = np.einsum("sd,dgk->sgk", y, weights["key"])
    value = np.einsum("sd,dgk->sgk", y, weights["value"])
    if attention.qkv_bias:
        query, key = query + weights["query_bias"], key + weights["key_bias"]
        value = value + weights["value_bias"]
    if attention.qk_norm == "layer":
        query = norm(query.reshape(len(y), -1), eps).reshape(query.shape)
        key = norm(key.reshape(len(y), -1), eps).reshape(key.shape)
    elif attention.qk_norm in ("head", "unit"):
        query, key = norm(query, eps), norm(key, eps)
    if attention.qk_norm in ("head", "layer"):
        query, key = query * weights["query_norm"], key * weights["key_norm"]
    place = np.arange(len(y))[:, None]

    def sees(row: int, place: int) -> bool:
        if attention.window is None:
            return True
        if attention.chunked:
            return place // attention.window == row // attention.window
        return row - place < attention.window

    out = np.zeros_like(y)
    for group in range(kv_heads):
        turned = turn(key[:, group], attention.rope)
        for member in range(members):
            own = turn(query[:, group, member], attention.rope)
            if attention.query_scaling is not None:
                floor, scale = attention.query_scaling
                own = own * (1 + scale * np.log(np.floor((place + 1) / floor) + 1))
            scores = own @ turned.T / np.sqrt(attention.head_dim)
            if attention.rope is not None:
                scores = scores * attention.rope.attention_scale
            out += mixed(scores, value[:, group], sees) @ weights["out"][group, member]
    return out + (weights["out_bias"] if attention.out_bias else 0.0)


def latent(
    attention: LatentAttention, weights, y: np.ndarray, eps: float
) -> np.ndarray:
    """Latent attention [s, d], with whole queries and keys of every head."""
    entering = y
    if attention.query_rank is not None:
        entering = norm(y @ weights["query_down"], eps) * weights["query_norm"]
    low = norm(y @ weights["kv_down"], eps) * weights["kv_norm"]
    shared = turn(y @ weights["key_rope"], attention.rope)
    size = attention.nope_dim + attention.rope.size
    out = np.zeros_like(y)
    for head in range(attention.num_heads):
        turned = turn(entering @ weights["query_rope"][:, head], attention.rope)
        query = np.concatenate([entering @ weights["query_up"][:, head], turned], 1)
        key = np.concatenate([low @ weights["key_up"][:, head], shared], 1)
        scores = query @ key.T * attention.rope.attention_scale / np.sqrt(size)
        value = low @ weights["value_up"][:, head]
        out += mixed(scores, value, lambda row, place: True) @ weights["out"][head]
    return out


def feed_forward(ffn: DenseFfn | ExpertFfn, weights, x: np.ndarray) -> np.ndarray:
    """The feed-forward part of one token [d]."""

    def block(prefix: str, x: np.ndarray, *number: int) -> np.ndarray:
        gate, up, down = (
            weights[prefix + name][number] if prefix + name in weights else None
            for name in ("gate", "up", "down")
        )
        inner = np.maximum(x @ up, 0) if gate is None else silu(x @ gate) * (x @ up)
        return inner @ down

    if isinstance(ffn, DenseFfn):
        return block("", x)
    out = np.zeros_like(x)
    bias = weights.get("router_bias", np.zeros(ffn.num_experts))
    for expert, weight in chosen(ffn, x @ weights["router"], bias):
        if ffn.routing.on_input:
            out += block("expert_", x * weight, expert)
        else:
            out += weight * block("expert_", x, expert)
    if ffn.shared_size:
        shared = block("shared_", x)
        if ffn.shared_gated:
            shared = shared * sigmoid(x @ weights["shared_router"])
        out += shared
    return out


def chosen(
    ffn: ExpertFfn, logits: np.ndarray, bias: np.ndarray
) -> list[tuple[int, float]]:
    """(expert, weight) of one token, best first."""
    routing = ffn.routing
    scores = np.exp(logits) / np.exp(logits).sum()
    if routing.scores == "sigmoid":
        scores = sigmoid(logits)
    elif routing.scores == "softmax_of_chosen":
        scores = logits
    ranking = scores + bias if routing.biased else scores
    allowed = list(range(ffn.num_experts))
    if routing.groups > 1:
        size = ffn.num_experts // routing.groups
        worth = [
            sum(
                sorted(ranking[group * size : (group + 1) * size])[
                    -routing.group_best :
                ]
            )
            for group in range(routing.groups)
        ]
        best = sorted(range(routing.groups), key=lambda group: -worth[group])
        kept = best[: routing.top_groups]
        allowed = [expert for expert in allowed if expert // size in kept]
    picked = sorted(allowed, key=lambda expert: -ranking[expert])[: ffn.top_k]
    weights = np.array([scores[expert] for expert in picked])
    if routing.scores == "softmax_of_chosen":
        weights = np.exp(weights) / np.exp(weights).sum()
    elif routing.normalised:
        weights = weights / weights.sum()
    return list(zip(picked, weights * routing.scale, strict=True))


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def silu(x: np.ndarray) -> np.ndarray:
    """x times its sigmoid."""
    return x * sigmoid(x)
