"""Values: which arrays share a layout, what is blocked, and which arrays are edges."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import lts
from lts.graph import Node, NodeKind, OpGraph
from lts.tracing import link_phases, trace_program


def spec(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def sizes(node: Node) -> list[tuple[int, int]]:
    return [(factor.size, factor.units) for factor in node.factors]


def value(function: Any, *args: Any) -> Node:
    (node,) = lts.trace(function, *args).values
    return node


def joins(graph: OpGraph) -> list[tuple[str, str]]:
    names = [node.name for node in graph.nodes]
    return [(names[edge.source], names[edge.target]) for edge in graph.edges]


def test_elementwise_results_share_the_operands_layout() -> None:
    node = value(lambda x: jnp.tanh(x) * 2 + jnp.exp(x), spec(8, 16))
    assert sizes(node) == [(16, 16), (8, 8)] or sizes(node) == [(8, 8), (16, 16)]
    assert [leaf.path for leaf in node.leaves] == ["0", "out"]
    assert [leaf.is_output for leaf in node.leaves] == [False, True]


def test_a_transpose_exchanges_dims_of_one_value() -> None:
    node = value(lambda x: jnp.transpose(x, (2, 0, 1)), spec(2, 3, 4))
    argument, result = node.leaves
    a, b, c = argument.factors
    assert result.factors == (c, a, b)


def test_a_split_dim_is_sharded_in_units_of_its_major_part() -> None:
    node = value(lambda x: x.reshape(8, 4, 3), spec(8, 12))
    assert sorted(sizes(node)) == [(8, 8), (12, 4)]
    assert node.leaves[1].factors == (*node.leaves[0].factors, None)


def test_a_merge_is_a_split_read_backwards() -> None:
    node = value(lambda x: x.reshape(8, 12), spec(8, 4, 3))
    assert sorted(f.units for f in node.factors) == [4, 8]
    first, second, third = node.leaves[0].factors
    assert third is None
    assert node.leaves[1].factors == (first, second)


def test_regrouped_dims_keep_their_common_divisor() -> None:
    node = value(lambda x: x.reshape(4, 6), spec(6, 4))
    assert [factor.units for factor in node.factors] == [2]
    assert node.leaves[0].factors == node.leaves[1].factors == (0, None)


def test_coprime_major_parts_cannot_be_sharded() -> None:
    graph = lts.trace(lambda x: x.reshape(3, 5), spec(5, 3))
    assert [node.factors for node in graph.values] == [(), ()]


def test_dims_of_extent_one_come_and_go_freely() -> None:
    node = value(lambda x: x.reshape(8, 1, 16)[:, 0], spec(1, 8, 16))
    assert sorted(sizes(node)) == [(8, 8), (16, 16)]


def test_concatenated_split_padded_and_reversed_dims_are_whole() -> None:
    for function in (
        lambda x: jnp.concatenate([x, x], axis=1),
        lambda x: jnp.split(x, 4, axis=1),
        lambda x: jnp.pad(x, ((0, 0), (1, 2))),
        lambda x: jnp.flip(x, axis=1),
        lambda x: jnp.roll(x, 3, axis=1),
        lambda x: x[:, 2:10],
        lambda x: x[:, ::2],
        lambda x: jnp.tile(x, (1, 2)),
    ):
        assert sizes(value(function, spec(8, 16))) == [(8, 8)], function


def test_a_stack_has_one_dim_more_that_is_whole() -> None:
    node = value(lambda x: jnp.stack([x, -x], axis=1), spec(8, 16))
    first, second = node.leaves[0].factors
    assert node.leaves[1].factors == (first, None, second)


def test_rotary_halves_block_the_head_and_nothing_else() -> None:
    def rotate(x: jax.Array, w: jax.Array) -> jax.Array:
        x = jnp.einsum("bsd,dhk->bshk", x, w)
        left, right = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([-right, left], axis=-1)

    graph = lts.trace(rotate, spec(2, 8, 64), spec(64, 4, 16))
    (op,) = graph.ops
    assert sorted(f.size for f in op.factors) == [2, 4, 8, 64]
    weight = graph.node("1")
    assert sorted(f.size for f in weight.factors) == [4, 16, 64]


def test_picking_one_position_leaves_the_others_free() -> None:
    graph = lts.trace(lambda x: (x[:, -1], jnp.tanh(x)), spec(2, 8, 16))
    stream = graph.node("0")
    assert sorted(f.size for f in stream.factors) == [2, 8, 16]
    (edge,) = graph.edges
    assert edge.target_factors[1] is None  # the position must be reachable everywhere


def test_a_row_statistic_that_comes_back_is_free() -> None:
    def norm(x: jax.Array) -> jax.Array:
        return x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True))

    graph = lts.trace(norm, spec(8, 16))
    (node,) = graph.values
    assert graph.edges == ()
    (reduction,) = node.reductions
    assert [node.factors[f].size for f in reduction.reduced] == [16]
    assert reduction.array.shape in ((8,), (8, 1))


def test_a_bias_is_a_value_of_its_own_with_an_edge() -> None:
    def add(x: jax.Array, bias: jax.Array) -> jax.Array:
        return x + lax.expand_dims(bias, (0,))

    graph = lts.trace(add, spec(8, 16), spec(16))
    assert joins(graph) == [("1", "0")]
    (edge,) = graph.edges
    target = graph.node("0")
    dim = [j for j in edge.target_factors if j is not None]
    assert [target.factors[j].size for j in dim] == [16]


def test_an_outer_sum_meets_both_operands() -> None:
    def outer(a: jax.Array, b: jax.Array) -> jax.Array:
        return lax.expand_dims(a, (1,)) + lax.expand_dims(b, (0,))

    graph = lts.trace(outer, spec(8), spec(16))
    assert joins(graph) == [("0", "out"), ("1", "out")]
    assert sorted(f.size for f in graph.node("out").factors) == [8, 16]


def test_a_value_added_to_its_own_transpose_must_be_whole() -> None:
    assert sizes(value(lambda x: x + x.T, spec(16, 16))) == []


def test_a_product_with_itself_has_two_edges_from_one_value() -> None:
    graph = lts.trace(lambda x: x @ x, spec(16, 16))
    (op,) = graph.ops
    assert [e.source for e in graph.edges if e.target == op.index] == [1, 1]
    assert len({e.tensor for e in graph.edges if e.target == op.index}) == 1
    assert len(op.factors) == 3
    assert [f.reduction for f in op.factors].count(True) == 1


def test_tied_weights_are_one_value_that_both_ends_use() -> None:
    def tied(table: jax.Array, ids: jax.Array) -> jax.Array:
        x = jnp.take(table, ids, axis=0, mode="clip")
        return jnp.einsum("bd,vd->bv", jnp.tanh(x), table)

    graph = lts.trace(tied, spec(128, 16), spec(8, dtype="int32"))
    table = graph.node("0")
    targets = [e.target for e in graph.edges if e.source == table.index]
    assert targets == [op.index for op in graph.ops]
    assert len(targets) == 2


def test_arrays_that_depend_on_no_argument_are_no_nodes() -> None:
    def masked(x: jax.Array) -> jax.Array:
        places = jnp.arange(16)
        mask = lax.expand_dims(places, (0,)) <= lax.expand_dims(places, (1,))
        return jnp.where(mask, x, -jnp.inf)

    graph = lts.trace(masked, spec(16, 16))
    assert [node.name for node in graph.nodes] == ["0"]
    assert graph.edges == ()
    assert graph.replicated_bytes == 0


def test_a_cache_and_its_update_are_one_value_that_the_update_meets() -> None:
    def step(cache: jax.Array, new: jax.Array, at: jax.Array) -> jax.Array:
        return lax.dynamic_update_slice(cache, new, (0, at, 0))

    args = spec(4, 32, 16), spec(4, 1, 16), spec(dtype="int32")
    graph = lts.trace(step, *args)
    assert joins(graph) == [("1", "0")]
    cache = graph.node("0")
    assert [leaf.path for leaf in cache.leaves] == ["0", "out"]
    assert sorted(f.size for f in cache.factors) == [4, 16, 32]
    (edge,) = graph.edges
    met = [None if j is None else cache.factors[j].size for j in edge.target_factors]
    assert met == [4, 16]  # time, of which it covers one position, is no dim of it
    (kernel,) = cache.kernels
    assert [array.nbytes for array, _ in kernel.arrays] == [4 * 16 * 4] * 2
    for _, factors in kernel.arrays:  # factors of the cache, not of the update
        named = [None if f is None else cache.factors[f].size for f in factors]
        assert named == [4, None, 16]


def test_an_update_of_a_fresh_array_makes_a_value() -> None:
    def step(new: jax.Array) -> jax.Array:
        return lax.dynamic_update_slice(jnp.zeros((8, 16)), new, (0, 0))

    graph = lts.trace(step, spec(8, 4))
    assert joins(graph) == [("0", "out")]


def test_a_chain_of_elementwise_work_is_one_kernel() -> None:
    def chain(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(jnp.exp(x @ w) * 2 + 1)

    graph = lts.trace(chain, spec(8, 16), spec(16, 32))
    (op,) = graph.ops
    out = next(n for n in graph.values if n.kind is NodeKind.ACTIVATION)
    (kernel,) = out.kernels
    assert [array.shape for array, _ in kernel.arrays] == [(8, 32), (8, 32)]
    assert kernel.trips == 1


def test_casts_alone_cost_nothing() -> None:
    assert value(lambda x: x.astype("bfloat16"), spec(8, 16)).kernels == ()


def test_attention_scores_stay_in_registers() -> None:
    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        shares = jax.nn.softmax(q @ k.T, axis=-1)
        return shares @ v

    graph = lts.trace(attend, spec(8, 16), spec(32, 16), spec(32, 16))
    scores, out = graph.ops
    assert [r.streamed for r in scores.results] == [False]
    assert [o.streamed for o in out.operands] == [False, True]
    held = graph.nodes[scores.results[0].value]
    assert held.kernels == ()
    assert len(held.reductions) == 2  # the maximum and the sum


def test_an_mlp_hidden_array_goes_through_memory() -> None:
    graph = lts.trace(
        lambda x, a, b: jnp.tanh(x @ a) @ b, spec(8, 16), spec(16, 32), spec(32, 16)
    )
    assert all(o.streamed for op in graph.ops for o in (*op.operands, *op.results))


def test_batch_dims_mark_all_tied_factors_and_arrays() -> None:
    traced = trace_program(
        lambda params, x: jnp.tanh(x.reshape(32, 16) @ params),
        (spec(16, 64), spec(8, 4, 16)),
        names=("params", "x"),
        batch_dims={"x": (0,)},
    )
    graph = link_phases({"step": traced.graph})["step"]
    (op,) = graph.ops
    assert {f.size: f.batched for f in op.factors} == {16: False, 32: True, 64: False}
    assert [o.array.batch_power for o in (*op.operands, *op.results)] == [1, 0, 1]
    assert graph.node("x").factors[0].units == 8


def test_batch_power_is_kept_where_the_batch_cannot_be_sharded() -> None:
    traced = trace_program(
        lambda x, w: jnp.flip(x, axis=0) @ w,
        (spec(8, 16), spec(16, 32)),
        batch_dims={"0": (0,)},
    )
    (op,) = traced.graph.ops
    assert not any(f.batched for f in op.factors)
    assert op.operands[0].array.batch_power == 1
