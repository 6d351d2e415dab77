"""Decoders whose layers differ, and weights of few bits: trees, counts, results."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lts.models import Decoder, DecoderConfig, load
from lts.models.architecture import (
    DenseFfn,
    ExpertFfn,
    GroupedAttention,
    LatentAttention,
    Layer,
    Quantization,
    Rope,
    Routing,
)
from lts.models.quantized import BlockScaled, dequantized
from tests.models.decoder_oracle import (
    assert_equals_the_oracle,
    random_params,
    random_tokens,
    run,
)

ROPE = Rope(size=8, theta=100.0)
FULL = GroupedAttention(num_heads=4, num_kv_heads=2, head_dim=8, rope=ROPE)
WINDOW = GroupedAttention(num_heads=2, num_kv_heads=2, head_dim=8, rope=ROPE, window=3)
LATENT = LatentAttention(
    num_heads=4, query_rank=12, kv_rank=8, nope_dim=8, value_dim=8, rope=ROPE
)
DENSE, EXPERTS = DenseFfn(size=24), ExpertFfn(num_experts=4, top_k=2, size=16)


def decoder_of(*layers: tuple, form="scan", **switches) -> Decoder:
    config = DecoderConfig(
        name="layered",
        vocab_size=19,
        hidden_size=16,
        layers=tuple(Layer(attention=a, ffn=f) for a, f in layers),
        max_position_embeddings=64,
        dtype="float32",
        **switches,
    )
    return Decoder(config=config, layers=form)


# One layer without attention, then twice a pair that alternates, then one without more.
MIXED = [(None, DENSE), *[(WINDOW, DENSE), (FULL, EXPERTS)] * 2, (LATENT, None)]


def paths(tree) -> list[str]:
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [jax.tree_util.keystr(p, simple=True, separator="/") for p, _ in flat]


def test_segments_are_named_by_their_first_layer_and_places_in_the_unit() -> None:
    model = decoder_of(*MIXED)
    params, cache = model.abstract_params(), model.abstract_cache(2, 8)
    tops = {name for name in params if name.startswith("layers")}
    assert tops == {"layers0", "layers1", "layers5"}
    assert list(params["layers0"]) == ["norm_mlp", "gate", "up", "down"]
    assert set(params["layers1"]) == {"0", "1"}
    assert params["layers1"]["1"]["expert_up"].shape == (2, 4, 16, 16)
    assert params["layers5"]["kv_down"].shape == (1, 16, 8)
    assert paths(cache) == [
        "layers1/0/key",
        "layers1/0/value",
        "layers1/1/key",
        "layers1/1/value",
        "layers5/latent",
        "layers5/rope",
    ]
    assert cache["layers1"]["0"]["key"].shape == (2, 2, 2, 3, 8)


def test_mixed_layers_equal_full_recomputation() -> None:
    model = decoder_of(*MIXED)
    params = random_params(model)
    assert_equals_the_oracle(model, params, prompt=5, steps=3, cache_len=8)


def unrolled(tree):
    """A tree in scan form with a list of layers for every stack of them."""
    if any(isinstance(own, dict) for own in tree.values()):
        return {name: unrolled(own) for name, own in tree.items()}
    repeats = len(jax.tree.leaves(tree)[0])
    return [{name: stack[i] for name, stack in tree.items()} for i in range(repeats)]


def test_mixed_layers_unrolled_equal_the_scanned_ones() -> None:
    scan, lists = decoder_of(*MIXED), decoder_of(*MIXED, form="unrolled")
    params = random_params(scan)
    layers = {
        name: unrolled(tree) if name.startswith("layers") else tree
        for name, tree in params.items()
    }
    assert jax.tree.structure(lists.abstract_params()) == jax.tree.structure(layers)
    assert jax.tree.structure(lists.init_cache(2, 8)) == jax.tree.structure(
        unrolled(scan.init_cache(2, 8))
    )
    tokens = random_tokens(scan.config, 6)
    found, expected = (
        run(model, own, tokens, 5, 8)
        for model, own in ((lists, layers), (scan, params))
    )
    tolerance = 1e-5 * np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("form", ["scan", "unrolled"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_the_cache_keeps_its_form_and_the_names_are_those_of_layers(phase, form):
    model = decoder_of(*MIXED, form=form)
    args = model.args(phase, 2, input_len=6, cache_len=8, kv_dtype="bfloat16")
    logits, cache = jax.eval_shape(getattr(model, phase), *args)
    assert logits == jax.ShapeDtypeStruct((2, 19), jnp.float32)
    assert cache == args[1]
    text = jax.make_jaxpr(getattr(model, phase))(*args).pretty_print(name_stack=True)
    for scope in (
        "layers0/mlp/gate",
        "layers1/0/attention/query",
        "layers1/1/experts",
        "layers5/attention/kv_down",
    ):
        assert f"[{scope}" in text


@pytest.mark.parametrize("form", ["scan", "unrolled"])
def test_parameters_are_counted_without_scales(form) -> None:
    quantization = Quantization(dtype="float8_e4m3fn", block=(8, 8))
    plain = decoder_of(*MIXED, form=form)
    model = decoder_of(*MIXED, form=form, quantization=quantization)
    leaves = jax.tree.leaves(plain.abstract_params())
    assert model.num_params == plain.num_params == sum(leaf.size for leaf in leaves)
    made = jax.eval_shape(model.init_params, jax.random.key(0))
    assert made == model.abstract_params()


def test_every_array_has_a_name_for_every_dim() -> None:
    model = decoder_of(
        *MIXED, quantization=Quantization(dtype="float8_e4m3fn", block=(8, 8))
    )
    for dtype in (None, "bfloat16"):
        params, cache = model.dim_names(dtype)
        for named, arrays in (
            (params, model.abstract_params(dtype)),
            (cache, model.abstract_cache(2, 8)),
        ):
            assert jax.tree.structure(named) == jax.tree.structure(arrays)
            pairs = zip(jax.tree.leaves(named), jax.tree.leaves(arrays), strict=True)
            assert all(len(names.dims) == leaf.ndim for names, leaf in pairs)
    assert params["layers1"]["1"]["expert_down"].dims == (
        "layer",
        "experts",
        "expert_ffn",
        "hidden",
    )
    assert params["layers1"]["1"]["router"].dims == ("layer", "hidden", "routed")
    assert cache["layers5"]["latent"].dims == (
        "layer",
        "batch",
        "cache_time",
        "latent",
    )


BLOCKS = Quantization(dtype="float8_e4m3fn", block=(12, 8))


def test_blocks_cover_inputs_and_outputs_but_neither_heads_nor_experts() -> None:
    shared = ExpertFfn(num_experts=4, top_k=2, size=24, shared_size=8)
    model = decoder_of(*[(FULL, shared)] * 3, quantization=BLOCKS)
    layers = model.abstract_params()["layers"]
    scales = {
        name: leaf.scale.shape
        for name, leaf in layers.items()
        if isinstance(leaf, BlockScaled)
    }
    # Of hidden 16 the greatest divisor of block 12 is 4; outputs go in blocks of 8.
    assert scales == {
        "query": (3, 4, 2, 2, 1),
        "key": (3, 4, 2, 1),
        "value": (3, 4, 2, 1),
        "out": (3, 2, 2, 2, 2),
        "expert_gate": (3, 4, 4, 3),
        "expert_up": (3, 4, 4, 3),
        "expert_down": (3, 4, 2, 2),
        "shared_gate": (3, 4, 1),
        "shared_up": (3, 4, 1),
        "shared_down": (3, 2, 2),
    }
    assert layers["query"].values.dtype == jnp.float8_e4m3fn
    assert layers["query"].scale.dtype == jnp.float32
    assert layers["router"].dtype == layers["norm_mlp"].dtype == jnp.float32


def test_a_quantization_of_experts_leaves_other_weights_plain() -> None:
    shared = ExpertFfn(num_experts=4, top_k=2, size=24, shared_size=8)
    form = Quantization(
        dtype="int4", block=(8, 1), scale_dtype="bfloat16", scope="experts"
    )
    layers = decoder_of((LATENT, shared), quantization=form).abstract_params()["layers"]
    pairs = {name for name, leaf in layers.items() if isinstance(leaf, BlockScaled)}
    assert pairs == {"expert_gate", "expert_up", "expert_down"}
    assert layers["expert_down"].values.dtype == jnp.int4
    assert layers["expert_down"].scale == jax.ShapeDtypeStruct(
        (1, 4, 3, 16), jnp.bfloat16
    )


def test_a_weight_dtype_of_the_caller_replaces_the_quantization() -> None:
    model = decoder_of((FULL, EXPERTS), quantization=BLOCKS)
    plain = decoder_of((FULL, EXPERTS))
    found = model.abstract_params("bfloat16")
    assert found == plain.abstract_params("bfloat16")
    args = model.args(
        "decode", 2, input_len=4, cache_len=8, weight_dtype="float8_e4m3fn"
    )
    assert {leaf.dtype.name for leaf in jax.tree.leaves(args[0])} == {"float8_e4m3fn"}
    logits, _ = jax.eval_shape(model.decode, *args)
    assert logits.dtype == jnp.float32


def test_float8_layers_equal_full_recomputation_with_dequantized_weights() -> None:
    routing = Routing(scores="sigmoid", biased=True)
    experts = ExpertFfn(num_experts=4, top_k=2, size=16, shared_size=8, routing=routing)
    form = Quantization(dtype="float8_e4m3fn", block=(8, 4))
    model = decoder_of((LATENT, experts), quantization=form)
    params = random_params(model)
    assert_equals_the_oracle(model, params, prompt=5, steps=2, cache_len=8)


def test_int4_experts_equal_full_recomputation_with_dequantized_weights() -> None:
    form = Quantization(dtype="int4", block=(8, 1), scope="experts")
    model = decoder_of((None, EXPERTS), quantization=form)
    params = model.init_params(jax.random.key(0))
    assert_equals_the_oracle(model, params, prompt=5, steps=0, cache_len=8)


def test_initial_weights_are_quantized_to_within_a_step_of_their_dtype() -> None:
    model = decoder_of((None, DENSE), quantization=BLOCKS)
    key = jax.random.key(3)
    few, exact = model.init_params(key), model.init_params(key, "float32")
    gate = dequantized(few["layers"]["gate"], jnp.float32)
    # float8_e4m3fn keeps 4 bits of a number: half a step is 1 / 16 of it.
    difference = np.abs(gate - exact["layers"]["gate"])
    assert 0 < difference.max() <= np.abs(exact["layers"]["gate"]).max() / 16


def test_only_equal_layers_can_be_pipeline_stages() -> None:
    model = decoder_of(*MIXED)
    equal = decoder_of(*[(FULL, EXPERTS)] * 6, quantization=BLOCKS)
    assert (model.stageable_layers, equal.stageable_layers) == (1, 6)
    assert load("qwen3-8b").stageable_layers == 36
    with pytest.raises(ValueError, match="6 layers of 'layered' over 2 .* differ"):
        model.stage_params(model.abstract_params(), 0, 2)
    with pytest.raises(ValueError, match="over 4 pipeline stages: the number must div"):
        equal.check_stages(4)
    params = random_params(equal)
    stage = equal.stage_params(params, 1, 3)
    np.testing.assert_array_equal(
        stage["layers"]["expert_up"].scale, params["layers"]["expert_up"].scale[2:4]
    )
    assert set(stage) == {"layers"}
    assert set(equal.stage_params(params, 2, 3)) == {"layers", "norm", "unembed"}
