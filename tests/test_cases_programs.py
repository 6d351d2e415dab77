"""Public bug reports about programs and their layouts, and the right answer.

Each test names the report that it comes from. Cases 23 and A3 have files of their own,
`tracing/test_manual.py` and `tracing/test_closed_over.py`.
"""

import functools
import itertools
import os
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import lts
from lts.apply import jitted
from lts.assignment import Assignment
from lts.cost.predict import predicted_collectives
from lts.cost.pricing import Pricing
from lts.cost.reshards import Reshards, reshards
from lts.cost.tables import edge_states
from lts.degrees import by_hand
from lts.hlo import list_collectives
from lts.hops import hops
from lts.mesh import Degrees, MeshAxis
from lts.prepare import prepare_problem
from lts.problem import zoo_problem
from lts.specs import phase_specs
from lts.tracing import link_phases, trace_program
from tests.tiny import WORKLOAD, model_of

CLUSTER = lts.Cluster.parse("h100:1x8")
AXES = tuple(MeshAxis(name=n, size=s, inside=True) for n, s in (("a", 4), ("b", 2)))
SIZES, INSIDE = np.array([4, 2]), np.array([True, True])
M, K, N = 16, 32, 64
PARTS = 27 if not os.environ.get("LTS_LONG_TESTS") else 1
"""The suite compiles every 27th of 729 layouts; `LTS_LONG_TESTS=1` compiles all."""


def spec(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


@pytest.fixture(scope="module")
def product():
    args = spec(M, K), spec(K, N)
    traced = trace_program(lambda x, w: x @ w, args, names=("x", "w"))
    return traced, link_phases({"step": traced.graph})["step"]


@functools.cache
def prices(rank: int) -> Reshards:
    return reshards((rank,), (Degrees(stages=1, axes=AXES),), Pricing(cluster=CLUSTER))


def price(rank: int, source: np.ndarray, target: np.ndarray, nbytes: float) -> float:
    """Seconds of one reshard of `nbytes`."""
    here = int((source * (rank + 2) ** np.arange(2)).sum())
    there = int((target * (rank + 1) ** np.arange(2)).sum())
    return prices(rank).of(rank, 0, here, there, nbytes)


def cheapest(graph, values: dict[int, np.ndarray]) -> list[np.ndarray]:
    """States of all nodes, the product in the layout with the cheapest reshards."""
    (op,) = graph.ops

    def cost(states: dict[int, np.ndarray]) -> float:
        total = 0.0
        for edge in graph.edges:
            source = edge_states(edge, graph.nodes, states[edge.source], True)
            target = edge_states(edge, graph.nodes, states[edge.target], False)
            rank = len(edge.dims)
            total += price(rank, source, target, edge.array.nbytes)
        return total

    options = (np.array(o) for o in itertools.product(range(4), repeat=2))
    best = min(({**values, op.index: o} for o in options), key=cost)
    return [best[node.index] for node in graph.nodes]


def test_a_product_in_any_layout_emits_the_predicted_collectives(product) -> None:
    """Case 14, openxla/xla#4062: gathers that users did not expect."""
    traced, graph = product
    degrees = Degrees(stages=1, axes=AXES)
    assignment = Assignment(degrees=degrees, roles={}, states={})
    auto = (AxisType.Auto,) * 2
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=auto)
    x, w, out = (node.index for node in graph.values)
    layouts = list(itertools.product(itertools.product(range(3), repeat=2), repeat=3))
    for lhs, rhs, result in layouts[5::PARTS]:
        values = {x: np.array(lhs), w: np.array(rhs), out: np.array(result)}
        states = cheapest(graph, values)
        predicted: Counter[tuple] = Counter()
        for row in predicted_collectives(graph, states, AXES, scatters=False):
            predicted[row.kind, row.axes, row.nbytes] += row.count
        step = jitted(traced, phase_specs(traced, graph, states, assignment), mesh)
        text = step.lower(spec(M, K), spec(K, N)).compile().as_text()
        emitted: Counter[tuple] = Counter()
        for found in list_collectives(text, {"a": 4, "b": 2}):
            emitted[found.kind, found.axes, found.nbytes] += found.count
        assert emitted == predicted, (lhs, rhs, result)


DEPTH, WIDTH, HIDDEN = 6, 64, 128


def stack(x: jax.Array, layers: dict[str, jax.Array]) -> jax.Array:
    def body(x: jax.Array, w: dict[str, jax.Array]) -> tuple[jax.Array, None]:
        return x + jnp.tanh(x @ w["up"]) @ w["down"], None

    return lax.scan(body, x, layers)[0]


STACKED = (
    spec(16, WIDTH),
    {"up": spec(DEPTH, WIDTH, HIDDEN), "down": spec(DEPTH, HIDDEN, WIDTH)},
)


def test_no_plan_shards_the_layer_axis_of_scanned_weights() -> None:
    """Case 17, google/flax#3870: it gathers the whole stack in every step."""
    graph = lts.trace(stack, *STACKED)
    for path, factors in (("1/up", (None, 0, 1)), ("1/down", (None, 0, 1))):
        (leaf,) = graph.node(path).leaves
        assert [f is None for f in leaf.factors] == [f is None for f in factors]
    mesh = jax.make_mesh((2,), ("tp",), devices=jax.devices()[:2])
    with pytest.raises(ValueError, match=r"dim 0 cannot be sharded"):
        lts.search(stack, STACKED, mesh=mesh, cluster=lts.Cluster.parse("h100:1x2"),
                   pin={"layers/up": P("tp")})  # fmt: skip


def test_a_sharded_hidden_index_of_scanned_weights_gathers_nothing() -> None:
    """Case 17: temporaries stay those of one layer."""
    mesh = jax.make_mesh((2,), ("tp",), devices=jax.devices()[:2])
    plan = lts.price(
        stack,
        STACKED,
        mesh=mesh,
        cluster=lts.Cluster.parse("h100:1x2"),
        specs={"layers/up": P(None, None, "tp"), "layers/down": P(None, "tp")},
    )
    report = plan.verify(stack, STACKED)
    assert report.ok
    (row,) = report.reports[0].rows
    assert (row.kind, row.predicted, row.emitted) == ("all_reduce", DEPTH, DEPTH)
    assert report.reports[0].temp_bytes < DEPTH * WIDTH * HIDDEN * 4 / 2


def tied(table: jax.Array, ids: jax.Array) -> tuple[jax.Array, jax.Array]:
    return lax.top_k(jnp.tanh(table[ids]) @ table.T, 4)


TIED = spec(64, 16), spec(8, dtype="int32")
LOGITS, ROWS = 8 * 64 * 4, 8 * 16 * 4


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # looked up by all, then summed; ranked on the whole of the logits
        (P("tp"), [("all_reduce", ROWS), ("all_gather", LOGITS)]),
        # looked up locally; partial logits are summed
        (P(None, "tp"), [("all_reduce", LOGITS)]),
    ],
)
def test_a_tied_table_has_one_spec_and_both_its_uses_are_paid(given, expected) -> None:
    """Case 30, sglang#15890, vllm#20843: one array, two uses that want two layouts."""
    mesh = jax.make_mesh((2,), ("tp",), devices=jax.devices()[:2])
    cluster = lts.Cluster.parse("h100:1x2")
    plan = lts.price(tied, TIED, mesh=mesh, cluster=cluster, specs={"table": given})
    assert plan.in_specs[0] == given
    report = plan.verify(tied, TIED)
    assert report.ok
    found = [(row.kind, row.nbytes) for row in report.reports[0].rows]
    assert sorted(found) == sorted(expected)
    assert all(row.predicted == row.emitted == 1 for row in report.reports[0].rows)


def test_a_tied_table_is_one_decision_and_stands_on_both_end_stages() -> None:
    """Case 30: with pipeline stages the first and the last hold a copy each."""
    problem = zoo_problem(model_of("tied"), WORKLOAD)
    prepared = prepare_problem(problem, WORKLOAD, CLUSTER)
    tables, space = prepared.evaluator.tables, prepared.space
    (embed,) = (i for i, v in enumerate(space.variables) if v.name == "params/embed")
    uses = {
        graph.nodes[edge.target].primitive
        for graph in prepared.graphs.values()
        for edge in graph.edges
        if graph.nodes[edge.source].name == "params/embed"
    }
    assert uses == {"gather", "dot_general"}
    picks = by_hand(space, {"pp": 2, "dp": 4})
    assert space.degrees[int(picks[0])].stages == 2
    choice = space.choices(picks)[embed]
    assert tables.outer_bytes[embed][int(picks[0]), choice] == 256 * 64 * 4


def test_an_axis_swap_is_made_in_hops_without_rebuilding_the_array() -> None:
    """Case 11, openxla/xla#15207: P("y", None, "x") to P(None, ("x", "y"), None)."""
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)

    def mixed(a: jax.Array, w: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.sin(a @ w) * b

    args = spec(16, 64, 32), spec(32, 32), spec(16, 64, 32)
    pins = {"a": P("y"), "w": P(None, "x"), "b": P(None, ("x", "y"))}
    plan = lts.search(
        mixed,
        args,
        mesh=mesh,
        cluster=CLUSTER,
        pin=pins,
        budget=256,
        method="annealing",
    )
    (report,) = plan.verify(mixed, args).reports
    assert report.ok and report.warnings == ()
    # by the compiler's own way between these layouts the array is gathered whole
    before, after = (P("y", None, "x"), P(None, ("x", "y")))

    def swap(a: jax.Array) -> jax.Array:
        return lax.with_sharding_constraint(jnp.sin(a), NamedSharding(mesh, after))

    inner = NamedSharding(mesh, before)
    text = jax.jit(swap, in_shardings=inner).lower(args[0]).compile().as_text()
    most = max(c.nbytes for c in list_collectives(text, dict(mesh.shape)))
    whole = 16 * 64 * 32 * 4
    assert most >= whole / 2
    # by hops: x from dim 2 to 1, y from dim 0 to 1 (states count dims from one)
    way = hops(np.array([3, 1]), np.array([2, 2]), 3, np.ones(2, bool))
    assert {hop.kind for hop in way} <= {"all_to_all", "collective_permute"}


def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    batch, heads, dim = q.shape
    q = q.reshape(batch, k.shape[2], -1, dim)
    weights = jax.nn.softmax(jnp.einsum("bkgd,bskd->bkgs", q, k), -1)
    return jnp.einsum("bkgs,bskd->bkgd", weights, v).reshape(batch, heads, dim)


CACHES = {
    "sequence": P(None, "t"),
    "head_dim": P(None, None, None, "t"),
    "batch": P("t"),
    "replicated": P(),
}


@pytest.mark.parametrize(
    ("batch", "length", "best"), [(8, 4096, "batch"), (1, 131072, "sequence")]
)
def test_fewer_kv_heads_than_gpus(batch: int, length: int, best: str) -> None:
    """Case 3, pytorch/torchtitan#2574: two KV heads over eight GPUs, as one may."""
    mesh = jax.make_mesh((8,), ("t",), axis_types=(AxisType.Auto,))
    cache = spec(batch, length, 2, 128, dtype="bfloat16")
    args = spec(batch, 32, 128, dtype="bfloat16"), cache, cache
    options = {"mesh": mesh, "cluster": CLUSTER, "budget": 4096, "method": "random"}
    heads = P(None, None, "t")
    with pytest.raises(ValueError, match="8 ways do not divide dim '.' of 2"):
        lts.search(attend, args, pin={"k": heads, "v": heads}, **options)
    times, stored = {}, {}
    for name, layout in CACHES.items():
        if name == "batch" and batch == 1:
            continue
        pins = {"k": layout, "v": layout}
        plan = lts.search(attend, args, pin=pins, **options)
        (report,) = plan.verify(attend, args).reports
        assert report.ok and report.warnings == ()
        times[name] = plan.metrics.step_time_s
        stored[name] = report.argument_bytes
    assert min(times, key=lambda name: times[name]) == best
    parts = {name: nbytes for name, nbytes in stored.items() if name != "replicated"}
    assert max(parts.values()) < 0.14 * stored["replicated"]
    free = lts.search(attend, args, **options)
    assert free.in_specs[1] == free.in_specs[2] == CACHES[best]
    assert free.metrics.step_time_s == pytest.approx(times[best])
