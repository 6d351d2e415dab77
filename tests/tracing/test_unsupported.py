"""Primitives without a rule, and rules of one's own."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.extend.core import Primitive

import lts
from lts.tracing import trace_program
from lts.tracing.decide import DECIDE, LOCAL


def spec(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


@pytest.fixture
def rules() -> Iterator[None]:
    """Gives back the rules that a test overwrites."""
    before, local = dict(DECIDE), dict(LOCAL)
    yield
    for table, old in ((DECIDE, before), (LOCAL, local)):
        table.clear()
        table.update(old)


unknown = Primitive("convolve_somehow")
unknown.def_abstract_eval(lambda x, k: x.update(shape=(2, 4, 8, 8)))


def convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return unknown.bind(x, kernel)


IMAGE, KERNEL = spec(2, 3, 8, 8), spec(4, 3, 5, 5)
NOTATION = "(n, c, !h, !w), (o, c, !kh, !kw) -> (n, o, !h, !w)"


def test_the_error_names_primitive_place_shapes_and_remedy() -> None:
    with pytest.raises(lts.UnsupportedOpError) as caught:
        lts.trace(convolve, IMAGE, KERNEL)
    message = str(caught.value)
    assert "'convolve_somehow' at test_unsupported.py:" in message
    assert "(float32[2, 3, 8, 8], float32[4, 3, 5, 5]) -> (float32[2, 4" in message
    assert "lts.register_rule('convolve_somehow', " in message
    assert isinstance(caught.value, NotImplementedError)


@pytest.mark.parametrize(
    ("primitive", "function"),
    [
        ("reduce", lambda x: lax.reduce(x, 0.0, lambda a, b: a + b * b, (1,))),
        (
            "reduce_window",
            lambda x: lax.reduce_window(
                x, 0.0, lambda a, b: a + b * b, (1, 2), (1, 2), "VALID"
            ),
        ),
    ],
)
def test_what_is_no_call_is_not_inlined(primitive: str, function) -> None:
    (op,) = lts.trace(function, spec(8, 16)).ops
    assert op.primitive == primitive


def test_unknown_primitives_can_be_replicated_and_are_noted() -> None:
    traced = trace_program(convolve, (IMAGE, KERNEL), on_unknown="replicate")
    (op,) = traced.graph.ops
    assert op.factors == ()
    assert sum(o.array.nbytes for o in op.operands) == 4 * (2 * 3 * 64 + 4 * 3 * 25)
    (note,) = traced.graph.notes
    assert "convolve_somehow at test_unsupported.py:" in note
    assert note.endswith("no rule, replicated")


def test_another_wish_for_unknown_primitives_is_refused() -> None:
    with pytest.raises(ValueError, match="on_unknown is 'skip'; use 'error'"):
        trace_program(convolve, (IMAGE, KERNEL), on_unknown="skip")


def test_a_registered_rule_is_used(rules: None) -> None:
    lts.register_rule("convolve_somehow", NOTATION)
    (op,) = lts.trace(convolve, IMAGE, KERNEL).ops
    assert {f.size: f.reduction for f in op.factors} == {2: False, 3: True, 4: False}


def test_a_registered_rule_goes_before_ours(rules: None) -> None:
    lts.register_rule("tanh", "(i, !j) -> (i, !j)")
    (op,) = lts.trace(jnp.tanh, spec(8, 16)).ops
    assert [f.size for f in op.factors] == [8]


def test_scalar_operands_have_empty_brackets(rules: None) -> None:
    lts.register_rule("reduce", "(i, k), () -> (i)")
    function = lambda x: lax.reduce(x, 0.0, lambda a, b: a + b * b, (1,))  # noqa: E731
    (op,) = lts.trace(function, spec(8, 16)).ops
    assert {f.size: f.reduction for f in op.factors} == {8: False, 16: True}


@pytest.mark.parametrize("notation", ["", "(i, j)", "i ->", "(i) -> (i) -> (i)"])
def test_notation_without_both_sides_is_refused(rules: None, notation: str) -> None:
    with pytest.raises(ValueError, match="cannot read the sharding rule"):
        lts.register_rule("tanh", notation)


@pytest.mark.parametrize(
    ("notation", "message"),
    [
        ("(i, j), (j, k) -> (i, k)", "has 2 operands, the equation 1"),
        ("(i, j) -> (i), (j)", "has 2 results, the equation 1"),
        ("(i) -> (i)", r"\['i'\] has 1 dims, the array \(8, 16\)"),
        ("(i, i) -> (i, i)", "'i' is 8 in one array and 16 in another"),
    ],
)
def test_notation_that_does_not_fit_the_equation_is_refused(
    rules: None, notation: str, message: str
) -> None:
    lts.register_rule("tanh", notation)
    with pytest.raises(ValueError, match=message):
        lts.trace(jnp.tanh, spec(8, 16))
