"""Time of one node, by hand."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lts.cost.roofline import node_time_s
from lts.cost.sharding import shard
from lts.graph import Node, NodeKind
from lts.hardware import Cluster
from lts.mesh import Degrees, MeshAxis
from lts.tracing import link_phases, trace_program

CLUSTER = Cluster.parse("h100:2x8")
CHIP = CLUSTER.chip
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
    traced = trace_program(function, args, batch_dims=batch_dims)
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
    return float(node_time_s(node, sharding, CLUSTER)[0, 0, 0])


@pytest.fixture(scope="module")
def product() -> Node:
    return nodes_of(lambda x, w: x @ w, spec(4096, 2048), spec(2048, 8192))[0]


def test_a_large_product_is_bound_by_arithmetic(product: Node) -> None:
    flops = 2 * 4096 * 2048 * 8192
    rate = CHIP.peak("bfloat16") * CHIP.matmul_efficiency
    assert time_s(product, {}) == pytest.approx(flops / rate + CHIP.op_launch_s)
    for factor in (4096, 2048, 8192):
        found = time_s(product, {"x": factor})
        assert found == pytest.approx(flops / 2 / rate + CHIP.op_launch_s)


def test_a_matrix_vector_product_is_bound_by_memory() -> None:
    op = nodes_of(lambda x, w: x @ w, spec(2, 4096), spec(4096, 8192))[0]

    def expected(x_ways: int, w_ways: int, out_ways: int) -> float:
        moved = 2 * (2 * 4096 / x_ways + 4096 * 8192 / w_ways + 2 * 8192 / out_ways)
        return moved / BANDWIDTH + CHIP.op_launch_s

    assert time_s(op, {}) == pytest.approx(expected(1, 1, 1))
    assert time_s(op, {"y": 8192}) == pytest.approx(expected(1, 4, 4))
    assert time_s(op, {"y": 4096}) == pytest.approx(expected(4, 4, 1))
    assert time_s(op, {"x": 2}) == pytest.approx(expected(2, 1, 2))


def test_a_dtype_without_matrix_units_runs_on_the_vector_unit() -> None:
    big = (spec(2048, 2048, dtype="int32"),) * 2
    integer = nodes_of(lambda x, w: x @ w, *big)[0]
    flops = 2 * 2048**3
    rate = CHIP.peak("float32") * CHIP.matmul_efficiency
    assert integer.dtype == "int32"
    assert time_s(integer, {}) == pytest.approx(flops / rate + CHIP.op_launch_s)


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
    result = 2 * 4096
    link = CLUSTER.intra
    latency = link.latency_s + 2 * link.hop_latency_s
    plain = kernel / BANDWIDTH + CHIP.op_launch_s
    assert time_s(value, {}) == pytest.approx(plain)
    local = 2 * (4096 * 2048 / 4 + 4096) / BANDWIDTH + CHIP.op_launch_s
    reduce = latency + 2 * (3 / 4) * result / link.bandwidth_bytes_per_s
    assert time_s(value, {"y": 2048}) == pytest.approx(local + reduce)
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

    def expected(batch: int) -> float:
        moved = 2 * (batch * 4096 + 4096 * 8192 + batch * 8192) / BANDWIDTH
        rate = CHIP.peak("bfloat16") * CHIP.matmul_efficiency
        math_s = 2 * batch * 4096 * 8192 / rate
        return max(moved, math_s) + CHIP.op_launch_s

    for batch in (1, 8, 32, 1024):
        assert time_s(op, {}, batch, traced=32) == pytest.approx(expected(batch))


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
    big = 4096
    rate = CHIP.peak("bfloat16") * CHIP.matmul_efficiency
    assert time_s(op, {}, big, traced=32) == pytest.approx(
        2 * big * 4096 * 8192 / rate + CHIP.op_launch_s
    )


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
