"""What lies in memory, and when: closed forms of small programs."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lts.cost.memory import lying
from lts.graph import OpGraph
from lts.models import load
from lts.problem import zoo_problem
from lts.tracing import trace_program
from lts.workload import Workload

ROWS, WIDTH, WIDE = 64, 32, 256
NARROW_BYTES, WIDE_BYTES = ROWS * WIDTH * 4, ROWS * WIDE * 4


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "float32")


def graph_of(function, *args) -> OpGraph:
    return trace_program(function, args).graph


def peak(graph: OpGraph, *, engine: bool = False) -> float:
    """Bytes on one device that shards nothing."""
    found = lying(graph, 1, engine=engine)
    held = found.bytes[:, : len(found.shares)].sum((1, 2))
    return float(held.max(initial=0.0))


X, UP, DOWN = f32(ROWS, WIDTH), f32(WIDTH, WIDE), f32(WIDE, WIDTH)


def test_a_kernel_writes_over_what_nothing_reads_later() -> None:
    graph = graph_of(lambda x, up, down: jnp.tanh(x @ up) @ down, X, UP, DOWN)
    assert peak(graph) == WIDE_BYTES
    assert peak(graph, engine=True) == WIDE_BYTES + NARROW_BYTES  # the result beside


def test_what_is_read_again_lies_until_then() -> None:
    def gated(x: jax.Array, gate: jax.Array, up: jax.Array, down: jax.Array):
        return (jax.nn.silu(x @ gate) * (x @ up)) @ down

    # both products, of which one becomes the gated one
    assert peak(graph_of(gated, X, UP, UP, DOWN)) == 2 * WIDE_BYTES

    def residual(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        y = jnp.sin(x)
        return y + jnp.tanh(y @ up) @ down

    # of the second product: what it reads and writes, and what is added to it
    assert peak(graph_of(residual, X, UP, DOWN)) == 2 * NARROW_BYTES + WIDE_BYTES


def test_elementwise_work_between_two_ops_lies_nowhere() -> None:
    def function(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        y = x @ up
        for _ in range(5):
            y = jnp.sin(y) + jnp.cos(y).mean(-1, keepdims=True)
        return y @ down

    assert peak(graph_of(function, X, UP, DOWN)) == WIDE_BYTES


def test_types_count() -> None:
    def function(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        y = (x @ up).astype("bfloat16")
        return y @ down.astype("bfloat16")

    assert peak(graph_of(function, X, UP, DOWN)) == WIDE_BYTES * 1.5


def test_the_carry_of_a_loop_is_one_array_and_a_slice_is_copied() -> None:
    layers = 5

    def function(x: jax.Array, stack: jax.Array) -> jax.Array:
        def body(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
            return jnp.tanh(x @ w), None

        return lax.scan(body, jnp.sin(x), stack)[0].sum()

    graph = graph_of(function, X, f32(layers, WIDTH, WIDTH))
    # the product: a carry before and after it, and a layer's weight
    assert peak(graph) == 2 * NARROW_BYTES + WIDTH * WIDTH * 4
    assert peak(graph, engine=True) == 2 * NARROW_BYTES


def test_what_a_loop_reads_of_outside_lies_until_its_end() -> None:
    def function(x: jax.Array, up: jax.Array, w: jax.Array) -> jax.Array:
        outside = x @ up  # read first in every trip

        def body(y: jax.Array, _: None) -> tuple[jax.Array, None]:
            y = y + outside
            return jnp.tanh(y @ w), None

        return lax.scan(body, jnp.zeros((ROWS, WIDE)), None, 3)[0].sum()

    graph = graph_of(function, X, UP, f32(WIDE, WIDE))
    assert peak(graph) == 3 * WIDE_BYTES


def test_an_update_of_an_argument_takes_no_array() -> None:
    def function(cache: jax.Array, x: jax.Array, w: jax.Array, at: jax.Array):
        new = x @ w
        return lax.dynamic_update_slice(cache, new, (at, 0))

    graph = graph_of(
        function,
        f32(4096, WIDTH),
        X,
        f32(WIDTH, WIDTH),
        jax.ShapeDtypeStruct((), "int32"),
    )
    assert peak(graph) == NARROW_BYTES


def test_a_branch_that_is_not_priced_holds_nothing() -> None:
    def function(p: jax.Array, x: jax.Array, up: jax.Array, down: jax.Array):
        return lax.cond(p, lambda: jnp.tanh(x @ up) @ down, lambda: x * 2.0)

    graph = graph_of(function, jax.ShapeDtypeStruct((), "bool"), X, UP, DOWN)
    assert peak(graph) == WIDE_BYTES


def prefill(batch: int, length: int) -> OpGraph:
    workload = Workload(input_len=length, output_len=8, concurrency=batch)
    problem = zoo_problem(load("llama-3.1-8b"), workload)
    args = problem.args("prefill", batch)
    return trace_program(problem.function("prefill"), args).graph


def test_scores_lie_in_memory_under_xla_and_not_in_an_engine() -> None:
    batch, length, heads, hidden, ffn = 2, 2048, 32, 4096, 14336
    graph = prefill(batch, length)
    scores = batch * heads * length * length
    stream, keys = 2 * batch * length * hidden, 2 * batch * length * 1024
    # float32 scores beside bfloat16 shares; keys and values are written at the end
    assert peak(graph) == scores * (4 + 2) + stream + 2 * keys
    # the second product of the feed-forward block: the residual and its norm, both
    wide = 2 * batch * length * ffn
    assert peak(graph, engine=True) == 2 * wide + 2 * stream + 2 * keys


def test_moments_are_few_and_none_is_within_another() -> None:
    graph = prefill(1, 128)
    sets = [{("held", i) for i in m.held} | {("moved", i) for i in m.moved}
            for m in graph.moments]  # fmt: skip
    assert 5 < len(sets) < 30
    for i, one in enumerate(sets):
        assert not any(one <= other for j, other in enumerate(sets) if i != j)
    assert np.all([moment.name for moment in graph.moments])
