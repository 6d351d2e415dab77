"""Between tp 8, pp 2 and candidates."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import lts
from lts.degrees import by_hand, by_specs, main_group, named_degrees, tensor_labels
from lts.hardware import Cluster
from lts.layout import spec_of, state_numbers
from lts.mesh import Degrees, MeshAxis, enumerate_degrees
from lts.models import Decoder, load
from lts.prepare import prepare_problem
from lts.problem import TRACED_BATCH, linked, trace_problem, zoo_problem
from lts.space import Space, build_space
from lts.workload import Workload
from tests.tiny import PRICED as TINY

WORKLOAD = Workload(input_len=64, output_len=64)


@pytest.fixture(scope="module")
def space() -> Space:
    """llama-3.1-70b on two nodes of eight."""
    problem = zoo_problem(load("llama-3.1-70b"), WORKLOAD)
    traced = trace_problem(problem, ("prefill", "decode"), TRACED_BATCH)
    degrees = enumerate_degrees(Cluster.parse("h100:2x8"), num_layers=80)
    return build_space(linked(traced, problem.dim_names), degrees)


POWERS = (1, 2, 4, 8, 16)
LEGAL = [
    dict(zip(("pp", "dp", "tp", "cp"), found, strict=True))
    for found in itertools.product(POWERS, repeat=4)
    if np.prod(found) == 16
]


@pytest.mark.parametrize("degrees", LEGAL, ids=str)
def test_degrees_by_hand_are_named_as_asked(space: Space, degrees) -> None:
    found = named_degrees(space, by_hand(space, degrees))
    assert found == {**degrees, "moe_tp": 1, "moe_ep": 1}


def test_what_is_left_over_is_data_parallel(space: Space) -> None:
    found = named_degrees(space, by_hand(space, {"tp": 4}))
    assert (found["tp"], found["dp"], found["pp"]) == (4, 4, 1)
    assert named_degrees(space, by_hand(space, {}))["dp"] == 16


def test_tensor_parallelism_splits_kv_heads_then_queries_of_one(space: Space) -> None:
    main = main_group(space)
    assert space.groups[main] == "attention"
    labels = [space.label_names[label] for label in tensor_labels(space, main)]
    assert labels[:2] == ["kv_heads", "group"]
    states = space.decode(by_hand(space, {"tp": 16})).states["decode"]
    query = states["attention/query"]
    sizes = space.degrees[0].axes
    ways = {
        name: np.prod([a.size for a, s in zip(sizes, query, strict=True) if s == name])
        for name in ("kv_heads", "group")
    }
    assert ways == {"kv_heads": 8, "group": 2}
    assert states["mlp/gate"] == ("ffn",) * 3
    assert states["unembed"] == ("out_vocab",) * 3


def test_inner_axes_go_to_tensor_parallelism_first(space: Space) -> None:
    picks = by_hand(space, {"tp": 8, "dp": 2})
    degrees = space.degrees[int(picks[0])]
    gate = space.decode(picks).states["decode"]["mlp/gate"]
    for axis, state in zip(degrees.axes, gate, strict=True):
        assert state == ("ffn" if axis.inside else "batch")


@pytest.mark.parametrize(
    ("degrees", "message"),
    [
        ({"ep": 2}, "unknown degree 'ep'; there are pp, dp, tp, cp"),
        ({"tp": 0}, "tp must be a positive integer, got 0"),
        ({"tp": True}, "tp must be a positive integer, got True"),
        ({"tp": 2.0}, "tp must be a positive integer, got 2.0"),
        ({"tp": 32}, "no mesh has degrees .*; stages x GPUs of a stage can be 1 x 16"),
        ({"tp": 3}, "must use all GPUs"),
        ({"tp": 8, "dp": 4}, "must use all GPUs"),
        ({"pp": 3}, "1 x 16, 2 x 8, 4 x 4, 8 x 2, 16 x 1"),
    ],
)
def test_degrees_that_cannot_be_are_refused(space: Space, degrees, message) -> None:
    with pytest.raises(ValueError, match=message):
        by_hand(space, degrees)


MEGATRON = {
    "params/embed": P("tp"),
    "params/unembed": P(None, "tp"),
    "params/layers/query": P(None, None, "tp"),
    "params/layers/key": P(None, None, "tp"),
    "params/layers/value": P(None, None, "tp"),
    "params/layers/out": P(None, "tp"),
    "params/layers/gate": P(None, None, "tp"),
    "params/layers/up": P(None, None, "tp"),
    "params/layers/down": P(None, "tp"),
    "cache/key": P(None, "dp", "tp"),
    "cache/value": P(None, "dp", "tp"),
    "tokens": P("dp"),
}


@pytest.mark.parametrize("shape", [(1, 4), (2, 4)])
def test_specs_of_megatron_cost_what_its_degrees_cost(shape: tuple[int, int]) -> None:
    dp, tp = shape
    workload = Workload(input_len=64, output_len=64, concurrency=16)
    axes = (
        MeshAxis(name="dp", size=dp, inside=True),
        MeshAxis(name="tp", size=tp, inside=True),
    )
    prepared = prepare_problem(
        zoo_problem(Decoder(config=TINY), workload),
        workload,
        Cluster.parse(f"h100:1x{dp * tp}"),
        degrees=(Degrees(stages=1, axes=axes),),
    )
    hand = by_hand(prepared.space, {"tp": tp, "dp": dp})
    specs = by_specs(prepared.space, MEGATRON)
    found = prepared.evaluator.outcome(np.stack([hand, specs], axis=1))
    hand_s, specs_s = (float(x) for x in found.step_time_s)
    assert specs_s == pytest.approx(hand_s, rel=1e-6)
    assert float(found.peak_bytes[1]) == pytest.approx(
        float(found.peak_bytes[0]), rel=1e-6
    )
    for path in MEGATRON:
        graph = prepared.graphs["decode"]
        node, leaf = next(
            (n, x) for n in graph.values for x in n.leaves if x.path == path
        )
        states = prepared.space.decode(specs).states["decode"][node.name]
        numbers = state_numbers(node, states)
        wanted = P(*(None if e == "dp" and dp == 1 else e for e in MEGATRON[path]))
        assert spec_of(leaf.factors, numbers, axes) == P(*_trimmed(wanted))


def _trimmed(spec: P) -> list:
    entries = list(spec)
    while entries and entries[-1] is None:
        entries.pop()
    return entries


def test_an_op_takes_its_own_weights_layout_before_another_results() -> None:
    """Two products of one input, both by columns: neither weight is resharded."""

    def gated(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ params["a"]) * jnp.tanh(x @ params["b"]) * x

    spec = jax.ShapeDtypeStruct
    args = (
        {name: spec((4096, 4096), "float32") for name in "ab"},
        spec((8, 16, 4096), "float32"),
    )
    by_columns = P(None, "tp")
    plan = lts.price(
        gated,
        args,
        mesh=jax.make_mesh((8,), ("tp",)),
        specs={"params/a": by_columns, "params/b": by_columns},
    )
    states = plan.assignment.states["step"]
    graph = lts.trace(gated, *args)
    assert len(graph.ops) == 2
    for op in graph.ops:
        columns = op.results[0].factors[2]
        assert columns is not None
        assert states[op.name] == (op.factors[columns].name,)
