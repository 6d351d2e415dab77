"""Predicted collectives: Megatron's layouts give the all-reduces they are known for."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lts.cost.predict import Predicted, predicted_collectives
from lts.degrees import by_hand
from lts.graph import OpGraph
from lts.hardware import Cluster
from lts.layout import state_numbers
from lts.mesh import MeshAxis, enumerate_degrees
from lts.models import Decoder, dense_decoder
from lts.problem import TRACED_BATCH, linked, trace_problem, zoo_problem
from lts.space import Space, build_space
from lts.tracing import link_phases, trace_program
from lts.workload import Workload

TP = (MeshAxis(name="tp", size=4, inside=True),)
BATCH, HIDDEN, FFN = 8, 16, 64


def mlp(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    return jnp.tanh(x @ up) @ down


def mlp_graph() -> OpGraph:
    shapes = (BATCH, HIDDEN), (HIDDEN, FFN), (FFN, HIDDEN)
    args = tuple(jax.ShapeDtypeStruct(shape, "float32") for shape in shapes)
    traced = trace_program(mlp, args, names=("x", "up", "down"))
    return link_phases({"step": traced.graph})["step"]


def sharded(graph: OpGraph, wanted: Mapping[str, int]) -> list[np.ndarray]:
    """States over one axis: per node, the size of the factor that it shards."""
    states = []
    for node in graph.nodes:
        sizes = [factor.size for factor in node.factors]
        size = wanted.get(node.name, wanted.get("*", 0))
        states.append(np.array([sizes.index(size) + 1 if size in sizes else 0]))
    return states


def row(
    kind: str, nbytes: int, count: int = 1
) -> tuple[str, tuple[str, ...], int, int]:
    return (kind, ("tp",), nbytes, count)


def rows(found: list[Predicted]) -> list[tuple[str, tuple[str, ...], int, int]]:
    return [(r.kind, r.axes, r.nbytes, r.count) for r in found]


def test_column_then_row_gives_one_all_reduce() -> None:
    graph = mlp_graph()
    found = predicted_collectives(graph, sharded(graph, {"*": FFN}), TP, scatters=True)
    assert rows(found) == [row("all_reduce", BATCH * HIDDEN * 4)]
    assert found[0].reason.endswith("-> " + graph.ops[1].name + ":")


def test_nothing_sharded_gives_nothing() -> None:
    graph = mlp_graph()
    assert predicted_collectives(graph, sharded(graph, {}), TP, scatters=True) == []


def test_rows_of_everything_gives_nothing() -> None:
    graph = mlp_graph()
    states = sharded(graph, {"*": BATCH})
    assert predicted_collectives(graph, states, TP, scatters=True) == []


def test_sharded_weights_of_whole_products_are_gathered() -> None:
    graph = mlp_graph()
    states = sharded(graph, {"up": FFN, "down": FFN})
    found = predicted_collectives(graph, states, TP, scatters=True)
    assert rows(found) == [row("all_gather", HIDDEN * FFN * 4)] * 2


@pytest.mark.parametrize("scatters", [True, False])
def test_a_product_scatters_its_sum_itself_on_every_target(scatters) -> None:
    graph = mlp_graph()
    out = graph.ops[1].name + ":"
    states = sharded(graph, {"*": FFN, out: BATCH, "x": 0})
    found = predicted_collectives(graph, states, TP, scatters=scatters)
    assert rows(found) == [row("reduce_scatter", BATCH * HIDDEN * 4 // 4)]


@pytest.mark.parametrize("scatters", [True, False])
def test_a_look_up_in_a_sharded_table_is_summed_whole(scatters) -> None:
    args = [
        jax.ShapeDtypeStruct((64, 16), "float32"),
        jax.ShapeDtypeStruct((8,), "int32"),
    ]
    traced = trace_program(lambda table, ids: table[ids] * 2, args, names=("t", "ids"))
    graph = link_phases({"step": traced.graph})["step"]
    (op,) = (op for op in graph.ops if op.primitive == "gather")
    states = sharded(graph, {"t": 64, op.name: 64, op.name + ":": 16})
    found = predicted_collectives(graph, states, TP, scatters=scatters)
    assert rows(found) == [row("all_reduce", 8 * 16 * 4)]


def test_a_move_between_dims_is_an_all_to_all_of_the_local_part() -> None:
    graph = mlp_graph()
    up, down = (op.name for op in graph.ops)
    states = sharded(graph, {up: BATCH, "x": BATCH, up + ":": FFN, down: FFN})
    found = predicted_collectives(graph, states, TP, scatters=True)
    kinds = [r.kind for r in found]
    assert kinds == ["all_to_all", "all_gather", "all_reduce"] or set(kinds) == {
        "all_to_all",
        "all_reduce",
    }
    assert found[0].nbytes == BATCH * FFN * 4 // 4


def test_one_array_resharded_for_two_readers_counts_once() -> None:
    def two(x: jax.Array, a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x @ a, x @ b

    args = tuple(
        jax.ShapeDtypeStruct(shape, "float32")
        for shape in ((8, 16), (16, 32), (16, 64))
    )
    traced = trace_program(two, args, names=("x", "a", "b"))
    graph = link_phases({"step": traced.graph})["step"]
    found = predicted_collectives(graph, sharded(graph, {"x": 8}), TP, scatters=True)
    assert rows(found) == [row("all_gather", 8 * 16 * 4)]


def test_a_reduction_over_a_sharded_dim_is_an_all_reduce() -> None:
    traced = trace_program(
        lambda x: x / jnp.sum(x, axis=1, keepdims=True),
        (jax.ShapeDtypeStruct((8, 16), "float32"),),
    )
    graph = link_phases({"step": traced.graph})["step"]
    found = predicted_collectives(graph, sharded(graph, {"0": 16}), TP, scatters=True)
    assert rows(found) == [row("all_reduce", 8 * 4)]
    assert (
        predicted_collectives(graph, sharded(graph, {"0": 8}), TP, scatters=True) == []
    )


CONFIG = dense_decoder(
    name="tiny",
    vocab_size=96,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=3,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=16,
    max_position_embeddings=128,
)


@pytest.fixture(scope="module")
def decoder() -> Space:
    problem = zoo_problem(Decoder(config=CONFIG), Workload(24, 8))
    traced = trace_problem(problem, ("prefill", "decode"), TRACED_BATCH)
    graphs = linked(traced, problem.dim_names)
    return build_space(graphs, enumerate_degrees(Cluster.parse("h100:1x8")))


@pytest.mark.parametrize(("phase", "new"), [("prefill", 24), ("decode", 1)])
def test_megatron_reduces_twice_a_layer_and_once_for_the_embedding(
    decoder: Space, phase: str, new: int
) -> None:
    assignment = decoder.decode(by_hand(decoder, {"tp": 8}))
    graph, axes = decoder.graphs[phase], assignment.degrees.axes
    states = [state_numbers(n, assignment.states[phase][n.name]) for n in graph.nodes]
    found = predicted_collectives(graph, states, axes, scatters=True)
    stream = TRACED_BATCH * new * CONFIG.hidden_size * 2
    layers = CONFIG.num_hidden_layers
    kinds = [(r.kind, r.axes, r.nbytes, r.count) for r in found]
    axis_names = ("x", "y", "z")
    assert kinds == [
        ("all_reduce", axis_names, stream, 1),
        ("all_reduce", axis_names, stream, layers),
        ("all_reduce", axis_names, stream, layers),
    ]
    reasons = [r.reason for r in found]
    assert [reason.split(" -> ")[0] for reason in reasons] == [
        "embed",
        "attention/out",
        "mlp/down",
    ]


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_data_parallel_decoders_talk_to_nobody(decoder: Space, phase: str) -> None:
    assignment = decoder.decode(by_hand(decoder, {"dp": 8}))
    graph, axes = decoder.graphs[phase], assignment.degrees.axes
    states = [state_numbers(n, assignment.states[phase][n.name]) for n in graph.nodes]
    found = predicted_collectives(graph, states, axes, scatters=True)
    # weights inherit no batch, activations nothing else
    assert found == []


@pytest.mark.parametrize("function", [jnp.argmax, jnp.argmin])
def test_a_place_is_found_by_gathering_every_devices_candidate(function) -> None:
    """What XLA emits for an argmax over a sharded dim: values, and their places."""
    args = (jax.ShapeDtypeStruct((16, 64), "bfloat16"),)
    traced = trace_program(lambda x: function(x, axis=1), args, names=("x",))
    graph = link_phases({"step": traced.graph})["step"]
    found = predicted_collectives(graph, sharded(graph, {"x": 64}), TP, scatters=True)
    assert rows(found) == [
        row("all_gather", 16 * 4 * 2),
        row("all_gather", 16 * 4 * 4),
    ]
