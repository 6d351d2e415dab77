"""Updates at indices of sharded arrays: equal to the primitive's, and in place."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import lts
from lts.tracing import trace_program

MESH = jax.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
RNG = np.random.default_rng(0)
CACHE = RNG.normal(size=(8, 16, 4)).astype("float32")
NEW = RNG.normal(size=(8, 4)).astype("float32")
AT = np.array([0, 3, 15, 7, 8, 12, 16, -1], np.int32)  # one beyond, one from the end
TABLE = RNG.normal(size=(16, 4)).astype("float32")
IDS = np.array([[3, 3, 5, 15], [0, 9, 3, 20]], np.int32)
ROWS = RNG.normal(size=(2, 4, 4)).astype("float32")


def at_positions(cache: jax.Array, at: jax.Array, new: jax.Array) -> jax.Array:
    """A token per sequence, each at a position of its own."""
    return cache.at[jnp.arange(8), at].set(new)


def mapped(cache: jax.Array, at: jax.Array, new: jax.Array) -> jax.Array:
    """The same, as a batch of updates of slices."""
    update = jax.vmap(lambda c, n, i: lax.dynamic_update_slice(c, n[None], (i, 0)))
    return update(cache, new, at)


def clipped(cache: jax.Array, at: jax.Array, new: jax.Array) -> jax.Array:
    return cache.at[jnp.arange(8), at].set(new, mode="clip")


def rows(method: str, **how: Any) -> Callable[..., jax.Array]:
    def update(table: jax.Array, ids: jax.Array, new: jax.Array) -> jax.Array:
        return getattr(table.at[ids], method)(new, **how)

    return update


def small(table: jax.Array, ids: jax.Array, new: jax.Array) -> jax.Array:
    """With indices of one byte."""
    at = ids.astype("uint8")[..., None]
    numbers = lax.ScatterDimensionNumbers((2,), (0,), (0,))
    return lax.scatter_add(table, at, new, numbers)


CACHES = {"positions": at_positions, "mapped": mapped, "clipped": clipped}


def rematerialised(table: jax.Array, ids: jax.Array, new: jax.Array) -> jax.Array:
    return jax.checkpoint(rows("min", mode="clip"))(table, ids, new)


TABLES = {
    **{name: rows(name) for name in ("add", "multiply", "min", "max")},
    "subtract": rows("subtract"),
    "add, clipped": rows("add", mode="clip"),
    "small": small,
    "clipped, rematerialised": rematerialised,
}


def found(function: Callable[..., Any], args: Any, specs: Any) -> tuple[Any, lts.Plan]:
    state = next(iter(specs))
    plan = lts.price(function, args, mesh=MESH, specs=specs, state=state)
    return plan.apply(function)(*plan.device_put(args)), plan


def assert_kinds(plan: lts.Plan, function: Any, args: Any, kinds: set[str]) -> None:
    report = plan.verify(function, args)
    assert {row.kind for row in report.rows if row.emitted} == kinds
    assert report.ok, report.rows


@pytest.mark.parametrize("spec", [P("a"), P(None, "b"), P("a", "b"), P(None, "b", "a")])
@pytest.mark.parametrize("name", CACHES)
def test_a_token_is_written_where_its_position_lies(name: str, spec: P) -> None:
    args = (CACHE, AT, NEW)
    expected = CACHES[name](*map(jnp.asarray, args))
    result, plan = found(CACHES[name], args, {"cache": spec})
    np.testing.assert_array_equal(result, expected)
    assert result.sharding.spec[: len(spec)] == tuple(spec)


def test_a_batch_of_updates_passes_through() -> None:
    """Sequences, their positions and new tokens split alike: nothing is moved."""
    specs = {"cache": P("a", "b"), "at": P("a"), "new": P("a")}
    args = (CACHE, AT, NEW)
    result, plan = found(mapped, args, specs)
    np.testing.assert_array_equal(result, mapped(*map(jnp.asarray, args)))
    assert_kinds(plan, mapped, args, set())


@pytest.mark.parametrize("spec", [P("b"), P(("a", "b")), P("a", "b")])
@pytest.mark.parametrize("name", TABLES)
def test_rows_are_updated_where_they_lie(name: str, spec: P) -> None:
    args = (TABLE, IDS, ROWS)
    expected = TABLES[name](*map(jnp.asarray, args))
    result, plan = found(TABLES[name], args, {"table": spec})
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)
    if name == "add":
        assert_kinds(plan, TABLES[name], args, set())


@pytest.mark.parametrize("name", ["add", "subtract", "add, clipped"])
def test_sums_of_split_updates_are_added_up_once(name: str) -> None:
    """As in the gradient of an embedding with the batch split."""
    args = (TABLE, IDS, ROWS)
    specs = {"table": P(None, "b"), "ids": P("a"), "new": P("a")}
    result, plan = found(TABLES[name], args, specs)
    expected = TABLES[name](*map(jnp.asarray, args))
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)
    assert_kinds(plan, TABLES[name], args, {"all_reduce"})


def test_other_updates_are_whole() -> None:
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (TABLE, IDS, ROWS)]
    for name in ("multiply", "min", "max"):
        (op,) = trace_program(TABLES[name], shapes).graph.ops
        assert [factor.size for factor in op.factors] == [16, 4]
    (op,) = trace_program(TABLES["add"], shapes).graph.ops
    assert [factor.size for factor in op.factors] == [16, 4, 2, 4]
    assert [factor.reduction for factor in op.factors] == [False, False, True, True]
