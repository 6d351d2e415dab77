"""The expert op on one device: outputs, and how it stands in a jaxpr."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from lts.models.capacity import expert_capacity
from lts.models.experts import arguments, expert_ffn
from tests.models.expert_oracle import (
    KINDS,
    Experts,
    distinct_experts,
    every_expert_on_every_token,
    random_experts,
    relative_error,
)

D, E, F = 8, 6, 12
OPERANDS = {"gated": 6, "ungated": 5, "scaled": 9}


def random_tokens(shape: tuple[int, ...], top_k: int) -> tuple[jax.Array, jax.Array]:
    """x `[*shape, d]` and weights `[*shape, k]`."""
    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(*shape, D)), jnp.float32)
    return x, jnp.asarray(random.random((*shape, top_k)), jnp.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_experts_give_what_every_expert_on_every_token_gives(kind: str) -> None:
    experts = random_experts(1, (E, D, F), kind)
    x, weight = random_tokens((3, 7), 2)
    shape = weight.shape
    beyond = np.random.default_rng(3).integers(-2, E + 2, shape)
    for expert in (
        distinct_experts(2, shape, E),
        jnp.full(shape, 4),  # 42 pairs of one expert: 3 rounds
        jnp.asarray(beyond, jnp.int32),  # some tokens have no expert
    ):
        found = expert_ffn(x, weight, expert, *experts)
        wanted = every_expert_on_every_token(x, weight, expert, experts)
        assert found.dtype == jnp.float32
        assert relative_error(found, wanted) < 1e-6


def test_one_expert_of_many_and_one_token_dim() -> None:
    experts = random_experts(1, (64, D, F), "ungated")
    x, weight = random_tokens((5,), 1)
    expert = distinct_experts(2, (5, 1), 64)
    found = expert_ffn(x, weight, expert, *experts)
    wanted = every_expert_on_every_token(x, weight, expert, experts)
    assert relative_error(found, wanted) < 1e-6


def test_a_round_has_room_for_even_routing_and_chance() -> None:
    # 14 rows an expert and 4 standard deviations; a quarter more; all tokens at most
    assert expert_capacity(42, 2, 6).tolist() == 29
    assert expert_capacity(8192, 2, 16).tolist() == 1280
    assert expert_capacity(np.array([1, 7]), 2, 6).tolist() == [1, 7]


def test_other_tokens_that_are_not_finite_do_no_harm() -> None:
    experts = random_experts(1, (E, D, F), "gated")
    x, weight = random_tokens((4,), 2)
    expert = distinct_experts(2, (4, 2), E)
    found = expert_ffn(x.at[1].set(jnp.nan), weight, expert, *experts)
    clean = expert_ffn(x, weight, expert, *experts)
    assert np.isnan(found[1]).all()
    others = np.array([0, 2, 3])
    np.testing.assert_array_equal(found[others], clean[others])


def equations(jaxpr: Any) -> Iterator[Any]:
    """Equations of a jaxpr and of those inside, but not inside an expert op."""
    for eqn in jaxpr.eqns:
        yield eqn
        if eqn.params.get("name") != "expert_ffn":
            for inner in jax.tree.leaves(
                list(eqn.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")
            ):
                if hasattr(inner, "eqns"):
                    yield from equations(inner)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_one_named_equation_also_inside_scan_and_remat(kind: str) -> None:
    stack = random_experts(1, (2, E, D, F), kind)
    x, weight = random_tokens((3, 4), 2)
    expert = distinct_experts(2, (3, 4, 2), E)

    def layer(x: jax.Array, experts: tuple) -> tuple[jax.Array, None]:
        return expert_ffn(x, weight, expert, *experts), None

    def layers(x: jax.Array, stack: tuple) -> jax.Array:
        return lax.scan(jax.checkpoint(layer), x, stack)[0]

    closed = jax.make_jaxpr(jax.jit(layers))(x, tuple(stack))
    (found,) = [
        eqn for eqn in equations(closed.jaxpr) if eqn.params.get("name") == "expert_ffn"
    ]
    assert found.primitive.name == "jit"
    shapes = [v.aval.shape for v in found.invars]
    assert len(shapes) == OPERANDS[kind]
    assert shapes[:3] == [(3, 4, D), (3, 4, 2), (3, 4, 2)]
    own = Experts(*jax.tree.map(lambda array: array[0], tuple(stack)))
    assert shapes[3:] == [leaf.shape for leaf in jax.tree.leaves(tuple(own))]


@pytest.mark.parametrize("kind", [*KINDS, "ungated and scaled"])
def test_arguments_are_put_together_from_operands(kind: str) -> None:
    experts = random_experts(1, (E, D, F), kind.split(" and ")[-1])
    if kind == "ungated and scaled":
        experts = experts._replace(gate=None)
    x, weight = random_tokens((3,), 2)
    expert = distinct_experts(2, (3, 2), E)
    whole = (x, weight, expert, *experts)
    operands = jax.tree.leaves(whole)
    assert len(operands) == OPERANDS.get(kind, 7)
    again = arguments(operands)
    assert jax.tree.structure(again) == jax.tree.structure(whole)
    assert all(a is b for a, b in zip(jax.tree.leaves(again), operands, strict=True))


def test_bad_operands_are_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match="^expert_ffn has .* operands, got 8: .*$"):
        arguments([jnp.ones(1)] * 8)
    experts = random_experts(1, (E, D, F), "gated")
    mixed = experts._replace(up=random_experts(1, (E, D, F), "scaled").up)
    x, weight = random_tokens((3,), 2)
    with pytest.raises(ValueError, match="plain and block-scaled weights together"):
        expert_ffn(x, weight, distinct_experts(2, (3, 2), E), *mixed)
