"""What the tests of programs have in common: search, compile, run and compare."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lts
from tests.programs.program import Program

CLUSTER = lts.Cluster.parse("h100:1x8")


def searched(program: Program, *, method: str, budget: int) -> lts.Plan:
    """The plan of a program on one node of eight H100s."""
    return lts.search(
        program.function, program.args, cluster=CLUSTER, method=method, budget=budget
    )


def assert_close(found: Any, expected: Any, tolerance: float) -> None:
    """Two results, leaf by leaf, within a part of the leaf's largest element.

    Integers and infinities must be the same.
    """
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    for a, b in pairs:
        assert a.dtype == b.dtype and a.shape == b.shape
        if not jnp.issubdtype(b.dtype, jnp.floating):
            np.testing.assert_array_equal(a, b)
            continue
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        largest = np.abs(b[np.isfinite(b)]).max()
        # The floor is for leaves that are zero but for rounding.
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * largest + 1e-7)


def assert_same_outputs(plan: lts.Plan, program: Program, tolerance: float) -> None:
    """The program gives under the plan, on 8 devices, what it gives on one."""
    args = program.filled()
    expected = jax.jit(program.function)(*args)
    step = plan.apply(program.function, donate=program.donated)
    assert_close(step(*step.device_put(*args)), expected, tolerance)


def assert_compiles_as_predicted(plan: lts.Plan, program: Program) -> None:
    """XLA takes the plan, and its arguments have the bytes that were predicted."""
    (report,) = plan.verify(program.function, program.args).reports
    assert report.argument_bytes == report.predicted_argument_bytes
