"""What no result needs is not priced."""

import jax
import jax.numpy as jnp

from lts.tracing import trace_program

X, W = (
    jax.ShapeDtypeStruct((8, 16), "float32"),
    jax.ShapeDtypeStruct((16, 16), "float32"),
)


def flops(function, *args: jax.ShapeDtypeStruct) -> list[float]:
    return [op.flops for op in trace_program(function, args).graph.ops]


def test_a_discarded_product_costs_nothing() -> None:
    def step(x: jax.Array, w: jax.Array) -> jax.Array:
        _ = jnp.tanh(x @ w) @ w
        return x @ w

    assert flops(step, X, W) == [2 * 8 * 16 * 16]


def test_a_gradient_does_not_sum_the_loss() -> None:
    graph = trace_program(jax.grad(lambda w, x: (x * w).sum()), (X, X)).graph
    assert [r for node in graph.nodes for r in node.reductions] == []
    graph = trace_program(jax.value_and_grad(lambda w, x: (x * w).sum()), (X, X)).graph
    assert len([r for node in graph.nodes for r in node.reductions]) == 1


def test_a_carry_is_kept_if_what_the_loop_returns_needs_it() -> None:
    def chain(x: jax.Array, w: jax.Array) -> jax.Array:
        def body(carry: tuple, _: None) -> tuple:
            a, b, unused = carry
            return (b @ w, a @ w, jnp.tanh(unused @ w)), (a @ w).sum()

        (a, _, _), _ = jax.lax.scan(body, (x, x, x), length=3)
        return a

    assert flops(chain, X, W) == [2 * 8 * 16 * 16] * 2


def test_a_condition_and_an_effect_are_needed() -> None:
    def search(x: jax.Array, w: jax.Array) -> jax.Array:
        def goes_on(carry: tuple) -> jax.Array:
            return (carry[1] @ w).sum() < 3

        return jax.lax.while_loop(goes_on, lambda c: (c[0] + 1, c[1] * 2), (0, x))[0]

    assert flops(search, X, W) == [2 * 8 * 16 * 16]

    def shown(x: jax.Array, w: jax.Array) -> jax.Array:
        jax.debug.callback(lambda y: None, x @ w)
        return x

    assert 2 * 8 * 16 * 16 in flops(shown, X, W)
