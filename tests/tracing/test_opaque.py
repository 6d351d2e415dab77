"""Kernels, foreign calls and callbacks: replicated with a note, or by a rule."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback, pallas
from jax.experimental.custom_partitioning import custom_partitioning

import lts
from lts.tracing.decide import DECIDE, LOCAL, rule_for
from lts.tracing.rules.opaque import opaque
from tests.tracing.forced import Forced
from tests.tracing.test_notation import equation


@pytest.fixture
def rules() -> Iterator[None]:
    """Gives back the rules that a test overwrites."""
    before, local = dict(DECIDE), dict(LOCAL)
    yield
    for table, old in ((DECIDE, before), (LOCAL, local)):
        table.clear()
        table.update(old)


def spec(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def scale_kernel(x_ref: Any, scale_ref: Any, out_ref: Any) -> None:
    out_ref[...] = x_ref[...] * scale_ref[...] + 1.0


def scale(x: jax.Array, row: jax.Array) -> jax.Array:
    """Rows in blocks of 2, by a kernel: [rows, columns] times [1, columns]."""
    rows, columns = x.shape
    return pallas.pallas_call(
        scale_kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(rows // 2,),
        in_specs=[
            pallas.BlockSpec((2, columns), lambda i: (i, 0)),
            pallas.BlockSpec((1, columns), lambda i: (0, 0)),
        ],
        out_specs=pallas.BlockSpec((2, columns), lambda i: (i, 0)),
        interpret=True,
        name="scale",
    )(x, row)


def total_kernel(x_ref: Any, out_ref: Any) -> None:
    out_ref[...] = jnp.sum(x_ref[...], axis=1)


def total(x: jax.Array) -> jax.Array:
    return pallas.pallas_call(
        total_kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape[:1], x.dtype),
        interpret=True,
        name="total",
    )(x)


X = jax.random.normal(jax.random.key(0), (32, 24))
ROW = jax.random.normal(jax.random.key(1), (1, 24))


def test_a_kernel_without_a_rule_is_replicated_at_a_price_that_shows() -> None:
    graph = lts.trace(scale, X, ROW)
    (op,) = graph.ops
    assert op.factors == ()
    moved = sum(o.array.nbytes for o in (*op.operands, *op.results))
    assert moved == 4 * (32 * 24 + 24 + 32 * 24)
    (note,) = graph.notes
    assert note.startswith("pallas_call:scale at test_opaque.py:")
    assert "every device runs all of it" in note
    assert "lts.register_rule('pallas_call:scale', '(i, k) -> (i, k)', local=" in note


def test_a_replicated_kernel_still_gives_the_unsharded_output() -> None:
    def step(x: jax.Array, row: jax.Array, w: jax.Array) -> jax.Array:
        return scale(x, row) @ w

    w = jax.random.normal(jax.random.key(2), (24, 40))
    forced = Forced(step, (X, ROW, w), {8: 40})
    np.testing.assert_allclose(forced()[0], step(X, ROW, w), rtol=1e-5, atol=1e-5)


def test_a_kernel_with_a_rule_runs_on_each_devices_part(rules: None) -> None:
    lts.register_rule("pallas_call", "(i, j), (u, j) -> (i, j)", local=scale)
    forced = Forced(scale, (X, ROW), {4: 32, 2: 24})
    (op,) = forced.graph.ops
    assert {f.size: f.reduction for f in op.factors} == {32: False, 24: False}
    assert forced.graph.notes == ()
    (found,) = forced()
    np.testing.assert_array_equal(found, scale(X, ROW))
    assert found.sharding.shard_shape(found.shape) == (8, 12)
    assert forced.collectives() == set()


def test_a_sum_that_a_rule_states_is_added_up_over_devices(rules: None) -> None:
    lts.register_rule("pallas_call", "(i, k) -> (i)", local=total)
    forced = Forced(total, (X,), {8: 24})
    (op,) = forced.graph.ops
    assert {f.size: f.reduction for f in op.factors} == {32: False, 24: True}
    np.testing.assert_allclose(forced()[0], total(X), rtol=1e-5, atol=1e-5)
    assert forced.collectives() == {"all-reduce"}


def test_a_local_function_that_disagrees_with_its_rule_is_refused(rules: None) -> None:
    lts.register_rule("pallas_call", "(i, k) -> (i)", local=lambda x: x)
    with pytest.raises(ValueError, match=r"returned arrays of shapes \[\(4, 24\)\]"):
        Forced(total, (X,), {8: 32})()


def test_a_rule_for_a_kernel_needs_a_local_function(rules: None) -> None:
    for key in ("pallas_call", "pallas_call:scale"):
        with pytest.raises(ValueError, match="needs local=: the kernel's grid"):
            lts.register_rule(key, "(i, j) -> (i, j)")


def test_a_rule_of_one_name_leaves_other_kernels_alone(rules: None) -> None:
    lts.register_rule("pallas_call:scale", "(i, j) -> (i, j)", local=scale)
    named = equation([(8, 4)], [(8, 4)], "pallas_call", name="scale")
    other = equation([(8, 4)], [(8, 4)], "pallas_call", name="total")
    assert rule_for(named) is DECIDE["pallas_call:scale"]
    assert rule_for(other) is opaque


def test_a_foreign_call_is_known_by_its_target(rules: None) -> None:
    lts.register_rule("ffi_call:scale_rows", "i j, i -> i j")

    def call(x: jax.Array, row: jax.Array) -> jax.Array:
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.ffi.ffi_call("scale_rows", shape)(x, row)

    jaxpr = jax.make_jaxpr(call)(spec(8, 4), spec(8))
    params = jaxpr.eqns[0].params
    eq = equation([(8, 4), (8,)], [(8, 4)], "ffi_call", **params)
    assert rule_for(eq) is DECIDE["ffi_call:scale_rows"]
    del DECIDE["ffi_call:scale_rows"]
    graph = lts.trace(call, spec(8, 4), spec(8))
    (note,) = graph.notes
    assert note.startswith("ffi_call:scale_rows at test_opaque.py:")


@pytest.mark.parametrize(
    ("primitive", "function"),
    [
        ("pure_callback", lambda x: jax.pure_callback(np.sin, x, x)),
        ("io_callback", lambda x: io_callback(np.sin, x, x)),
        (
            "custom_linear_solve",
            lambda x: jax.lax.custom_linear_solve(
                lambda y: 2.0 * y, x, lambda _, y: y / 2.0
            ),
        ),
    ],
)
def test_what_nobody_can_look_into_is_replicated_and_noted(
    primitive: str, function: Any
) -> None:
    graph = lts.trace(function, spec(8, 4))
    (op,) = graph.ops
    assert op.factors == ()
    assert f"{primitive} at test_opaque.py:" in graph.notes[0]


def test_a_debug_print_is_an_op_without_results() -> None:
    def noisy(x: jax.Array) -> jax.Array:
        jax.debug.print("{}", x)
        return x * 2.0

    (op,) = lts.trace(noisy, spec(8, 4)).ops
    assert op.results == ()
    assert op.operands[0].array.nbytes == 4 * 8 * 4


def partitioned(rule: Any, **sizes: Any) -> Any:
    @custom_partitioning
    def product(x: jax.Array, w: jax.Array) -> jax.Array:
        return x @ w

    product.def_partition(
        partition=lambda *args: None,
        infer_sharding_from_operands=lambda *args: None,
        sharding_rule=rule,
        **sizes,
    )
    return product


def custom_rule(function: Any) -> Any:
    (found,) = jax.make_jaxpr(function)(spec(8, 6), spec(6, 4)).eqns
    eq = equation([(8, 6), (6, 4)], [(8, 4)], found.primitive.name, **found.params)
    rule = rule_for(eq)
    assert rule is not None
    return rule(eq)


def test_a_custom_partitioning_has_the_rule_that_it_came_with() -> None:
    rule = custom_rule(partitioned("i k, k j -> i j", reduction_factors=("k",)))
    sums = rule.reductions() - rule.blocked
    assert [rule.sizes[f] for f in sums] == [6]
    assert rule.blocked == set()
    assert rule.operands[0][0] == rule.results[0][0]
    rule = custom_rule(partitioned("i k, k j -> i j", need_replication_factors=("k",)))
    assert [rule.sizes[f] for f in rule.blocked] == [6]


def test_a_custom_partitioning_without_a_readable_rule_is_opaque() -> None:
    rule = custom_rule(partitioned(lambda *args: "i k, k j -> i j"))
    assert len(rule.blocked) == len(rule.sizes) == 6
    assert "opaque" in rule.note
