"""Random programs, traced, planned at random, applied: results are those of one device.

The long run, with other programs, is `experiments/random_programs.py`.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from lts.tracing.decide import DECIDE
from tests import random_plans
from tests.random_maker import RandomDraw, random_program
from tests.random_plans import Verdict, expected_results, judged, primitives
from tests.random_programs import Array, Op, Program
from tests.random_regions import OPS
from tests.random_shrink import shrunk, tidied

PROGRAMS = 24


class HypothesisDraw:
    """Numbers that hypothesis draws, and shrinks."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw

    def below(self, stop: int) -> int:
        """A number in `[0, stop)`."""
        return self.draw(st.integers(0, stop - 1))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Programs of 3 to 30 ops."""
    return random_program(HypothesisDraw(draw), OPS)


@settings(
    max_examples=PROGRAMS,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(program=programs(), seed=st.integers(0, 1000))
def test_every_plan_computes_what_the_program_does(program: Program, seed: int) -> None:
    note(program.text)
    verdict = judged(program, seed, plans=2)
    assert verdict.outcome in ("right", "nothing"), verdict


def program_of(number: int) -> Program:
    return random_program(RandomDraw(7, number), OPS)


def test_a_seed_gives_one_program_whose_text_runs_alone() -> None:
    program, again = program_of(0), program_of(0)
    assert program.text == again.text != program_of(1).text
    assert len(program.ops) >= 3
    found: dict[str, Any] = {}
    exec(program.text, found)
    results = found["program"](*program.filled(3))
    assert len(results) == len(program.results)
    for result, expected in zip(results, expected_results(again, 3), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


SHAPE = {"shape": (8, 4), "dtype": "float32"}
X, Y, Z, W = (Array(name=name, **SHAPE) for name in ("a1", "v2", "v3", "v4"))
SMALL = Program(
    arguments=(X,),
    ops=(
        Op(kind="tanh", text="jnp.tanh(a1)", outs=(Y,)),
        Op(kind="sort", text="jnp.sort(v2, axis=0)", outs=(Z,)),
        Op(kind="sum", text="v3 + 0.5 * v2", outs=(W,)),
    ),
    results=("v4", "v3"),
)


def test_primitives_are_counted_with_those_of_inner_functions() -> None:
    assert primitives(SMALL) == {"tanh": 1, "jit": 1, "sort": 1, "mul": 1, "add": 1}


def test_the_judge_tells_right_from_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(SMALL, 0) == Verdict(outcome="right", plans=2)

    def others(program: Program, seed: int) -> list[np.ndarray]:
        w, z = expected_results(program, seed)
        return [w, z + 0.01]

    monkeypatch.setattr(random_plans, "expected_results", others)
    verdict = judged(SMALL, 0)
    assert (verdict.outcome, verdict.plans) == ("wrong", 0)
    assert verdict.message.startswith("Mismatch: result 1: off by 0.01 of")


def test_the_judge_tells_errors_of_lts_from_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(error: Exception) -> Verdict:
        def raises(*_: Any) -> None:
            raise error

        monkeypatch.setattr(random_plans, "check_plan", raises)
        return judged(SMALL, 0)

    # A program that lts traced must run: whatever the type, this is no named error.
    assert fails(KeyError("v2")).outcome == "crash"
    assert fails(ValueError("shapes 3 and 4")).head == "ValueError: shapes  and "
    assert fails(ValueError("shapes 3 and 4")).outcome == "crash"


def test_a_primitive_without_a_rule_is_a_named_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(DECIDE, "sort")
    found = judged(SMALL, 0)
    assert (found.outcome, found.plans) == ("named", 0)
    assert found.head == "UnsupportedOpError: no sharding rule for primitive 'sort' at"


def test_what_nothing_shards_is_no_plan() -> None:
    scalar = replace(X, shape=())
    op = Op(kind="tanh", text="jnp.tanh(a1)", outs=(replace(Y, shape=()),))
    program = Program(arguments=(scalar,), ops=(op,), results=("v2",))
    assert judged(program, 0).outcome == "nothing"


def test_a_shrunk_program_is_the_op_that_fails() -> None:
    found = shrunk(SMALL, lambda program: "sort" in program.text)
    assert [op.kind for op in found.ops] == ["sort"]
    assert found.results == ("v3",)
    assert [array.name for array in found.arguments] == ["v2"]
    (z,) = found.function(jnp.asarray([[2.0], [1.0]] * 4))
    assert z[:, 0].tolist() == [1.0] * 4 + [2.0] * 4
    whole = tidied(replace(SMALL, results=("v3",)))  # the sum is needed by nothing
    assert [op.kind for op in whole.ops] == ["tanh", "sort"]
