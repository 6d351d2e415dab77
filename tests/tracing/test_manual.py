"""`shard_map` in a program: its specs hold in every plan (case 23)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import lts

MESH = jax.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
RNG = np.random.default_rng(0)
X, V, W = (
    RNG.normal(size=shape).astype("float32") / 8
    for shape in ((8, 64), (64, 64), (64, 32))
)


def summed(x: jax.Array, w: jax.Array) -> jax.Array:
    return lax.psum(x @ w, "b")


product = jax.shard_map(
    summed, mesh=MESH, in_specs=(P("a", "b"), P("b", None)), out_specs=P("a", None)
)


@jax.custom_vjp
def scaled(x: jax.Array) -> jax.Array:
    return 2 * x


scaled.defvjp(lambda x: (2 * x, None), lambda _, g: (2 * g,))


def model(x: jax.Array, v: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(product(jax.checkpoint(scaled)(x) @ v, w))


@pytest.fixture(scope="module")
def plan() -> lts.Plan:
    return lts.search(model, (X, V, W), mesh=MESH, method="random", budget=200)


def test_its_arithmetic_is_that_of_all_devices() -> None:
    graph = lts.trace(model, X, V, W)
    assert graph.flops == 2 * 8 * 64 * 64 + 2 * 8 * 64 * 32


def test_its_axes_have_one_state_in_every_plan() -> None:
    graph = lts.trace(model, X, V, W)
    (op,) = (n for n in graph.ops if n.primitive == "shard_map")
    assert [(name, size) for name, size, _ in op.fixed] == [("a", 2), ("b", 4)]
    a, b = (op.factors[state - 1] for _, _, state in op.fixed)
    assert (a.size, b.size) == (8, 64)
    assert not a.reduction
    assert not b.reduction  # the body has summed already
    (found,) = op.exchanges
    assert (found.kind, found.axes) == ("all_reduce", ("b",))
    assert found.operand_bytes == found.result_bytes == 4 * 32 * 4


def test_a_plan_keeps_its_layout_and_runs(plan: lts.Plan) -> None:
    out = plan.apply(model)(*plan.device_put((X, V, W)))
    np.testing.assert_allclose(out, model(X, V, W), rtol=2e-5, atol=2e-5)
    (name,) = (n for n in plan.assignment.states["step"] if n.endswith("shard_map"))
    op = lts.trace(model, X, V, W).node(name)
    a, b = (op.factors[state - 1].name for _, _, state in op.fixed)
    assert plan.assignment.states["step"][name] == (a, b)


def test_its_collectives_are_predicted(plan: lts.Plan) -> None:
    assert plan.verify(model, (X, V, W)).ok


def test_a_cluster_or_another_mesh_is_refused() -> None:
    message = (
        r"shard_map over the mesh a=2, b=4; a plan must be for that mesh: pass mesh="
    )
    with pytest.raises(ValueError, match=message):
        lts.search(model, (X, V, W), cluster=lts.Cluster.parse("h100:1x8"))
    other = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    with pytest.raises(ValueError, match=message):
        lts.search(model, (X, V, W), mesh=other)


def test_a_loop_inside_counts_its_trips() -> None:
    def body(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 3, lambda _, x: jnp.tanh(lax.psum(x @ w, "b")), x)

    looped = jax.shard_map(
        body,
        mesh=MESH,
        in_specs=(P("a"), P()),
        out_specs=P("a"),
        check_vma=False,
    )
    graph = lts.trace(looped, np.ones((8, 64), "float32"), V)
    (op,) = graph.ops
    assert op.flops == 8 * 3 * 2 * 4 * 64 * 64
    assert [found.trips for found in op.exchanges] == [3]
