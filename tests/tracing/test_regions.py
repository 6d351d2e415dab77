"""Calls are inlined; loops and branches are regions with trips."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen
from jax import lax

import lts
from lts.graph import NodeKind
from lts.mesh import enumerate_degrees
from lts.space import build_space
from lts.tracing import check_trips, link_phases, trace_program


def spec(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


WEIGHTS = {
    "params": {"kernel": np.zeros((4, 4), np.float32), "bias": np.zeros(4, np.float32)}
}


def layer(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)


@jax.custom_jvp
def with_jvp(x: jax.Array, w: jax.Array) -> jax.Array:
    return layer(x, w)


@with_jvp.defjvp
def _with_jvp_rule(primals: Any, tangents: Any) -> Any:
    return jax.jvp(layer, primals, tangents)


@jax.custom_vjp
def with_vjp(x: jax.Array, w: jax.Array) -> jax.Array:
    return layer(x, w)


with_vjp.defvjp(lambda x, w: (layer(x, w), None), lambda _, g: (g, g))


@pytest.mark.parametrize(
    "wrapped",
    [
        jax.jit(layer),
        jax.checkpoint(layer),  # pyright: ignore[reportPrivateImportUsage]
        with_jvp,
        with_vjp,
        jax.jit(jax.jit(jax.checkpoint(layer))),
    ],
    ids=["jit", "remat", "custom_jvp", "custom_vjp", "nested"],
)
def test_calls_are_traced_as_if_they_were_not_there(wrapped: Callable) -> None:
    args = spec(8, 16), spec(16, 32)
    plain, called = lts.trace(layer, *args), lts.trace(wrapped, *args)
    assert [n.kind for n in called.nodes] == [n.kind for n in plain.nodes]
    assert [
        [(f.name, f.size, f.reduction) for f in n.factors] for n in called.nodes
    ] == [[(f.name, f.size, f.reduction) for f in n.factors] for n in plain.nodes]
    assert called.flops == plain.flops == 2 * 8 * 16 * 32
    assert len(called.edges) == len(plain.edges)


def scanned(x: jax.Array, ws: jax.Array) -> tuple[jax.Array, jax.Array]:
    def body(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = layer(x, w)
        return x, x * 2

    return lax.scan(body, x, ws)


def test_a_scan_counts_its_body_once_per_trip() -> None:
    graph = lts.trace(scanned, spec(8, 16), spec(5, 16, 16))
    (op,) = graph.ops
    assert op.trips == 5
    assert op.flops == 2 * 8 * 16 * 16
    assert graph.flops == 5 * op.flops
    assert [edge.trips for edge in graph.edges] == [5] * len(graph.edges)


def test_the_carry_of_a_scan_is_one_value_from_start_to_end() -> None:
    graph = lts.trace(scanned, spec(8, 16), spec(5, 16, 16))
    carry = graph.node("0")
    assert {"0", "out/0"} <= {leaf.path for leaf in carry.leaves}
    (op,) = graph.ops
    ends = [(e.source, e.target) for e in graph.edges]
    assert (carry.index, op.index) in ends
    assert (op.index, carry.index) in ends


def test_slices_of_scanned_weights_share_the_stack_and_keep_it_whole_along_it() -> None:
    graph = lts.trace(scanned, spec(8, 16), spec(5, 16, 16))
    stack = graph.node("1")
    assert [f.size for f in stack.factors] == [16, 16]
    (leaf,) = stack.leaves
    assert leaf.factors == (None, 0, 1)
    assert leaf.array.nbytes == 5 * 16 * 16 * 4


def test_outputs_of_a_scan_follow_what_the_body_gives() -> None:
    graph = lts.trace(scanned, spec(8, 16), spec(5, 16, 16))
    holder = next(n for n in graph.values if any(x.path == "out/1" for x in n.leaves))
    leaf = next(x for x in holder.leaves if x.path == "out/1")
    kept = [None if f is None else holder.factors[f].size for f in leaf.factors]
    assert kept == [None, 8, 16]


def test_scanned_and_unrolled_layers_cost_the_same_arithmetic() -> None:
    def unrolled(x: jax.Array, ws: list[jax.Array]) -> jax.Array:
        return functools.reduce(layer, ws, x)

    loop = lts.trace(scanned, spec(8, 16), spec(5, 16, 16))
    flat = lts.trace(unrolled, spec(8, 16), [spec(16, 16)] * 5)
    assert flat.flops == loop.flops
    assert [op.trips for op in flat.ops] == [op.trips for op in loop.ops] == [5]


def test_nested_scans_multiply_their_trips() -> None:
    def nested(x: jax.Array, ws: jax.Array) -> jax.Array:
        def outer(x: jax.Array, ws: jax.Array) -> tuple[jax.Array, None]:
            return lax.scan(lambda x, w: (layer(x, w), None), x, ws)

        return lax.scan(outer, x, ws)[0]

    graph = lts.trace(nested, spec(8, 16), spec(3, 5, 16, 16))
    assert [op.trips for op in graph.ops] == [15]
    assert graph.flops == 15 * 2 * 8 * 16 * 16


def test_a_kernel_inside_a_scan_is_counted_on_every_trip() -> None:
    def decayed(x: jax.Array) -> jax.Array:
        rate = jnp.exp(x)  # outside the loop, read inside it
        return lax.fori_loop(0, 7, lambda _, c: c * rate, x)

    graph = lts.trace(decayed, spec(8, 16))
    kernels = [kernel for node in graph.values for kernel in node.kernels]
    assert sorted(kernel.trips for kernel in kernels) == [1, 7]
    inner = next(kernel for kernel in kernels if kernel.trips == 7)
    assert len(inner.arrays) == 3  # carry in, rate, carry out


def test_a_static_fori_loop_knows_its_trips() -> None:
    def loop(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 6, lambda _, x: layer(x, w), x)

    graph = lts.trace(loop, spec(8, 16), spec(16, 16))
    assert [op.trips for op in graph.ops] == [6]
    assert graph.notes == ()


def counted(x: jax.Array, w: jax.Array, n: jax.Array) -> jax.Array:
    return lax.fori_loop(0, n, lambda _, x: layer(x, w), x)


COUNTED = spec(8, 16), spec(16, 16), spec(dtype="int32")
LINE = counted.__code__.co_firstlineno + 1


def test_a_loop_of_unknown_length_is_counted_once_and_noted() -> None:
    graph = lts.trace(counted, *COUNTED)
    assert [op.trips for op in graph.ops] == [1]
    place = f"test_regions.py:{LINE}"
    assert graph.notes == (
        f"while at {place}: its length is unknown, counted as one trip; pass "
        f"trips={{'{place}': n}}",
    )
    assert graph.node("0").leaves[-1].path == "out"


@pytest.mark.parametrize("trips", [128, {f"test_regions.py:{LINE}": 128}])
def test_the_caller_says_how_often_a_loop_runs(trips: Any) -> None:
    graph = trace_program(counted, COUNTED, trips=trips).graph
    assert [op.trips for op in graph.ops] == [128]
    assert graph.notes == ()


def test_a_loop_is_named_by_its_scope_too() -> None:
    def generate(*args: jax.Array) -> jax.Array:
        with jax.named_scope("generate"):
            return counted(*args)

    graph = trace_program(generate, COUNTED, trips={"generate": 5}).graph
    assert [op.trips for op in graph.ops] == [5]


def test_trips_of_a_loop_that_there_is_not_are_refused() -> None:
    with pytest.raises(ValueError, match=f"there are: test_regions.py:{LINE}"):
        given = {"other.py:3": 5}
        check_trips(given, [trace_program(counted, COUNTED, trips=given)])


@pytest.mark.parametrize("trips", [0, -1, 2.5, True, {"loop": 0}])
def test_trips_are_positive_integers(trips: Any) -> None:
    with pytest.raises(ValueError, match="trips must be positive integers"):
        trace_program(counted, COUNTED, trips=trips)


@pytest.mark.parametrize(
    ("start", "bound", "step", "closed", "trips"),
    [(0, 10, 1, False, 10), (1, 10, 2, False, 5), (0, 9, 3, True, 4), (7, 7, 1, 0, 1)],
)
def test_a_loop_that_counts_to_a_known_bound_shows_its_trips(
    start: int, bound: int, step: int, closed: bool, trips: int
) -> None:
    def loop(x: jax.Array, w: jax.Array) -> jax.Array:
        def goes_on(carry: Any) -> Any:
            return carry[0] <= bound if closed else carry[0] < bound

        body = lambda c: (c[0] + step, layer(c[1], w))  # noqa: E731
        return lax.while_loop(goes_on, body, (start, x))[1]

    graph = lts.trace(loop, spec(8, 16), spec(16, 16))
    assert [op.trips for op in graph.ops] == [trips]
    assert bool(graph.notes) == (start >= bound)


def test_branches_are_all_kept_and_share_their_results_layout() -> None:
    def choose(which: jax.Array, x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.cond(which, lambda x: x @ w, lambda x: x, x)

    graph = lts.trace(choose, spec(dtype="bool"), spec(8, 16), spec(16, 16))
    (op,) = graph.ops
    assert op.flops == 2 * 8 * 16 * 16
    stream = graph.node("1")
    assert [leaf.path for leaf in stream.leaves] == ["1", "out"]
    assert {e.target for e in graph.edges if e.source == op.index} == {stream.index}


def test_the_costlier_branch_is_priced_and_the_others_are_kept() -> None:
    def choose(which: jax.Array, x: jax.Array, w: jax.Array) -> jax.Array:
        branches = [lambda x: x @ w, lambda x: layer(layer(x, w), w), lambda x: x]
        return lax.switch(which, branches, x)

    graph = lts.trace(choose, spec(dtype="int32"), spec(8, 16), spec(16, 16))
    assert [op.trips for op in graph.ops] == [0, 1, 1]
    assert graph.flops == 2 * 2 * 8 * 16 * 16
    (note,) = graph.notes
    assert note.endswith("branch 1 of 3, the costlier, is priced; the others run free")


def test_a_branch_that_loops_is_the_costlier_one() -> None:
    def choose(which: jax.Array, x: jax.Array, w: jax.Array) -> jax.Array:
        long = lambda x: lax.fori_loop(0, 9, lambda _, x: layer(x, w), x)  # noqa: E731
        return lax.cond(which, long, lambda x: layer(layer(x, w), w), x)

    graph = lts.trace(choose, spec(dtype="bool"), spec(8, 16), spec(16, 16))
    assert sorted(op.trips for op in graph.ops) == [0, 0, 9]
    assert graph.flops == 9 * 2 * 8 * 16 * 16


def test_what_is_not_priced_is_not_searched_but_inherits() -> None:
    def choose(which: jax.Array, x: jax.Array, w: jax.Array) -> jax.Array:
        y = lax.cond(which, lambda x: jnp.tanh(x @ w) @ w, lambda x: x @ w @ w @ w, x)
        return y @ w

    args = spec(dtype="bool"), spec(64, 64), spec(64, 64)
    graph = link_phases({"step": trace_program(choose, args).graph})
    space = build_space(graph, enumerate_degrees(lts.Cluster.parse("h100:1x8")))
    free = {op.name for op in graph["step"].ops if not op.trips}
    owners = {
        (gene - space.first_override) // space.num_axes for gene, _ in space.pinned
    }
    assert len(free) == 2
    assert free < {space.variables[i].name.removeprefix("step/") for i in owners}
    assert {value for _, value in space.pinned} == {0}


def test_a_transposed_carry_costs_an_edge_or_is_whole() -> None:
    def flip(x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 4, lambda _, x: x.T, x)

    graph = lts.trace(flip, spec(16, 16))
    assert all(not node.factors for node in graph.values)


def test_vmap_adds_a_batch_factor() -> None:
    graph = lts.trace(jax.vmap(layer, in_axes=(0, None)), spec(4, 8, 16), spec(16, 32))
    (op,) = graph.ops
    assert sorted(f.size for f in op.factors) == [4, 8, 16, 32]
    assert graph.flops == 4 * 2 * 8 * 16 * 32


def test_gradients_have_transposed_products() -> None:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum((x @ w) ** 2)

    graph = lts.trace(jax.grad(loss), spec(16, 32), spec(8, 16))
    forward, backward = graph.ops
    assert forward.flops == backward.flops == 2 * 8 * 16 * 32
    assert {f.size: f.reduction for f in backward.factors} == {
        8: True,
        16: False,
        32: False,
    }


def test_an_associative_scan_is_plain_array_work() -> None:
    graph = lts.trace(lambda x: lax.associative_scan(jnp.add, x), spec(8, 16))
    assert graph.ops == ()
    assert [[f.size for f in node.factors] for node in graph.values] == [[16]]


def test_every_argument_of_a_region_is_a_value_of_the_right_kind() -> None:
    graph = lts.trace(scanned, spec(8, 16), spec(5, 16, 16))
    kinds = {node.name: node.kind for node in graph.values}
    assert kinds["0"] is kinds["1"] is NodeKind.INPUT


def test_a_closed_over_array_in_a_loop_is_noted_as_replicated() -> None:
    table = jnp.ones((1024, 512))
    step = jax.jit(lambda x: jnp.tanh(x @ table) @ table.T)
    graph = lts.trace(
        lambda x: lax.fori_loop(0, 3, lambda _, x: step(x), x), spec(8, 1024)
    )
    assert graph.flops == 3 * 2 * 2 * 8 * 1024 * 512
    assert not graph.notes or "closed-over arrays" in graph.notes[0]


def test_a_line_of_a_library_is_named_by_the_line_that_calls_it() -> None:
    def model(x: jax.Array) -> jax.Array:
        return linen.Dense(4).apply(WEIGHTS, x)  # the user's line

    graph = lts.trace(model, spec(8, 4))
    line = model.__code__.co_firstlineno + 1
    assert {op.source for op in graph.ops} == {f"test_regions.py:{line}"}
