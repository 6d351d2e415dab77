"""Prefill and decode against a numpy decoder that recomputes the whole sequence."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Jaxpr, jaxprs_in_params

from lts.models import Decoder, load, names, read_config

TINY = {
    "model_type": "llama",
    "vocab_size": 37,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100.0,
    "torch_dtype": "float32",
}
# At head size 8 and base 100 the wavelengths are 6.3 to 199 positions, so these
# settings put pairs in all three ranges of the llama3 rule.
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 60,
}
VARIANTS = {
    "untied": {},
    "tied": {
        "tie_word_embeddings": True,
        "rope_scaling": {"type": "linear", "factor": 4.0},
    },
    "two_kv_heads": {
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rope_scaling": LLAMA3,
    },
    "qwen2_biases": {"model_type": "qwen2", "num_key_value_heads": 1},
    "qwen3_norms_and_biases": {
        "model_type": "qwen3",
        "head_dim": 10,
        "num_key_value_heads": 2,
        "attention_bias": True,
    },
}
BATCH, INPUT_LEN, STEPS, CACHE_LEN = 2, 5, 4, 12


def build(variant: str, layers: Literal["scan", "unrolled"] = "scan") -> Decoder:
    config = read_config(TINY | VARIANTS[variant], variant)
    return Decoder(config=config, layers=layers)


def random_params(model: Decoder):
    """Weights on the host; norm scales are not one, so that each of them is seen."""
    random = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: random.normal(0.1, 0.3, leaf.shape).astype(leaf.dtype),
        model.abstract_params(),
    )


def unstacked(params, num_layers: int):
    """Scan-form parameters in unrolled form."""
    layers = [
        {name: leaf[i] for name, leaf in params["layers"].items()}
        for i in range(num_layers)
    ]
    return params | {"layers": layers}


def reference_frequencies(fields) -> list[float]:
    size = (
        fields.get("head_dim") or fields["hidden_size"] // fields["num_attention_heads"]
    )
    scaling = fields.get("rope_scaling") or {}
    frequencies = []
    for i in range(size // 2):
        frequency = fields["rope_theta"] ** (-2 * i / size)
        if "rope_type" in scaling:
            turns = (
                scaling["original_max_position_embeddings"] * frequency / (2 * np.pi)
            )
            low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
            if turns < low:
                frequency /= scaling["factor"]
            elif turns < high:
                smooth = (turns - low) / (high - low)
                frequency *= (1 - smooth) / scaling["factor"] + smooth
        elif scaling:
            frequency /= scaling["factor"]
        frequencies.append(frequency)
    return frequencies


def reference_logits(fields, params, tokens: np.ndarray) -> np.ndarray:
    """Logits [vocab] after the last of `tokens` [s], one request, heads in loops."""
    weights = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    frequencies = reference_frequencies(fields)
    heads, kv_heads = fields["num_attention_heads"], fields["num_key_value_heads"]

    def norm(x, scale):
        return (
            x / np.sqrt((x**2).mean(-1, keepdims=True) + fields["rms_norm_eps"]) * scale
        )

    def turn(x):  # [s, k], as complex numbers
        half = x.shape[1] // 2
        angle = np.outer(np.arange(len(x)), frequencies)
        turned = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * angle)
        return np.concatenate([turned.real, turned.imag], axis=1)

    x = weights["embed"][tokens]
    for layer in unstacked(weights, fields["num_hidden_layers"])["layers"]:
        y = norm(x, layer["norm_attention"])
        attended = np.zeros_like(x)
        for head in range(heads):
            group, member = divmod(head, heads // kv_heads)
            query = y @ layer["query"][:, group, member]
            key, value = y @ layer["key"][:, group], y @ layer["value"][:, group]
            if "query_bias" in layer:
                query = query + layer["query_bias"][group, member]
                key = key + layer["key_bias"][group]
                value = value + layer["value_bias"][group]
            if fields["model_type"] == "qwen3":
                query = norm(query, layer["query_norm"])
                key = norm(key, layer["key_norm"])
            scores = turn(query) @ turn(key).T / np.sqrt(query.shape[1])
            for row in range(len(tokens)):
                shares = np.exp(scores[row, : row + 1] - scores[row, : row + 1].max())
                mixed = shares / shares.sum() @ value[: row + 1]
                attended[row] += mixed @ layer["out"][group, member]
        x = x + attended + layer.get("out_bias", 0.0)
        y = norm(x, layer["norm_mlp"])
        gate = y @ layer["gate"]
        x = x + (gate / (1 + np.exp(-gate)) * (y @ layer["up"])) @ layer["down"]
    last = norm(x[-1], weights["norm"])
    return last @ weights.get("unembed", weights["embed"].T)


def run(model: Decoder, params, tokens: np.ndarray, kv_dtype=None) -> np.ndarray:
    """Logits [steps + 1, b, vocab]: a prefill, then decodes that carry the cache."""
    cache = model.init_cache(BATCH, CACHE_LEN, kv_dtype)
    logits, cache = jax.jit(model.prefill)(params, cache, tokens[:, :INPUT_LEN])
    collected = [logits]
    decode = jax.jit(model.decode, donate_argnums=1)
    for position in range(INPUT_LEN, INPUT_LEN + STEPS):
        logits, cache = decode(params, cache, tokens[:, position], jnp.int32(position))
        collected.append(logits)
    return np.stack([np.asarray(logits) for logits in collected])


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    # float32 sums of a few dozen terms, two layers deep.
    tolerance = 1e-5 * np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def random_tokens() -> np.ndarray:
    shape = (BATCH, INPUT_LEN + STEPS)
    return np.random.default_rng(1).integers(0, 37, shape, dtype=np.int32)


@pytest.mark.parametrize("variant", VARIANTS)
def test_prefill_and_decode_equal_full_recomputation(variant):
    model = build(variant)
    params, tokens = random_params(model), random_tokens()
    fields = TINY | VARIANTS[variant]
    expected = np.stack(
        [
            [reference_logits(fields, params, row[: INPUT_LEN + n]) for row in tokens]
            for n in range(STEPS + 1)
        ]
    )
    assert_close(run(model, params, tokens), expected)


@pytest.mark.parametrize("variant", ["tied", "qwen3_norms_and_biases"])
def test_scan_and_unrolled_forms_agree(variant):
    scan, unrolled = build(variant), build(variant, "unrolled")
    params, tokens = random_params(scan), random_tokens()
    layers = unstacked(params, scan.config.num_hidden_layers)
    assert_close(run(unrolled, layers, tokens), run(scan, params, tokens))


@pytest.mark.parametrize("layers", ["scan", "unrolled"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_num_params_is_the_sum_over_abstract_params(variant, layers):
    model = build(variant, layers)
    leaves = jax.tree.leaves(model.abstract_params())
    assert model.num_params == sum(leaf.size for leaf in leaves)
    made = jax.eval_shape(model.init_params, jax.random.key(0))
    assert made == model.abstract_params()


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("llama-3.1-8b", 8.03e9),
        ("llama-3.1-70b", 70.55e9),
        ("llama-3.1-405b", 405.85e9),
        ("qwen3-8b", 8.19e9),
        ("qwen3-32b", 32.76e9),
    ],
)
def test_zoo_totals_equal_the_published_ones(name, published):
    assert load(name).num_params == pytest.approx(published, rel=1e-3)


def test_initial_matrices_keep_the_scale_of_their_input_and_norms_are_one():
    config = read_config(TINY | {"hidden_size": 64, "intermediate_size": 256}, "m")
    params = Decoder(config=config).init_params(jax.random.key(0))
    for name, fan_in in [("query", 64), ("out", 64), ("up", 64), ("down", 256)]:
        # At least 12,288 draws: the spread of their deviation is below 0.7%.
        assert params["layers"][name].std() == pytest.approx(fan_in**-0.5, rel=0.03)
    assert (params["layers"]["norm_mlp"] == 1).all()


def test_a_biased_layer_counts_its_biases():
    d, heads, kv, k, layers = 24, 4, 2, 10, 2
    tiny = TINY | {"model_type": "qwen3", "head_dim": k, "num_key_value_heads": kv}
    plain = Decoder(config=read_config(tiny, "plain")).num_params
    biases = layers * (heads * k + 2 * kv * k + d)
    assert build("qwen3_norms_and_biases").num_params == plain + biases


def test_arrays_keep_heads_apart():
    model = build("two_kv_heads")
    shapes = jax.tree.map(lambda leaf: leaf.shape, model.abstract_params())
    assert shapes["embed"] == (37, 24) and shapes["unembed"] == (24, 37)
    assert shapes["layers"]["query"] == (2, 24, 2, 3, 8)
    assert shapes["layers"]["key"] == shapes["layers"]["value"] == (2, 24, 2, 8)
    assert shapes["layers"]["out"] == (2, 2, 3, 8, 24)
    assert "unembed" not in build("tied").abstract_params()
    assert model.abstract_cache(5, 7)["key"].shape == (2, 5, 2, 7, 8)
    layers = build("two_kv_heads", "unrolled").abstract_cache(5, 7)
    assert [layer["value"].shape for layer in layers] == [(5, 2, 7, 8)] * 2


def test_prefill_writes_only_the_new_positions():
    model = build("two_kv_heads")
    params = random_params(model)
    cache = jax.tree.map(lambda leaf: leaf - 9.0, model.init_cache(BATCH, CACHE_LEN))
    tokens = random_tokens()[:, :INPUT_LEN]
    _, cache = jax.jit(model.prefill)(params, cache, tokens)
    for leaf in cache.values():
        assert (leaf[..., INPUT_LEN:, :] == -9.0).all()
        assert (leaf[..., :INPUT_LEN, :] != -9.0).all()


def test_decode_does_not_see_positions_behind_its_own():
    model = build("two_kv_heads")
    params = random_params(model)
    tokens = random_tokens()
    _, cache = jax.jit(model.prefill)(
        params, model.init_cache(BATCH, CACHE_LEN), tokens[:, :INPUT_LEN]
    )
    stale = jax.tree.map(lambda leaf: leaf.at[..., INPUT_LEN:, :].set(7.0), cache)
    position = jnp.int32(INPUT_LEN)
    decode = jax.jit(model.decode)
    clean_logits, _ = decode(params, cache, tokens[:, -1], position)
    stale_logits, _ = decode(params, stale, tokens[:, -1], position)
    np.testing.assert_array_equal(clean_logits, stale_logits)


def test_cache_and_weights_may_have_other_dtypes_than_the_activations():
    model = build("two_kv_heads")
    params, tokens = random_params(model), random_tokens()
    exact = run(model, params, tokens)
    rounded = run(model, params, tokens, kv_dtype="bfloat16")
    assert rounded.dtype == np.float32
    np.testing.assert_array_equal(rounded[0], exact[0])  # prefill does not read it
    # bfloat16 keeps 8 bits: about 0.4% in each cached number.
    difference = np.abs(rounded[1:] - exact[1:]).max()
    assert 0 < difference < 0.02 * np.abs(exact).max()
    narrow = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float8_e4m3fn), params)
    cache = model.init_cache(BATCH, CACHE_LEN)
    logits, _ = jax.jit(model.prefill)(narrow, cache, tokens[:, :INPUT_LEN])
    assert logits.dtype == jnp.float32


@pytest.mark.parametrize("layers", ["scan", "unrolled"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_abstract_args_trace_and_the_cache_keeps_its_form(phase, layers):
    model = build("two_kv_heads", layers)
    args = model.args(
        phase,
        3,
        input_len=4,
        cache_len=8,
        weight_dtype="bfloat16",
        kv_dtype="float8_e4m3fn",
    )
    logits, cache = jax.eval_shape(getattr(model, phase), *args)
    assert logits == jax.ShapeDtypeStruct((3, 37), jnp.bfloat16)
    assert cache == args[1]
    assert cache == model.abstract_cache(3, 8, jnp.float8_e4m3fn)
    assert args[2].shape == ((3, 4) if phase == "prefill" else (3,))


def test_tracing_405b_makes_no_arrays():
    model = load("llama-3.1-405b")
    args = model.args("prefill", 4, input_len=8192, cache_len=8192)
    before = sum(array.nbytes for array in jax.live_arrays())
    closed = jax.make_jaxpr(model.prefill)(*args)
    held = sum(array.nbytes for array in jax.live_arrays()) - before
    assert held < 1e4  # the rotary frequencies
    assert closed.out_avals[0].shape == (4, 128256)
    assert closed.out_avals[1].shape == (126, 4, 8, 8192, 128)


def named_ops(jaxpr: Jaxpr, scope: str = "") -> list[tuple[str, str]]:
    """(primitive, scopes) of each contraction, gather and cache update, in order."""
    found = []
    for eqn in jaxpr.eqns:
        parts = [scope, *str(eqn.source_info.name_stack).split("/")]
        path = "/".join(part for part in parts if part and "->" not in part)
        if eqn.primitive.name in ("dot_general", "gather", "dynamic_update_slice"):
            found.append((eqn.primitive.name, path))
        for inner in jaxprs_in_params(eqn.params):
            found += named_ops(inner, path)
    return found


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_each_contraction_and_cache_update_has_one_named_op(phase):
    model = build("qwen3_norms_and_biases")
    args = model.args(phase, 2, input_len=4, cache_len=8)
    dot, update = "dot_general", "dynamic_update_slice"
    assert named_ops(jax.make_jaxpr(getattr(model, phase))(*args).jaxpr) == [
        ("gather", "embed"),
        (dot, "attention/query"),
        (dot, "attention/key"),
        (dot, "attention/value"),
        (update, "attention/write_key"),
        (update, "attention/write_value"),
        (dot, "attention/scores"),
        (dot, "attention/attend"),
        (dot, "attention/out"),
        (dot, "mlp/gate"),
        (dot, "mlp/up"),
        (dot, "mlp/down"),
        (dot, "unembed"),
    ]


def test_equal_models_hash_equal():
    first, second = load("qwen3-8b"), load("qwen3-8b")
    assert first == second and hash(first) == hash(second)
    assert first != load("qwen3-8b", layers="unrolled")


def test_a_prompt_longer_than_the_cache_is_refused():
    model = build("untied")
    args = model.args("prefill", 2, input_len=9, cache_len=8)
    with pytest.raises(ValueError, match="cannot prefill 9 tokens into a cache of 8"):
        jax.eval_shape(model.prefill, *args)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"phase": "train"}, "phase must be 'prefill' or 'decode', got 'train'"),
        ({"batch": 0}, "batch must be a positive integer, got 0"),
        ({"input_len": -4}, "input_len must be a positive integer, got -4"),
        ({"cache_len": 2.5}, "cache_len must be a positive integer, got 2.5"),
        ({"kv_dtype": "int8"}, "floating-point dtype .* got 'int8'"),
        ({"weight_dtype": "fp7"}, "floating-point dtype .* got 'fp7'"),
    ],
)
def test_bad_sizes_and_dtypes_are_refused(change, message):
    asked = {"phase": "decode", "batch": 2, "input_len": 4, "cache_len": 8} | change
    with pytest.raises(ValueError, match=message):
        build("untied").args(**asked)


def test_every_zoo_model_traces_in_both_phases():
    for name in names():
        model = load(name)
        for phase in ("prefill", "decode"):
            args = model.args(phase, 2, input_len=16, cache_len=32)
            logits, _ = jax.eval_shape(getattr(model, phase), *args)
            assert logits.shape == (2, model.config.vocab_size)
