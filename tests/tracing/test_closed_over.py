"""Arrays that a function closes over get layouts, as arguments do (case A3)."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lts
from lts.tracing import ClosedOverWarning, trace_program

RNG = np.random.default_rng(0)
UP = RNG.normal(size=(64, 256)).astype("float32") / 8
DOWN = jnp.asarray(RNG.normal(size=(256, 64)).astype("float32") / 16)
TABLE = np.arange(16)  # small: no argument
X = RNG.normal(size=(16, 64)).astype("float32")
CLUSTER = lts.Cluster.parse("h100:1x8")


@jax.jit
def up(x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ UP)


def model(x: jax.Array) -> jax.Array:
    return jax.checkpoint(up)(x) @ DOWN + up(x)[:, TABLE].sum()


@pytest.fixture(scope="module")
def plan() -> lts.Plan:
    with pytest.warns(
        ClosedOverWarning, match=r"closes over 2 arrays of 131,072 bytes"
    ):
        return lts.search(model, (X,), cluster=CLUSTER, method="annealing", budget=400)


def test_large_ones_become_arguments_once_each() -> None:
    traced = trace_program(model, (X,))
    assert list(traced.closed_over) == ["closed/0", "closed/1"]
    assert sorted(a.shape for a in traced.closed_over.values()) == [
        (64, 256),
        (256, 64),
    ]
    held = {v.name: v for v in traced.graph.values if v.leaves}
    assert sorted(f.size for f in held["closed/0"].factors) == [64, 256]
    assert traced.in_paths == ("0",)


def test_small_ones_warn_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = lts.trace(
            lambda x: x[:, TABLE], jax.ShapeDtypeStruct((8, 64), "float32")
        )
    assert {leaf.path for v in graph.values for leaf in v.leaves} == {"0", "out"}


def test_specs_of_a_plan_are_those_of_the_real_arguments(plan: lts.Plan) -> None:
    assert len(plan.in_specs) == 1


def test_a_plan_runs_with_its_closed_over_arrays_on_the_mesh(plan: lts.Plan) -> None:
    step = plan.apply(model)
    out = step(*plan.device_put((X,)))
    np.testing.assert_allclose(out, model(X), rtol=2e-5, atol=2e-5)
    again = step(*plan.device_put((2 * X,)))
    np.testing.assert_allclose(again, model(2 * X), rtol=2e-5, atol=2e-5)


def test_an_applied_step_is_traced_inside_another_jit(plan: lts.Plan) -> None:
    step = plan.apply(model)
    twice = jax.jit(lambda x: step(step(x)[:, :64]))
    np.testing.assert_allclose(twice(X), model(model(X)), rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(step(X), model(X), rtol=2e-5, atol=2e-5)


def test_their_bytes_are_in_the_compiled_arguments(plan: lts.Plan) -> None:
    (report,) = plan.verify(model, (X,)).reports
    assert report.argument_bytes == report.predicted_argument_bytes
    assert report.argument_bytes <= X.nbytes + UP.nbytes + DOWN.nbytes


def test_a_closed_over_weight_is_sharded_like_an_argument() -> None:

    def passed(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        return jnp.tanh(x @ up) @ down

    with pytest.warns(ClosedOverWarning):
        closed = lts.trace(lambda x: passed(x, UP, DOWN), X)
    plain = lts.trace(passed, X, UP, DOWN)
    assert [len(n.factors) for n in closed.nodes] == [
        len(n.factors) for n in plain.nodes
    ]
    assert closed.flops == plain.flops
    assert closed.compulsory_bytes == plain.compulsory_bytes
