"""Updates of sharded arrays: equal to the primitive's, wherever they fall."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import lts
from lts.hlo import list_collectives
from lts.local_updates import PlainUpdate, UpdateForm, update_form

MESH = jax.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
RNG = np.random.default_rng(0)


def updated(spec: P, update: P, x: np.ndarray, new: np.ndarray, *starts: int):
    form = update_form(x.shape, new.shape, spec, update)
    assert form is not None

    def run(x: jax.Array, new: jax.Array, *starts: jax.Array) -> jax.Array:
        return form(MESH, None, (x, new, *starts), {})

    step = jax.jit(run, in_shardings=[NamedSharding(MESH, s) for s in (spec, update)]
                   + [NamedSharding(MESH, P())] * len(starts))  # fmt: skip
    return step, step(x, new, *map(jnp.int32, starts))


@pytest.mark.parametrize("size", [2, 3, 5, 8, 13, 15])
def test_every_place_gets_what_the_primitive_writes(size: int) -> None:
    """Windows below, at and across the parts of 4 positions that a device holds."""
    x, new = (RNG.normal(size=(n, 6)).astype("float32") for n in (16, size))
    form = update_form(x.shape, new.shape, P("b"), P())
    assert form is not None
    step = jax.jit(lambda x, new, at: form(MESH, None, (x, new, at, 0), {}))
    primitive = jax.jit(
        lambda x, new, at: lax.dynamic_update_slice(
            x, new, (at, 0), allow_negative_indices=False
        )
    )
    for at in map(np.int32, range(-2, 19)):  # beyond the ends it is clamped
        np.testing.assert_array_equal(step(x, new, at), primitive(x, new, at))


def test_two_sharded_dims_and_others_at_once() -> None:
    x = RNG.normal(size=(3, 8, 8, 4)).astype("float32")
    new = RNG.normal(size=(1, 3, 5, 4)).astype("float32")
    spec, update = P(None, "a", "b"), P()
    for starts in itertools.product((0, 2), (0, 3, 5), (0, 1, 3), (0,)):
        _, found = updated(spec, update, x, new, *starts)
        np.testing.assert_array_equal(found, lax.dynamic_update_slice(x, new, starts))


def test_two_axes_on_one_dim_and_one_that_passes_through() -> None:
    x = RNG.normal(size=(16, 4)).astype("float32")
    new = RNG.normal(size=(6, 4)).astype("float32")
    for at in (0, 1, 5, 10):
        _, found = updated(P(("a", "b")), P(), x, new, at, 0)
        np.testing.assert_array_equal(found, lax.dynamic_update_slice(x, new, (at, 0)))
        _, found = updated(P("b", "a"), P(None, "a"), x, new, at, 0)
        np.testing.assert_array_equal(found, lax.dynamic_update_slice(x, new, (at, 0)))


def test_no_device_asks_another() -> None:
    x, new = np.zeros((512, 64), "float32"), np.zeros((128, 64), "float32")
    step, _ = updated(P("b"), P(), x, new, 7, 0)
    text = step.lower(x, new, jnp.int32(7), jnp.int32(0)).compile().as_text()
    assert list_collectives(text, {"a": 2, "b": 4}) == []


def test_what_xla_does_well_is_left_to_it() -> None:
    for sizes, spec, update in (
        ((8, 1), P(None, "b"), P()),
        ((8, 16), P("a", "b"), P("a", "b")),
        ((8, 4), P("a"), P("a")),
    ):
        plain = update_form((8, 16), sizes, spec, update)
        assert plain == PlainUpdate(update=update)
    found = update_form((8, 16), (8, 4), P("a", ("b",)), P("a"))
    assert isinstance(found, UpdateForm)
    assert found.dims == ((1, ("b",)),)


def test_a_plan_with_a_sharded_cache_gathers_nothing_to_write_a_prompt() -> None:
    def prefill(cache: jax.Array, new: jax.Array, at: jax.Array) -> jax.Array:
        return lax.dynamic_update_slice(cache, jnp.tanh(new), (0, at, 0))

    args = (
        RNG.normal(size=(2, 32, 4)).astype("float32"),
        RNG.normal(size=(2, 12, 4)).astype("float32"),
        np.int32(9),
    )
    plan = lts.price(prefill, args, mesh=MESH, specs={"cache": P(None, "b")})
    found = plan.apply(prefill)(*plan.device_put(args))
    np.testing.assert_allclose(found, prefill(*args), rtol=1e-6)
    report = plan.verify(prefill, args)
    assert report.ok
    assert report.reports[0].rows == ()


def test_what_is_written_lies_in_the_order_of_the_array() -> None:
    """Else XLA would transpose a whole cache for the sake of one new token."""

    def step(cache: jax.Array, x: jax.Array, w: jax.Array, at: jax.Array) -> jax.Array:
        new = jnp.einsum("bd,dgk->gbk", x, w).transpose(1, 0, 2)[:, :, None]
        return lax.dynamic_update_slice(cache, new, (0, 0, at, 0))

    shapes = ((8, 4, 16, 8), (8, 32), (32, 4, 8))
    args = (*(RNG.normal(size=s).astype("float32") for s in shapes), np.int32(5))
    plan = lts.price(step, args, mesh=MESH, specs={"cache": P("b", "a")})
    applied = plan.apply(step)
    text = jax.jit(applied).lower(*plan.device_put(args)).as_text()
    assert "@LayoutConstraint" in text
    found = applied(*plan.device_put(args))
    np.testing.assert_allclose(found, step(*args), rtol=1e-5)


def test_what_does_not_divide_is_written_all_the_same() -> None:
    x, new = np.zeros((6, 16), "float32"), np.ones((6, 4), "float32")
    form = update_form(x.shape, new.shape, P("b"), P("b"))
    traced = jax.make_jaxpr(lax.dynamic_update_slice)(x, new, (0, 3))
    (equation,) = (e for e in traced.eqns if e.primitive.name.endswith("_slice"))

    def run(x: jax.Array, new: jax.Array) -> jax.Array:
        return form(MESH, equation, (x, new, 0, 3), equation.params)

    found = jax.jit(run)(x, new)
    np.testing.assert_array_equal(found[:, 2:8].sum(0), [0, 6, 6, 6, 6, 0])
