"""Kinds of arguments of plain functions: weights, state that comes back, inputs."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

import lts
from lts.graph import NodeKind
from lts.plain import plain_function
from lts.prepare import prepare_plain
from lts.tracing import ClosedOverWarning

CLUSTER = lts.Cluster.parse("h100:1x8")
ROWS, WIDTH, INPUT, OUTPUT = 64, 128, 32, 16


def cell(params, h, x):
    """A recurrent cell: no elementwise work ties the new state to the old one."""
    h = jnp.tanh(h @ params["w"] + x @ params["u"])
    return h @ params["v"], h


def cell_args(make: Callable[..., Any] = jax.ShapeDtypeStruct):
    params = {
        "w": make((WIDTH, WIDTH), jnp.float32),
        "u": make((INPUT, WIDTH), jnp.float32),
        "v": make((WIDTH, OUTPUT), jnp.float32),
    }
    return params, make((ROWS, WIDTH), jnp.float32), make((ROWS, INPUT), jnp.float32)


def numbers():
    keys = iter(jax.random.split(jax.random.key(0), 8))
    return cell_args(lambda s, d: jax.random.normal(next(keys), s, d) / 8)


def decode(params, cache, x):
    cache = jax.lax.dynamic_update_slice(cache, x[:, None] @ params, (0, 5, 0))
    return jnp.einsum("bd,btd->bt", x, cache), cache


def decode_args():
    array = jax.ShapeDtypeStruct
    shapes = (32, 32), (8, 16, 32), (8, 32)
    return tuple(array(shape, jnp.float32) for shape in shapes)


def search_cell(**options) -> lts.Plan:
    kinds = {"weights": "params", "state": "h", **options}
    options = {"cluster": CLUSTER, "method": "random", "budget": 4, **kinds}
    return lts.search(cell, cell_args(), **options)


def test_names_give_arguments_their_kinds():
    plain = plain_function(decode, decode_args(), {}, (), "params", "cache")
    graph = prepare_plain(plain, CLUSTER).graphs["step"]
    kinds = {name: graph.node(name).kind for name in ("params", "cache", "x")}
    assert kinds == {
        "params": NodeKind.PARAMETER,
        "cache": NodeKind.CACHE,
        "x": NodeKind.INPUT,
    }


def layouts(state) -> list[tuple]:
    """What is sharded of the state as it comes and as it leaves, of any candidates."""
    plain = plain_function(cell, cell_args(), {}, (), "params", state)
    prepared = prepare_plain(plain, CLUSTER)
    traced, rng, found = prepared.traced["step"], np.random.default_rng(0), []
    place = traced.out_paths.index("out/1")
    node = traced.places.node_of(traced.places.draft.program.results[place])
    assert node is not None
    name = prepared.graphs["step"].nodes[node].name
    for _ in range(64):
        picks = rng.integers(0, prepared.space.cardinalities)
        states = prepared.space.decode(picks).states["step"]
        found.append((states["h"], states[name]))
    return found


def test_a_state_leaves_as_it_came_in_every_candidate():
    named = layouts("h")
    assert all(came == left for came, left in named)
    assert len(set(named)) > 4
    assert any(came != left for came, left in layouts(()))  # if it is not named


def test_a_state_goes_around_and_is_donated():
    sharded = search_cell()
    assert sharded.out_specs[1] == sharded.in_specs[1] != PartitionSpec()
    step, args = sharded.apply(cell), numbers()
    expected, after = cell(*args)
    expected, _ = cell(args[0], after, args[2])
    params, h, x = sharded.device_put(args)
    _, again = step(params, h, x)
    found, _ = step(params, again, x)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert h.is_deleted() and again.is_deleted() and not x.is_deleted()
    assert sharded.verify(cell, cell_args()).ok


def test_a_state_counts_once_in_memory():
    mesh = jax.make_mesh((8,), ("gpu",), (AxisType.Auto,))
    options = {"mesh": mesh, "cluster": CLUSTER, "specs": {}}
    plain = lts.price(cell, cell_args(), **options)
    named = lts.price(cell, cell_args(), **options, weights="params", state="h")
    state_bytes = 4 * ROWS * WIDTH
    weight_bytes = 4 * WIDTH * (WIDTH + INPUT + OUTPUT)
    inputs_and_results = 4 * ROWS * (INPUT + OUTPUT)
    assert named.metrics.cache_bytes == state_bytes
    assert named.metrics.weight_bytes == weight_bytes + inputs_and_results
    assert plain.metrics.cache_bytes == 0
    held = plain.metrics.weight_bytes - named.metrics.weight_bytes
    assert held == 2 * state_bytes  # as an input, and as a result beside it
    assert f"state {state_bytes / 1e3:.1f} kB" in repr(named)


def test_a_cache_that_is_updated_in_place_is_found_among_the_results():
    plan = lts.search(
        decode,
        decode_args(),
        cluster=CLUSTER,
        weights=["params"],
        state=("cache",),
        method="random",
        budget=4,
    )
    assert plan.main_phase.donated == ("cache",)
    assert plan.main_phase.weights == ("params",)
    assert plan.out_specs[1] == plan.in_specs[1]


def test_a_state_that_does_not_come_back_is_noted_and_kept():
    plan = search_cell(state=("h", "x"))
    assert plan.main_phase.donated == ("h",)
    (note,) = [note for note in plan.notes if "'x'" in note]
    assert note.startswith("state 'x' does not come back: no result has its shapes")


def twice(h, w):
    return h @ w, jnp.tanh(h) @ w


def search_twice(state) -> lts.Plan:
    args = [jax.ShapeDtypeStruct((16, 16), jnp.float32)] * 2
    return lts.search(
        twice, args, cluster=CLUSTER, state=state, method="random", budget=4
    )


def test_a_state_that_may_be_two_results_is_asked_for():
    with pytest.raises(ValueError, match=r"may come back as out/0 or out/1; say .*'h'"):
        search_twice("h")
    plan = search_twice({"h": "out/1"})
    assert plan.out_specs[1] == plan.in_specs[0]
    with pytest.raises(ValueError, match="is not the result 'out/7'; .*out/0, out/1"):
        search_twice({"h": "out/7"})


@pytest.mark.parametrize(
    "options, message",
    [
        ({"weights": "parms"}, "weights='parms' is no argument .* did you mean 'param"),
        ({"state": "q"}, "state='q' is no argument .*; it has params, h, x"),
        ({"weights": ("params", "h")}, "'h' is both weights and state; choose one"),
    ],
)
def test_names_that_are_no_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        search_cell(**options)


def test_a_served_model_says_itself_what_its_arguments_are():
    workload = lts.Workload(16, 8)
    with pytest.raises(ValueError, match="state= is for functions; .* drop state="):
        lts.search("llama-3.1-8b", cluster=CLUSTER, workload=workload, state="cache")


def grow(x, w):
    def body(carry):
        return jnp.tanh(carry @ w)

    return jax.lax.while_loop(lambda carry: carry.sum() < 1e6, body, x)


def test_trips_of_a_loop_multiply_its_time():
    args = [jax.ShapeDtypeStruct((256, 256), jnp.float32)] * 2
    mesh = jax.make_mesh((8,), ("gpu",), (AxisType.Auto,))
    options = {"mesh": mesh, "cluster": CLUSTER, "specs": {"x": PartitionSpec("gpu")}}

    def product_s(plan: lts.Plan) -> float:
        (time_s,) = (p.time_s for p in plan.metrics.breakdown if p.kind == "op")
        return time_s

    once = lts.price(grow, args, **options)
    (note,) = once.notes
    source = note.split("trips={'")[1].split("'")[0]
    assert source.startswith("test_plain.py:")
    for trips in (128, {source: 128}):
        plan = lts.price(grow, args, **options, trips=trips)
        assert product_s(plan) == pytest.approx(128 * product_s(once), rel=1e-6)
        assert plan.notes == ()


def test_closed_over_arrays_are_warned_of_once_where_search_is_called():
    table = jnp.ones((128, 64))
    calls = [(jax.ShapeDtypeStruct((n, 128), jnp.float32),) for n in (8, 16)]
    options = {"cluster": CLUSTER, "method": "random", "budget": 4}
    with pytest.warns(ClosedOverWarning, match=r"32,768 bytes .*\[128, 64\]") as found:
        plan = lts.search(lambda x: x @ table, shapes=calls, **options)
    assert [warning.filename for warning in found] == [__file__]
    assert list(plan.main_phase.arguments) == ["x"]
    assert plan.metrics.weight_bytes > 0


def test_several_arguments_may_hold_parameters():
    array, options = jax.ShapeDtypeStruct, {"method": "random", "budget": 4}
    shapes = (16, 64), (64, 128), (128, 64)

    def mlp(x, up, down):
        return jnp.tanh(x @ up) @ down

    args = [array(shape, jnp.float32) for shape in shapes]
    plan = lts.search(mlp, args, cluster=CLUSTER, weights=("up", "down"), **options)
    keys = jax.random.split(jax.random.key(0), 3)
    real = [
        jax.random.normal(key, shape) / 8
        for key, shape in zip(keys, shapes, strict=True)
    ]
    found = plan.apply(mlp)(*plan.device_put(real))
    np.testing.assert_allclose(found, mlp(*real), rtol=1e-4, atol=1e-5)
