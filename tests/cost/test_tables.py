"""Tables hold for every choice what the models of collectives and nodes say."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lts.cost.breakdown import breakdown
from lts.cost.tables import CostTables, Flat, edge_states, member_states
from lts.hardware import Cluster
from lts.prepare import Prepared, prepare_function
from tests.cost.reshard_price import reshard_time_s

CLUSTER = Cluster.parse("h100:2x4")


def spec(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "bfloat16")


def prepared_for(function: Any, *args: Any) -> Prepared:
    return prepare_function(function, args, {}, CLUSTER)


@pytest.fixture(scope="module")
def tables() -> CostTables:
    def mlp(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        return jnp.tanh(x @ up) @ down

    return prepared_for(
        mlp, spec(32, 64), spec(64, 128), spec(128, 64)
    ).evaluator.tables


def test_every_edge_is_priced_as_its_reshard(tables: CostTables) -> None:
    space, phase = tables.space, tables.phases["step"]
    nodes = phase.graph.nodes
    rng = np.random.default_rng(0)
    for record in phase.edges:
        edge = record.edge
        states = {
            end: member_states(space, int(phase.variables[end]), nodes[end])
            for end in (edge.source, edge.target)
        }
        for _ in range(20):
            d = int(rng.integers(len(space.degrees)))
            ends = [int(rng.integers(len(states[e]))) for e in states]
            source = edge_states(
                edge, nodes, states[edge.source][ends[0]], at_source=True
            )
            target = edge_states(
                edge, nodes, states[edge.target][ends[1]], at_source=False
            )
            inside = np.array([axis.inside for axis in space.degrees[d].axes])
            rank, nbytes = len(edge.dims), edge.array.nbytes
            seconds = reshard_time_s(
                source, target, rank, space.sizes[d], inside, CLUSTER, nbytes
            )
            cell = (d, record.source_codes[ends[0]], record.target_codes[ends[1]])
            assert (record.nbytes, record.bytes_per_sequence) == (nbytes, 0)
            found = tables.reshards.of(rank, *map(int, cell), nbytes)
            assert found == pytest.approx(float(seconds), rel=1e-6)


def test_nodes_have_a_time_for_every_choice(tables: CostTables) -> None:
    space, phase = tables.space, tables.phases["step"]
    for node, table in zip(phase.graph.nodes, phase.node_time_s, strict=True):
        choices = space.num_choices(int(phase.variables[node.index]))
        assert table.shape == (len(space.degrees), choices, 1)
        assert np.isfinite(table).all()
        assert (table > 0).all() == (node.is_op or bool(node.kernels))


def test_arguments_and_results_of_a_function_are_held(tables: CostTables) -> None:
    whole = sum(float(table[0, 0]) for table in tables.held_bytes.values())
    assert whole == 2 * (32 * 64 + 64 * 128 + 128 * 64 + 32 * 64)
    assert not tables.looped_bytes and not tables.cache_bytes


def test_an_array_that_two_ops_read_is_resharded_once() -> None:
    def two(x: jax.Array, a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x @ a, x @ b

    prepared = prepared_for(two, spec(32, 64), spec(64, 128), spec(64, 256))
    tables, space = prepared.evaluator.tables, prepared.space
    reads = [
        record
        for record in tables.phases["step"].edges
        if prepared.graphs["step"].nodes[record.edge.source].name == "x"
    ]
    assert len(reads) == 2
    assert reads[0].first_like == reads[1].first_like
    number = next(i for i, v in enumerate(space.variables) if v.name == "step/x")
    rows = [f.size for f in space.variables[number].factors].index(32)
    picks = np.zeros(space.num_genes, np.int32)
    last = space.num_axes - 1
    picks[space.first_override + number * space.num_axes + last] = 2 + rows
    parts = breakdown(tables, picks, {"step": 0})
    reshards = [part for part in parts if part.kind == "reshard"]
    assert len(reshards) == 1
    total = sum(part.time_s for part in parts)
    found = float(prepared.evaluator.outcome(picks[:, None]).step_time_s[0])
    assert found == pytest.approx(total, rel=1e-6)


def test_rows_of_several_owners_lie_behind_one_another() -> None:
    flat = Flat()
    assert flat.add(np.array([1, 2, 3])) == 0
    assert flat.add(np.array([4])) == 3
    assert flat.add(np.array([5, 6])) == 4
    np.testing.assert_array_equal(flat.array(np.int32), [1, 2, 3, 4, 5, 6])
    assert len(Flat().array()) == 0
