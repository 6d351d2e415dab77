"""Unrolled layers fold into one that runs several times, as a scan has it."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lts
from lts.models import Decoder, load, read_config
from lts.prepare import prepare_problem
from lts.problem import linked, trace_problem, zoo_problem
from tests.tiny import CLUSTER, WORKLOAD
from tests.tiny import CONFIGS as DENSE
from tests.tiny_experts import CONFIGS as EXPERTS

CONFIGS = {**DENSE, **EXPERTS}
NAMES = ["dense", "tied", "experts", "latent attention"]


def spec(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def prepared(name: str, layers: str):
    model = Decoder(config=read_config(CONFIGS[name], name), layers=layers)
    problem = zoo_problem(model, WORKLOAD)
    return prepare_problem(problem, WORKLOAD, CLUSTER, max_stages=1)


@functools.cache
def both(name: str):
    return prepared(name, "scan"), prepared(name, "unrolled")


def shared_name(name: str) -> str:
    """A node's name without numbers of layers."""
    return re.sub(r"/\d+(?=/|$|:)", "", name)


@pytest.mark.parametrize("name", NAMES)
def test_unrolled_layers_are_the_decisions_of_their_scanned_twin(name: str) -> None:
    loop, flat = both(name)
    for phase in ("prefill", "decode"):
        one, other = loop.graphs[phase], flat.graphs[phase]
        assert len(one.nodes) == len(other.nodes)
        for a, b in zip(one.ops, other.ops, strict=True):
            assert (a.name, a.trips, a.flops) == (b.name, b.trips, b.flops)
            assert [(f.name, f.size, f.units) for f in a.factors] == [
                (f.name, f.size, f.units) for f in b.factors
            ]
        names = sorted(shared_name(value.name) for value in one.values)
        assert names == sorted(shared_name(value.name) for value in other.values)
    assert loop.space.num_genes == flat.space.num_genes
    assert loop.space.log10_size() == pytest.approx(flat.space.log10_size())


@pytest.mark.parametrize("name", NAMES)
def test_both_forms_have_equal_totals(name: str) -> None:
    loop, flat = both(name)
    for phase in ("prefill", "decode"):
        one, other = loop.graphs[phase], flat.graphs[phase]
        assert one.flops == other.flops
        assert one.compulsory_bytes == other.compulsory_bytes
        assert other.loop_copy_bytes == 0


def test_copies_of_a_scan_are_a_term_of_their_own() -> None:
    """Weights of both layers are read and written once more; caches are a carry."""
    loop, _ = both("dense")
    graph = loop.graphs["decode"]
    stacked = sum(
        leaf.array.nbytes
        for value in graph.values
        for leaf in value.leaves
        if leaf.path.startswith("params/layers/") and len(leaf.array.shape) > 2
    )
    assert graph.loop_copy_bytes == 2 * stacked


def test_a_cache_that_is_scanned_over_is_copied_in_and_out() -> None:
    def decode(cache: jax.Array, new: jax.Array) -> jax.Array:
        def body(position, layer):
            cache, new = layer
            return position, lax.dynamic_update_slice(cache, new, (0, position, 0))

        return lax.scan(body, 3, (cache, new))[1]

    graph = lts.trace(decode, spec(5, 8, 32, 16), spec(5, 8, 1, 16))
    assert graph.loop_copy_bytes == 4 * (5 * 8 * 32 * 16 * 4)


@pytest.mark.parametrize("name", NAMES)
def test_both_forms_have_one_price_for_equal_plans(name: str) -> None:
    """Hence one best assignment: the same genes are the same plan at the same cost."""
    loop, flat = both(name)
    names = {
        phase: {shared_name(node.name): node.name for node in graph.nodes}
        for phase, graph in flat.graphs.items()
    }
    rng = np.random.default_rng(0)
    shape = loop.space.num_genes, 32
    picks = rng.integers(0, loop.space.cardinalities[:, None], shape, np.int32)
    first = loop.space.first_override
    picks[first:] *= rng.random(picks[first:].shape) < 0.3  # the others inherit roles
    twins = []
    for candidate in picks.T:
        plan = loop.space.decode(candidate)
        states = {
            phase: {names[phase][node]: own for node, own in nodes.items()}
            for phase, nodes in plan.states.items()
        }
        twins.append(flat.space.encode(dataclasses.replace(plan, states=states)))
    one = loop.evaluator.outcome(picks)
    other = flat.evaluator.outcome(np.stack(twins, axis=1))
    np.testing.assert_allclose(one.objective, other.objective, rtol=1e-5)
    np.testing.assert_allclose(one.violation, other.violation, rtol=1e-5, atol=1e-6)


def test_layers_of_two_kinds_stay_apart() -> None:
    """deepseek-v3: 3 dense layers, then 58 of experts."""
    model = Decoder(config=load("deepseek-v3").config, layers="unrolled")
    problem = zoo_problem(model, lts.Workload(1024, 1024))
    traced = trace_problem(problem, ("decode",), 32)
    graph = linked(traced, problem.dim_names)["decode"]
    trips = {op.name: op.trips for op in graph.ops}
    assert trips["layers0/mlp/gate"] == 3
    assert trips["layers3/experts"] == 58
    assert {n for n in trips.values()} == {1, 3, 58}
    scanned = zoo_problem(load("deepseek-v3"), lts.Workload(1024, 1024))
    twin = linked(trace_problem(scanned, ("decode",), 32), scanned.dim_names)["decode"]
    assert len(graph.nodes) == len(twin.nodes)
    assert graph.flops == twin.flops
    assert graph.compulsory_bytes == twin.compulsory_bytes


def block(x: jax.Array, w: dict[str, jax.Array]) -> jax.Array:
    return x + jnp.tanh(x @ w["up"]) @ w["down"]


def weights(depth: int, hidden: int = 64) -> list[dict[str, jax.ShapeDtypeStruct]]:
    return [{"up": spec(16, hidden), "down": spec(hidden, 16)} for _ in range(depth)]


def stack(x: jax.Array, ws: list[dict[str, jax.Array]]) -> jax.Array:
    return functools.reduce(block, ws, x)


def test_parameters_of_tied_layers_share_one_value() -> None:
    graph = lts.trace(stack, spec(8, 16), weights(80))
    assert [op.trips for op in graph.ops] == [80, 80]
    held = {v.name: [leaf.path for leaf in v.leaves] for v in graph.values}
    assert held["1/0/up"] == [f"1/{i}/up" for i in range(80)]


def test_a_wider_layer_among_equal_ones_is_a_decision_of_its_own() -> None:
    layers = [*weights(3), *weights(1, hidden=128), *weights(4)]
    graph = lts.trace(stack, spec(8, 16), layers)
    assert [op.trips for op in graph.ops] == [3, 3, 1, 1, 4, 4]
    assert graph.flops == sum(2 * 2 * 8 * 16 * w["up"].shape[1] for w in layers)


def test_units_of_alternating_layers_fold_as_units() -> None:
    layers = [w for _ in range(5) for w in (*weights(1), *weights(1, hidden=128))]
    graph = lts.trace(stack, spec(8, 16), layers)
    assert [op.trips for op in graph.ops] == [5, 5, 5, 5]


def test_two_square_layers_keep_a_layout_each() -> None:
    """One by columns, one by rows needs a single all-reduce: they must not be tied."""
    graph = lts.trace(lambda x, a, b: (x @ a) @ b, *[spec(16, 16)] * 3)
    assert [op.trips for op in graph.ops] == [1, 1]


def test_projections_of_one_input_are_not_layers() -> None:
    def heads(x: jax.Array, ws: list[jax.Array]) -> list[jax.Array]:
        return [jnp.tanh(x @ w) @ w.T for w in ws]

    graph = lts.trace(heads, spec(8, 16), [spec(16, 16)] * 6)
    assert [op.trips for op in graph.ops] == [1] * 12


def test_experts_that_add_to_one_sum_are_a_loop() -> None:
    def experts(x: jax.Array, ws: list[dict[str, jax.Array]]) -> jax.Array:
        total = x
        for w in ws:
            total = total + jnp.tanh(x @ w["up"]) @ w["down"]
        return total

    graph = lts.trace(experts, spec(8, 16), weights(8))
    assert [op.trips for op in graph.ops] == [8, 8]


def test_skips_over_layers_keep_layers_apart() -> None:
    """A U-net reads its own earlier layers: no copy is wired as another."""

    def unet(x: jax.Array, ws: list[dict[str, jax.Array]]) -> jax.Array:
        kept = []
        for w in ws[:4]:
            x = block(x, w)
            kept.append(x)
        for w in ws[4:]:
            x = block(x + kept.pop(), w)
        return x

    graph = lts.trace(unet, spec(8, 16), weights(8))
    assert graph.flops == 8 * 4 * 8 * 16 * 64
    assert sum(op.trips for op in graph.ops) == 16


def test_a_shared_mask_and_slices_of_stacked_weights_do_not_hide_layers() -> None:
    def sliced(x: jax.Array, mask: jax.Array, up: jax.Array, down: jax.Array):
        for i in range(6):
            x = x + jnp.where(mask, jnp.tanh(x @ up[i]), 0.0) @ down[i]
        return x

    args = spec(8, 16), spec(8, 64), spec(6, 16, 64), spec(6, 64, 16)
    graph = lts.trace(sliced, *args)
    assert [op.trips for op in graph.ops] == [6, 6]


def test_layers_inside_a_loop_fold_and_multiply() -> None:
    def steps(x: jax.Array, ws: list[dict[str, jax.Array]]) -> jax.Array:
        return lax.scan(lambda x, _: (stack(x, ws), None), x, length=7)[0]

    graph = lts.trace(steps, spec(8, 16), weights(5))
    assert [op.trips for op in graph.ops] == [35, 35]


@pytest.mark.parametrize("depth", [2, 9])
def test_a_plan_of_folded_layers_runs(depth: int) -> None:
    rng = np.random.default_rng(0)
    ws = [
        {
            k: jnp.asarray(rng.normal(size=s.shape), jnp.float32) / 8
            for k, s in w.items()
        }
        for w in weights(depth)
    ]
    x = jnp.asarray(rng.normal(size=(8, 16)), jnp.float32)
    plan = lts.search(
        stack,
        (x, ws),
        cluster=lts.Cluster.parse("h100:1x8"),
        method="random",
        budget=64,
    )
    first, *others = plan.in_specs[1]
    assert all(other == first for other in others)
    step = plan.apply(stack)
    out = step(*plan.device_put((x, ws)))
    np.testing.assert_allclose(out, stack(x, ws), rtol=2e-5, atol=2e-5)
