"""Routing against a loop over tokens; expert layers against the plain decoder."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lts.models import Decoder, DecoderConfig
from lts.models.architecture import (
    DenseFfn,
    ExpertFfn,
    GroupedAttention,
    Layer,
    Rope,
    Routing,
)
from lts.models.routing import route
from tests.models.decoder_oracle import (
    assert_equals_the_oracle,
    chosen,
    random_params,
)

ROUTINGS = {
    "softmax": Routing(normalised=False),
    "softmax, normalised": Routing(),
    "softmax of the chosen": Routing(scores="softmax_of_chosen"),
    "sigmoid": Routing(scores="sigmoid", normalised=False, scale=2.0),
    "sigmoid with bias": Routing(scores="sigmoid", biased=True, scale=2.5),
    "softmax with bias": Routing(biased=True, normalised=False),
    "groups by their two best": Routing(
        scores="sigmoid", biased=True, groups=4, top_groups=2, scale=2.5
    ),
    "groups by their best": Routing(
        normalised=False, groups=4, top_groups=3, group_best=1, scale=16.0
    ),
}


@pytest.mark.parametrize("name", ROUTINGS)
def test_routing_equals_a_loop_over_tokens(name) -> None:
    ffn = ExpertFfn(num_experts=12, top_k=4, size=8, routing=ROUTINGS[name])
    random = np.random.default_rng(0)
    logits = random.normal(0, 1.5, (3, 5, 12)).astype(np.float32)
    # Biases as large as the scores, some negative: the choice and the weights differ.
    bias = random.normal(0, 0.5, 12).astype(np.float32)
    weight, expert = route(
        ffn, jnp.asarray(logits), bias if ffn.routing.biased else None
    )
    assert weight.dtype == jnp.float32 and expert.dtype == jnp.int32
    for place in np.ndindex(3, 5):
        expected = chosen(ffn, logits[place].astype(np.float64), bias)
        assert list(expert[place]) == [number for number, _ in expected]
        weights = [share for _, share in expected]
        np.testing.assert_allclose(weight[place], weights, rtol=1e-5)


def test_the_bias_moves_the_choice_but_not_the_weights() -> None:
    routing = Routing(scores="sigmoid", biased=True, normalised=False)
    ffn = ExpertFfn(num_experts=4, top_k=1, size=8, routing=routing)
    logits, bias = jnp.zeros((1, 1, 4)), jnp.array([0.0, 0.0, 9.0, 0.0])
    weight, expert = route(ffn, logits, bias)
    assert expert.tolist() == [[[2]]] and weight.tolist() == [[[0.5]]]


def decoder_of(*ffn: DenseFfn | ExpertFfn, **switches) -> Decoder:
    attention = GroupedAttention(
        num_heads=2, num_kv_heads=1, head_dim=8, rope=Rope(size=8, theta=100.0)
    )
    config = DecoderConfig(
        name="experts",
        vocab_size=19,
        hidden_size=12,
        layers=tuple(Layer(attention=attention, ffn=one) for one in ffn),
        max_position_embeddings=64,
        dtype="float32",
        **switches,
    )
    return Decoder(config=config)


def experts(**switches) -> ExpertFfn:
    return ExpertFfn(**{"num_experts": 6, "top_k": 3, "size": 10} | switches)


BIASED = Routing(scores="sigmoid", biased=True, groups=3, top_groups=2, scale=2.5)
ON_INPUT = Routing(scores="sigmoid", normalised=False, on_input=True)
LAYERS = {
    "first layer dense, shared expert": (
        DenseFfn(size=14),
        *[experts(shared_size=7, routing=BIASED)] * 2,
    ),
    "gated shared expert": (
        experts(shared_size=7, shared_gated=True, routing=Routing(normalised=False)),
    ),
    "top-1 on the input, every other layer": (
        DenseFfn(size=14),
        experts(top_k=1, routing=ON_INPUT),
    )
    * 2,
    "ungated": (
        DenseFfn(size=14, gated=False),
        experts(top_k=1, gated=False, shared_size=7),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_expert_layers_equal_a_loop_over_tokens(name) -> None:
    model = decoder_of(*LAYERS[name])
    params = random_params(model)
    # Both phases are alike behind attention: steps are taken once.
    steps = 3 if name == "first layer dense, shared expert" else 0
    assert_equals_the_oracle(model, params, prompt=5, steps=steps, cache_len=8)


def test_expert_weights_by_name_and_shape() -> None:
    ffn = experts(
        shared_size=7, shared_gated=True, routing=Routing(scores="sigmoid", biased=True)
    )
    layers = decoder_of(ffn).abstract_params()["layers"]
    shapes = {name: leaf.shape[1:] for name, leaf in layers.items()}
    attention = {"norm_attention", "query", "key", "value", "out", "norm_mlp"}
    assert {n: s for n, s in shapes.items() if n not in attention} == {
        "router": (12, 6),
        "router_bias": (6,),
        "expert_gate": (6, 12, 10),
        "expert_up": (6, 12, 10),
        "expert_down": (6, 10, 12),
        "shared_gate": (12, 7),
        "shared_up": (12, 7),
        "shared_down": (7, 12),
        "shared_router": (12,),
    }
    plain = decoder_of(experts(gated=False)).abstract_params()["layers"]
    assert {n for n in plain if n not in attention} == {
        "router",
        "expert_up",
        "expert_down",
    }


def test_a_step_calls_the_expert_op_once_per_layer_by_name() -> None:
    model = decoder_of(*LAYERS["first layer dense, shared expert"])
    args = model.args("decode", 2, input_len=4, cache_len=8)
    text = str(jax.make_jaxpr(model.decode)(*args))
    assert text.count("name=expert_ffn") == 1  # within the scan over two layers
