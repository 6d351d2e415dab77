"""Prices of a mixture of experts, against arithmetic written out for one layer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lts
from lts.cost.collective import collective_time_s
from lts.cost.dispatch import destination_rows, experts_touched
from lts.cost.memory import expert_bytes
from lts.cost.nodes import node_time_s
from lts.cost.pricing import Pricing
from lts.cost.profile import Profile
from lts.cost.sharding import shard
from lts.graph import EXPERTS as PRIMITIVE
from lts.graph import NodeKind
from lts.mesh import Degrees, MeshAxis
from lts.prepare import prepare_function
from lts.tracing import trace_program

BATCH, LENGTH, TOP_K, EXPERTS, WIDTH, HIDDEN = 256, 64, 8, 64, 2048, 1024
CLUSTER = lts.Cluster.parse("h100:2x8")
DEGREES = Degrees(
    stages=1,
    axes=(
        MeshAxis(name="x", size=2, inside=False),
        MeshAxis(name="y", size=8, inside=True),
    ),
)
# batch, sequence, experts, hidden, batch + experts, sequence + experts
NONE, ROWS, LENGTHS, PARTS, INNER, ROWS_AND_PARTS, LENGTHS_AND_PARTS = range(7)


@pytest.fixture(scope="module")
def graph():
    shape = jax.ShapeDtypeStruct
    tokens = BATCH, LENGTH

    def layer(x, weight, expert, gate, up, down):
        return lts.expert_ffn(x, weight, expert, gate, up, down)

    return lts.trace(
        layer,
        shape((*tokens, WIDTH), jnp.bfloat16),
        shape((*tokens, TOP_K), jnp.bfloat16),
        shape((*tokens, TOP_K), jnp.int32),
        shape((EXPERTS, WIDTH, HIDDEN), jnp.bfloat16),
        shape((EXPERTS, WIDTH, HIDDEN), jnp.bfloat16),
        shape((EXPERTS, HIDDEN, WIDTH), jnp.bfloat16),
    )


def sharding_of(node, *states: int):
    rows = np.array([states])
    return shard(node, rows, (DEGREES,), np.ones((1, 1), np.int64), 1)


def seconds(node, *states: int, skew: float = 1.0) -> float:
    pricing = Pricing(cluster=CLUSTER, skew=skew)
    return node_time_s(node, sharding_of(node, *states), pricing).item()


def compute_s(rows: float, touched: float, parts: int) -> float:
    """Grouped products of `rows`, experts split in `parts` of their hidden index."""
    chip, hidden = CLUSTER.chip, HIDDEN / parts
    math_s = rows * 3 * 2 * WIDTH * hidden / chip.achieved_flops_per_s("bfloat16")
    moved = touched * 3 * WIDTH * hidden * 2
    moved += rows * (2 * WIDTH + 4 * hidden) * 2
    return max(math_s, moved / chip.achieved_bytes_per_s) + 7 * chip.op_launch_s


def test_the_op_offers_tokens_and_experts_together(graph):
    (node,) = graph.ops
    assert node.primitive == PRIMITIVE
    assert [(f.size, f.reduction, f.both) for f in node.factors] == [
        (BATCH, False, None),
        (LENGTH, False, None),
        (EXPERTS, True, None),
        (HIDDEN, True, None),
        (EXPERTS, False, (0, 2)),
        (min(LENGTH, EXPERTS), False, (1, 2)),
    ]
    assert node.flops == 3 * 2 * BATCH * LENGTH * TOP_K * WIDTH * HIDDEN


def test_whole_experts_cost_their_padded_rows(graph):
    (node,) = graph.ops
    even = BATCH * LENGTH * TOP_K / EXPERTS  # 2048 rows an expert, a quarter more room
    assert seconds(node, NONE, NONE) == pytest.approx(
        compute_s(EXPERTS * 1.25 * even, EXPERTS, 1), rel=1e-9
    )


def test_tokens_and_experts_over_all_gpus_are_exchanged(graph):
    (node,) = graph.ops
    tokens = BATCH * LENGTH / 16
    rows = 16 * int(destination_rows(tokens, TOP_K, 16))
    there, back = rows * (WIDTH + 3 * TOP_K) * 2, rows * WIDTH * 2
    group = np.array(8), np.array(2)
    exchange_s = sum(
        float(
            collective_time_s(kind, np.array(nbytes), *group, Pricing(cluster=CLUSTER))
        )
        for kind, nbytes in (
            ("all_to_all", there),
            ("all_to_all", back),
            ("all_reduce", 4.0),
        )
    )
    exchange_s += 2 * (there + back) / CLUSTER.chip.achieved_bytes_per_s
    own = tokens * 16 * TOP_K / 16  # pairs that fall on the experts of one GPU
    computed = compute_s(1.25 * own, EXPERTS / 16, 1)
    assert seconds(node, ROWS_AND_PARTS, ROWS_AND_PARTS) == pytest.approx(
        exchange_s + computed, rel=1e-9
    )
    # positions of the sequence travel like requests
    both = seconds(node, ROWS_AND_PARTS, LENGTHS_AND_PARTS)
    assert both == pytest.approx(exchange_s + computed, rel=1e-9)


def test_experts_by_sum_see_all_tokens_of_their_group(graph):
    (node,) = graph.ops
    own = BATCH * LENGTH / 2 * TOP_K / 8  # tokens over x, experts over y
    expected = compute_s(1.25 * own, EXPERTS / 8, 1)
    assert seconds(node, ROWS, PARTS) == pytest.approx(expected, rel=1e-9)


def test_parts_of_experts_share_their_weights_and_not_their_rows(graph):
    (node,) = graph.ops
    rows = 1.25 * BATCH * LENGTH / 2 * TOP_K
    expected = compute_s(rows, EXPERTS, 8)
    assert seconds(node, ROWS, INNER) == pytest.approx(expected, rel=1e-9)


def test_few_tokens_read_the_weights_of_few_experts(graph):
    assert experts_touched(8.0, 64) == pytest.approx(64 * (1 - (63 / 64) ** 8))
    assert experts_touched(8.0, 64) < 8  # and not all 64 of them


def test_skew_loads_the_busiest_device(graph):
    (node,) = graph.ops
    even = seconds(node, ROWS_AND_PARTS, ROWS_AND_PARTS)
    assert seconds(node, ROWS_AND_PARTS, ROWS_AND_PARTS, skew=1.0) == even
    # Twice the even share takes a second round and twice the products.
    assert seconds(node, ROWS_AND_PARTS, ROWS_AND_PARTS, skew=2.0) > 1.7 * even
    whole = seconds(node, NONE, NONE)
    assert seconds(node, NONE, NONE, skew=2.0) == whole  # nobody is busier than all


def test_buffers_of_the_exchange_take_memory(graph):
    (node,) = graph.ops

    def held(*states: int) -> float:
        found = expert_bytes(node, sharding_of(node, *states))
        assert found is not None
        return found.item()

    tokens = BATCH * LENGTH / 16
    rows = 16 * int(destination_rows(tokens, TOP_K, 16))
    exchanged = rows * (2 * WIDTH + 3 * TOP_K) * 2
    grouped = 1.25 * tokens * TOP_K * (WIDTH + 2 * HIDDEN) * 2
    assert held(ROWS_AND_PARTS, ROWS_AND_PARTS) == pytest.approx(
        exchanged + grouped, rel=1e-9
    )
    assert [moment.experts for moment in graph.moments] == [node.index]


def test_ways_that_do_not_divide_are_repaired_outermost_first():
    """24 GPUs, 128 experts: three nodes cannot split them, eight GPUs can."""
    shape = jax.ShapeDtypeStruct

    def layer(x, weight, expert, up, down):
        return lts.expert_ffn(x, weight, expert, None, up, down)

    args = (
        shape((48, WIDTH), jnp.bfloat16),
        shape((48, 1), jnp.bfloat16),
        shape((48, 1), jnp.int32),
        shape((128, WIDTH, 64), jnp.bfloat16),
        shape((128, 64, WIDTH), jnp.bfloat16),
    )
    prepared = prepare_function(layer, args, {}, lts.Cluster.parse("h100:3x8"))
    space = prepared.space
    (number,) = (
        i for i, v in enumerate(space.variables) if v.factors and v.factors[-1].both
    )
    names = [f.name for f in space.variables[number].factors]
    pair = 1 + next(i for i, f in enumerate(space.variables[number].factors) if f.both)
    base = 1 + len(names)
    code = sum(pair * base**axis for axis in range(space.num_axes))
    states = space.choice_states(number)[space.repaired[number][0, code]]
    kept = [int(n) for n, on in zip(space.sizes[0], states, strict=True) if on]
    assert np.prod(kept) == 8 and 3 not in kept


def test_engines_read_experts_of_few_bits_as_they_are():
    """A decode step reads weights: a quarter of the bytes is much of the time."""
    shape, engine = (
        jax.ShapeDtypeStruct,
        Pricing(cluster=CLUSTER, engine=Profile(), one_byte="w8"),
    )

    def layer_s(dtype: str) -> float:
        tokens = 32, 1
        weights = [(64, 4096, 2048), (64, 4096, 2048), (64, 2048, 4096)]

        def layer(x, weight, expert, *matrices):
            wide = (matrix.astype(jnp.bfloat16) for matrix in matrices)
            return lts.expert_ffn(x, weight, expert, *wide)

        arguments = [
            shape((*tokens, 4096), jnp.bfloat16),
            shape((*tokens, TOP_K), jnp.bfloat16),
            shape((*tokens, TOP_K), jnp.int32),
            *(shape(size, dtype) for size in weights),
        ]
        kinds = {str(number): NodeKind.PARAMETER for number in (3, 4, 5)}
        traced = trace_program(
            layer, arguments, kinds=lambda path: kinds.get(path, NodeKind.INPUT)
        )
        (op,) = traced.graph.ops
        return node_time_s(op, sharding_of(op, 0, 0), engine).item()

    whole, one_byte, half = map(layer_s, ("bfloat16", "float8_e4m3fn", "int4"))
    assert half < one_byte < whole
    assert 0.25 * whole <= half < 0.45 * whole
