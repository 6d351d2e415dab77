"""What random programs found, small: it failed under the plans drawn here."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lts
from lts.mesh import MeshAxis
from lts.scattered import scatters_sums
from tests.random_plans import Verdict, judged
from tests.random_programs import Array, Op, Program

PLANS = 6


def program(*texts: str, **shapes: tuple[int, ...]) -> Program:
    """Arguments by name and shape; the results `r0`, `r1` ... of expressions.

    Scalars are integers.
    """
    ops = tuple(
        Op(kind="op", text=text, outs=(Array(name=f"r{i}", shape=(), dtype=""),))
        for i, text in enumerate(texts)
    )
    return Program(
        arguments=tuple(
            Array(name=name, shape=shape, dtype="float32" if shape else "int32")
            for name, shape in shapes.items()
        ),
        ops=ops,
        results=tuple(f"r{i}" for i in range(len(ops))),
    )


MADE = "jnp.linspace(-1.0, 1.0, 16).reshape(4, 2, 2)"
CONV = (
    f"lax.conv_general_dilated(r0, jnp.cos({MADE}), [2], 'SAME', "
    "dimension_numbers=('NCH', 'OIH', 'NCH'), batch_group_count=2)"
)
REDUCER = "lambda a, b: a + b - 0.1 * a * b"


@pytest.mark.parametrize(
    ("seed", "found"),
    [
        pytest.param(
            1,
            program(
                "jnp.linalg.solve(a @ a.mT + 4.0 * jnp.eye(4)[None], b)",
                a=(8, 4, 4),
                b=(8, 4, 2),
            ),
            id="the jaxprs of a linear solve are a named tuple",
        ),
        pytest.param(
            1,
            program(
                "jnp.tanh(x @ a)", "jnp.tanh(r0 @ b)", x=(6, 6), a=(6, 6), b=(6, 6)
            ),
            id="6 elements over two axes of 2 have no even parts",
        ),
        pytest.param(
            1,
            program("jnp.fft.fft(x).real", "r0 @ y", x=(8, 4), y=(4, 8)),
            id="a transform takes rows alone",
        ),
        pytest.param(
            6,
            program("x.at[i].set(y)", x=(8, 7, 2), y=(7, 2), i=()),
            id="an update of one index that lies on another device",
        ),
        pytest.param(
            0,
            program(MADE, CONV, "r0 + x", x=(4, 2, 2)),
            id="a convolution of arrays made inside, one of which meets a sharded one",
        ),
        pytest.param(
            0,
            program(
                "jnp.linspace(-1.0, 1.0, 4).reshape(2, 2)",
                f"lax.reduce(jnp.tanh(r0), 0.0, {REDUCER}, (0, 1))",
                "r0 + x",
                x=(2, 2),
            ),
            id="a sum of one's own of an array made inside",
        ),
    ],
)
def test_plans_compute_what_the_program_does(seed: int, found: Program) -> None:
    assert judged(found, seed, PLANS) == Verdict(outcome="right", plans=PLANS)


def test_sums_scatter_into_even_parts_only() -> None:
    """x leaves the dim after y's sum has come to it: for a while both split it."""
    axes = [MeshAxis(name=name, size=2, inside=True) for name in ("x", "y")]
    leaves, arrives = np.array([1, 2]), np.array([0, 1])  # 2: a partial sum of rank 1
    assert scatters_sums("dot_general", (8,), leaves, arrives, axes)
    assert not scatters_sums("dot_general", (6,), leaves, arrives, axes)
    assert scatters_sums("dot_general", (6,), np.array([0, 2]), arrives, axes)
    assert not scatters_sums("gather", (8,), leaves, arrives, axes)


def test_a_loop_that_returns_scalars_is_priced() -> None:
    xs, w = (jax.ShapeDtypeStruct(s, "float32") for s in ((4, 8, 16), (16, 16)))

    def losses(xs: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.map(lambda x: jnp.tanh(x @ w).sum(), xs)

    def total(xs: jax.Array, w: jax.Array) -> jax.Array:
        def step(loss: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
            return loss + jnp.tanh(x @ w).sum(), None

        return jax.lax.scan(step, 0.0, xs)[0]

    for function in (losses, total):
        (product,) = lts.trace(function, xs, w).ops
        assert (product.flops, product.trips) == (2 * 8 * 16 * 16, 4)
