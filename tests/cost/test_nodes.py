"""Time of one node, by hand."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lts.cost.collective import collective_time_s
from lts.cost.nodes import node_time_s
from lts.cost.operators.gemm import gemm_time_s
from lts.cost.pricing import Pricing
from lts.cost.profile import Profile
from lts.cost.sharding import shard
from lts.graph import Node, NodeKind
from lts.hardware import Cluster
from lts.mesh import Degrees, MeshAxis
from lts.tracing import link_phases, trace_program

CLUSTER = Cluster.parse("h100:2x8")
CHIP = CLUSTER.chip
PRICING = Pricing(cluster=CLUSTER)
DEGREES = Degrees(
    stages=1,
    axes=(
        MeshAxis(name="x", size=2, inside=False),
        MeshAxis(name="y", size=4, inside=True),
    ),
)
BANDWIDTH = CHIP.hbm_bandwidth_bytes_per_s * CHIP.hbm_efficiency


def spec(*shape: int, dtype: str = "bfloat16") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def nodes_of(function: Any, *args: Any, batch_dims: Any = None) -> tuple[Node, ...]:
    """Nodes; with a batch, the last argument is a weight."""
    weight = str(len(args) - 1) if batch_dims else None

    def kinds(path: str) -> NodeKind:
        return NodeKind.PARAMETER if path == weight else NodeKind.INPUT

    traced = trace_program(function, args, batch_dims=batch_dims, kinds=kinds)
    return link_phases({"step": traced.graph})["step"].nodes


def time_s(
    node: Node, states: dict[str, int], batch: int = 1, traced: int = 1
) -> float:
    """`states`: per axis, the size of the factor that it shards (0 for none)."""
    sizes = [f.size for f in node.factors]
    row = [sizes.index(states[n]) + 1 if states.get(n) else 0 for n in ("x", "y")]
    sharding = shard(
        node, np.array([row]), (DEGREES,), np.array([[batch]]), traced_batch=traced
    )
    return float(node_time_s(node, sharding, PRICING)[0, 0, 0])


def gemm_s(m: float, n: float, k: float) -> float:
    """Of the calibrated model, in bfloat16."""
    sizes = (np.array(size, float) for size in (m, n, k))
    values = PRICING.values("gemm/bfloat16")
    return float(gemm_time_s(*sizes, form="bfloat16", values=values, chip=CHIP))


def test_a_product_takes_the_time_of_its_local_sizes() -> None:
    op = nodes_of(lambda x, w: x @ w, spec(4096, 2048), spec(2048, 8192))[0]
    assert time_s(op, {}) == pytest.approx(gemm_s(4096, 8192, 2048))
    assert time_s(op, {"x": 4096}) == pytest.approx(gemm_s(2048, 8192, 2048))
    assert time_s(op, {"y": 8192}) == pytest.approx(gemm_s(4096, 2048, 2048))
    assert time_s(op, {"x": 4096, "y": 2048}) == pytest.approx(gemm_s(2048, 8192, 512))
    assert time_s(op, {"x": 8192, "y": 8192}) == pytest.approx(gemm_s(4096, 1024, 2048))


def test_no_product_is_quicker_than_its_bound() -> None:
    flops = 2 * 8192 * 8192 * 8192
    op = nodes_of(lambda x, w: x @ w, spec(8192, 8192), spec(8192, 8192))[0]
    assert time_s(op, {}) > flops / CHIP.peak("bfloat16")
    thin = nodes_of(lambda x, w: x @ w, spec(2, 16384), spec(16384, 16384))[0]
    nbytes = 2 * 16384**2 - CHIP.l2_bytes
    assert time_s(thin, {}) > nbytes / CHIP.hbm_bandwidth_bytes_per_s


def test_batched_products_have_the_columns_of_all() -> None:
    op = nodes_of(
        lambda x, w: jnp.einsum("bhk,hkn->bhn", x, w),
        spec(64, 16, 128),
        spec(16, 128, 512),
        batch_dims={"0": (0,)},
    )[0]
    assert time_s(op, {}, 64, 64) == pytest.approx(gemm_s(64, 16 * 512, 128))


def test_products_of_one_array_run_as_one() -> None:
    def both(x, a, b):
        return x @ a, x @ b

    sizes = spec(32, 4096), spec(4096, 1024), spec(4096, 3072)
    first, second = nodes_of(both, *sizes, batch_dims={"0": (0,)})[:2]
    whole = gemm_s(32, 4096, 4096)
    assert first.merged == 4 and second.merged == 4 / 3
    assert time_s(first, {}, 32, 32) == pytest.approx(whole / 4)
    assert time_s(second, {}, 32, 32) == pytest.approx(whole * 3 / 4)
    halves = gemm_s(32, 2048, 4096)  # sharded alike, both have half
    assert time_s(first, {"x": 1024}, 32, 32) == pytest.approx(halves / 4)


def test_weights_of_one_byte_are_read_as_such() -> None:
    def widened(x, w):
        return x @ w.astype(jnp.bfloat16)

    sizes = spec(16, 8192), spec(8192, 8192, dtype="float8_e4m3fn")
    op = nodes_of(widened, *sizes, batch_dims={"0": (0,)})[0]
    whole, found = gemm_s(16, 8192, 8192), time_s(op, {}, 16, 16)
    assert 0.5 * whole <= found < 0.7 * whole  # half the bytes, the same arithmetic
    engine = dataclasses.replace(PRICING, one_byte="fp8_block", engine=Profile())
    values = engine.values("gemm/fp8_block")
    float8 = gemm_time_s(
        np.array(16.0),
        np.array(8192.0),
        np.array(8192.0),
        form="fp8_block",
        values=values,
        chip=CHIP,
        fused_quantisation=True,
    )
    sharding = shard(op, np.zeros((1, 2), int), (DEGREES,), np.array([[16]]), 16)
    assert node_time_s(op, sharding, engine).item() == pytest.approx(float(float8))


def test_a_dtype_without_matrix_units_runs_on_the_vector_unit() -> None:
    big = (spec(2048, 2048, dtype="int32"),) * 2
    integer = nodes_of(lambda x, w: x @ w, *big)[0]
    assert integer.dtype == "int32"
    assert time_s(integer, {}) > 2 * 2048**3 / CHIP.peak("float32")


def test_elementwise_work_moves_what_it_reads_and_writes() -> None:
    value = nodes_of(lambda x: jnp.tanh(x) * 2, spec(4096, 2048))[0]
    moved = 2 * 2 * 4096 * 2048
    assert time_s(value, {}) == pytest.approx(moved / BANDWIDTH + CHIP.op_launch_s)
    assert time_s(value, {"x": 4096, "y": 2048}) == pytest.approx(
        moved / 8 / BANDWIDTH + CHIP.op_launch_s
    )


def test_a_sharded_sum_pays_an_all_reduce_of_the_result() -> None:
    value = nodes_of(lambda x: jnp.max(x, axis=1), spec(4096, 2048))[0]
    kernel = 2 * (4096 * 2048 + 4096)
    result = np.array(2.0 * 4096)
    plain = kernel / BANDWIDTH + CHIP.op_launch_s
    assert time_s(value, {}) == pytest.approx(plain)
    local = 2 * (4096 * 2048 / 4 + 4096) / BANDWIDTH + CHIP.op_launch_s
    group = np.array(4), np.array(1)
    reduce = collective_time_s("all_reduce", result, *group, PRICING)
    assert time_s(value, {"y": 2048}) == pytest.approx(local + float(reduce))
    rows = kernel / 4 / BANDWIDTH + CHIP.op_launch_s
    assert time_s(value, {"y": 4096}) == pytest.approx(rows)


def test_trips_multiply_the_whole_node() -> None:
    def loop(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 5, lambda _, x: x @ w, x)

    once = nodes_of(lambda x, w: x @ w, spec(256, 512), spec(512, 512))[0]
    op = next(n for n in nodes_of(loop, spec(256, 512), spec(512, 512)) if n.is_op)
    assert time_s(op, {}) == pytest.approx(5 * time_s(once, {}))


def batched_product() -> Node:
    return nodes_of(
        lambda x, w: x @ w, spec(32, 4096), spec(4096, 8192), batch_dims={"0": (0,)}
    )[0]


def test_work_scales_with_the_batch_and_weights_do_not() -> None:
    op = batched_product()
    for batch in (1, 8, 32, 1024):
        expected = gemm_s(batch, 8192, 4096)
        assert time_s(op, {}, batch, traced=32) == pytest.approx(expected)


def test_arithmetic_scales_even_where_the_batch_cannot_be_sharded() -> None:
    op = next(
        node
        for node in nodes_of(
            lambda x, w: jnp.flip(x, axis=0) @ w,
            spec(32, 4096),
            spec(4096, 8192),
            batch_dims={"0": (0,)},
        )
        if node.is_op
    )
    assert not any(factor.batched for factor in op.factors)
    expected = gemm_s(4096, 8192, 4096)
    assert time_s(op, {}, 4096, traced=32) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("batch", "states", "legal"),
    [
        (1, {}, True),
        (1, {"x": 32}, False),
        (2, {"x": 32}, True),
        (6, {"x": 32}, True),
        (6, {"y": 32}, False),
        (12, {"x": 32, "y": 32}, False),
        (16, {"x": 32, "y": 32}, True),
        (1, {"x": 4096, "y": 8192}, True),
    ],
)
def test_a_batch_that_does_not_divide_takes_forever(batch, states, legal) -> None:
    found = time_s(batched_product(), states, batch, traced=32)
    assert np.isfinite(found) == legal
    assert not np.isnan(found)


def test_a_regrouped_batch_must_fill_its_groups() -> None:
    def regrouped(x: jax.Array) -> jax.Array:
        return x.reshape(4, 8, 16)  # four groups of the traced 32

    (node,) = nodes_of(regrouped, spec(32, 16), batch_dims={"0": (0,)})
    factor = next(f for f in node.factors if f.batched)
    assert factor.units == 4
    for batch, legal in ((1, False), (8, False), (16, True), (24, False), (32, True)):
        found = time_s(node, {"x": 32}, batch, traced=32)
        assert np.isfinite(found) == legal, batch
    assert np.isfinite(time_s(node, {}, 1, traced=32))


def test_values_without_work_take_no_time() -> None:
    parameter = next(
        n for n in nodes_of(lambda x, w: x @ w, spec(8, 16), spec(16, 32)) if n.leaves
    )
    assert parameter.kind is NodeKind.INPUT
    assert time_s(parameter, {}) == 0
