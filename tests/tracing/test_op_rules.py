"""Decision ops: the factors of contractions, look-ups, sorts and updates."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import lts
from lts.graph import Node


def spec(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def only_op(function: Any, *args: Any) -> Node:
    (op,) = lts.trace(function, *args).ops
    return op


def factors(op: Node) -> dict[int, bool]:
    """By size (sizes differ in these tests): whether the factor is a reduction."""
    return {factor.size: factor.reduction for factor in op.factors}


def test_matmul_has_one_reduction_and_two_pass_through_factors() -> None:
    op = only_op(lambda x, w: x @ w, spec(8, 16), spec(16, 32))
    assert factors(op) == {8: False, 16: True, 32: False}
    assert op.flops == 2 * 8 * 16 * 32
    sizes = [f.size for f in op.factors]
    arrays = (*op.operands, *op.results)
    shapes = [[sizes[f] for f in a.factors if f is not None] for a in arrays]
    assert shapes == [[8, 16], [16, 32], [8, 32]]


def test_batched_contraction_keeps_its_batch_factor() -> None:
    def attend(q: jax.Array, k: jax.Array) -> jax.Array:
        return jnp.einsum("bqhd,bkhd->bhqk", q, k)

    op = only_op(attend, spec(2, 5, 3, 16), spec(2, 7, 3, 16))
    assert factors(op) == {2: False, 3: False, 5: False, 7: False, 16: True}
    assert op.flops == 2 * 2 * 5 * 7 * 3 * 16


def test_factors_of_extent_one_are_left_out() -> None:
    op = only_op(lambda x, w: x @ w, spec(1, 16), spec(16, 32))
    assert factors(op) == {16: True, 32: False}


def test_embedding_lookup_sums_over_the_vocabulary() -> None:
    def look_up(table: jax.Array, ids: jax.Array) -> jax.Array:
        return jnp.take(table, ids, axis=0, mode="clip")

    op = only_op(look_up, spec(128, 16), spec(4, 8, dtype="int32"))
    assert op.primitive == "gather"
    assert factors(op) == {128: True, 16: False, 4: False, 8: False}
    assert op.flops == 0


def test_look_up_of_part_of_a_row_must_have_rows_whole() -> None:
    dims = lax.GatherDimensionNumbers(
        offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0, 1)
    )

    def look_up(table: jax.Array, where: jax.Array) -> jax.Array:
        return lax.gather(table, where, dims, slice_sizes=(1, 4))

    op = only_op(look_up, spec(128, 16), spec(8, 2, dtype="int32"))
    assert factors(op) == {128: True, 8: False}


def test_take_along_axis_keeps_the_other_dims() -> None:
    def pick(x: jax.Array, ids: jax.Array) -> jax.Array:
        return jnp.take_along_axis(x, ids, axis=1)

    op = only_op(pick, spec(8, 16), spec(8, 3, dtype="int32"))
    assert factors(op)[8] is False
    assert factors(op)[16] is True


def test_sort_blocks_the_sorted_dim_only() -> None:
    assert factors(only_op(lambda x: jnp.sort(x, axis=0), spec(8, 16))) == {16: False}
    assert factors(only_op(lambda x: jnp.sort(x, axis=1), spec(8, 16))) == {8: False}


def test_argsort_sorts_values_and_places_alike() -> None:
    op = only_op(lambda x: jnp.argsort(x, axis=1), spec(8, 16))
    assert factors(op) == {8: False}
    assert all(operand.factors == (0, None) for operand in op.operands)
    assert all(result.factors == (0, None) for result in op.results)


def test_top_k_blocks_what_it_searches_and_what_it_returns() -> None:
    op = only_op(lambda x: lax.top_k(x, 4), spec(8, 16))
    assert factors(op) == {8: False}
    assert [result.factors for result in op.results] == [(0, None)] * 2


@pytest.mark.parametrize("method", ["set", "add", "multiply", "min", "max", "subtract"])
def test_scatter_shards_all_of_an_array_and_updates_that_are_added(
    method: str,
) -> None:
    def update(x: jax.Array, ids: jax.Array, new: jax.Array) -> jax.Array:
        return getattr(x.at[ids], method)(new)

    op = only_op(update, spec(128, 16), spec(8, dtype="int32"), spec(8, 16))
    assert op.primitive.startswith("scatter")
    sums = {8: True} if method in ("add", "subtract") else {}
    assert factors(op) == {128: False, 16: False} | sums
    assert op.operands[0].factors == op.results[0].factors == (0, 1)
    assert op.operands[2].factors == ((2 if sums else None), 1)


def test_scatter_keeps_a_dim_whole_along_which_windows_may_straddle() -> None:
    def update(x: jax.Array, at: jax.Array, new: jax.Array) -> jax.Array:
        write = jax.vmap(lambda c, i, n: lax.dynamic_update_slice(c, n, (i, 0)))
        return write(x, at, new)

    op = only_op(update, spec(8, 32, 6), spec(8, dtype="int32"), spec(8, 4, 6))
    assert op.primitive == "scatter"
    assert factors(op) == {8: False, 6: False}
    assert [o.factors for o in op.operands] == [(0, None, 1), (0, None), (0, None, 1)]


def test_a_blocked_dim_of_an_operand_blocks_the_factor_of_the_op() -> None:
    def half(x: jax.Array, w: jax.Array) -> jax.Array:
        return x[:, :16] @ w  # the slice cannot follow a sharding of 32

    op = only_op(half, spec(8, 32), spec(16, 64))
    assert factors(op) == {8: False, 64: False}


def test_units_of_an_operand_limit_the_op() -> None:
    def heads(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.einsum("bhd,hdk->bk", x.reshape(8, 4, 16), w)

    op = only_op(heads, spec(8, 64), spec(4, 16, 32))
    assert {f.size: f.units for f in op.factors} == {4: 4, 8: 8, 32: 32}


def test_dtype_is_that_of_the_first_operand() -> None:
    x, w = spec(8, 16, dtype="bfloat16"), spec(16, 32, dtype="bfloat16")

    def product(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.dot(x, w, preferred_element_type=jnp.float32)

    op = only_op(product, x, w)
    assert op.dtype == "bfloat16"
    assert op.operands[0].array.nbytes == 8 * 16 * 2
    assert op.results[0].array.nbytes == 8 * 32 * 4


def test_an_op_is_named_after_its_scope_else_its_line() -> None:
    def named(x: jax.Array, w: jax.Array) -> jax.Array:
        with jax.named_scope("mlp"):
            return x @ w

    op = only_op(named, spec(8, 16), spec(16, 32))
    assert op.name == "mlp"
    op = only_op(lambda x, w: x @ w, spec(8, 16), spec(16, 32))
    assert op.name.startswith("test_op_rules.py:")
    assert op.source.startswith("test_op_rules.py:")


def test_ops_of_one_name_are_numbered() -> None:
    def twice(x: jax.Array, w: jax.Array) -> jax.Array:
        for _ in range(2):
            with jax.named_scope("layer"):
                x = x @ w
        return x

    graph = lts.trace(twice, spec(8, 16), spec(16, 16))
    assert [op.name for op in graph.ops] == ["layer", "layer#2"]
