"""Sharding rules as text: three ways to write one, and what is refused."""

import re
from typing import Any

import numpy as np
import pytest

from lts.tracing.decide import rule_from_notation
from lts.tracing.flatten import Equation, Tensor
from lts.tracing.op_rule import OpRule


def equation(ins: Any, outs: Any, primitive: str = "mystery", **params: Any):
    def tensors(shapes: Any) -> tuple[Tensor, ...]:
        return tuple(
            Tensor(index=i, shape=shape, dtype=np.dtype("float32"), is_local=False)
            for i, shape in enumerate(shapes)
        )

    return Equation(
        primitive=primitive,
        params=params,
        ins=tensors(ins),
        outs=tensors(outs),
        trips=1,
        path=(0,),
        name="",
        source="here.py:1",
    )


def laid(text: str, ins: Any, outs: Any) -> OpRule:
    return rule_from_notation(text)(equation(ins, outs))


MATMUL = ([(8, 2), (2, 4)], [(8, 4)])


@pytest.mark.parametrize(
    "text",
    [
        "(i, k), (k, j) -> (i, j)",
        "(i,k),(k,j)->(i,j)",
        "i k, k j -> i j",
        "([i, k], [k, j])->([i, j]) {i=8, j=4, k=2} reduction={k}",
        "#sdy.op_sharding_rule<([i, k], [k, j])->([i, j]) {i=8, k=2} reduction={k}>",
        "i k, k j -> i j reduction={k}",
    ],
)
def test_a_matrix_product_reads_alike_in_every_notation(text: str) -> None:
    rule = laid(text, *MATMUL)
    i, k, j = rule.operands[0][0], rule.operands[0][1], rule.operands[1][1]
    assert rule.operands == [[i, k], [k, j]]
    assert rule.results == [[i, j]]
    assert [rule.sizes[f] for f in (i, k, j) if f is not None] == [8, 2, 4]
    assert rule.reductions() - rule.blocked == {k}
    assert rule.blocked == set()


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("(!i, k), (k, j) -> (!i, j)", [8]),
        ("!i k, k j -> !i j", [8]),
        ("([i, k], [k, j])->([i, j]) reduction={k} need_replication={j}", [4]),
        ("([i, k], [k, j])->([i, j]) reduction={k} permutation={i}", [8]),
        ("([i, k], [k, j])->([i, j])", [2]),  # Shardy lists what is summed
        ("i k, k j -> i j reduction={}", [2]),
    ],
)
def test_factors_that_must_stay_whole(text: str, sizes: list[int]) -> None:
    rule = laid(text, *MATMUL)
    assert [rule.sizes[f] for f in sorted(rule.blocked)] == sizes


def test_leading_dims_are_the_same_index_in_all_arrays() -> None:
    rule = laid("... i, i -> ... i", [(5, 6, 7), (7,)], [(5, 6, 7)])
    assert rule.sizes == [5, 6, 7]
    assert rule.operands == [[0, 1, 2], [2]]
    assert rule.results == [[0, 1, 2]]


@pytest.mark.parametrize(
    "text", ["(i j) -> i j", "([ij])->([i, j]) {i=4, j=3}", "i j -> (i j)"]
)
def test_of_two_indices_on_one_dim_only_the_outer_may_be_split(text: str) -> None:
    shapes = [(4, 3)], [(12,)]
    ins, outs = shapes if text.startswith("i") else shapes[::-1]
    rule = laid(text, ins, outs)
    merged, split = (rule.operands, rule.results)[:: -1 if text[0] == "i" else 1]
    assert merged[0] == split[0][:1]
    assert [n for f, n in enumerate(rule.sizes) if f not in rule.blocked] == [4]


def test_a_scalar_has_no_dims() -> None:
    assert laid("(i), () -> (i)", [(8,), ()], [(8,)]).operands == [[0], []]
    assert laid("i, -> i", [(8,), ()], [(8,)]).operands == [[0], []]


@pytest.mark.parametrize(
    ("text", "what", "caret"),
    [
        ("(i, j)", "0 arrows '->', not one", 6),
        ("(i) -> (i) -> (i)", "2 arrows '->', not one", 11),
        ("(i, 2k) -> (i)", "'2k' is no name of a factor", 4),
        ("(i, j) x -> (i, j)", "stray 'x'", 7),
        ("i ... -> i", "'...' must come first", 2),
        ("(i j -> i j", "a bracket without its other half", 0),
        ("([I])->([I])", "'I' is no factor", 2),
        ("(i) -> (i) reduction={k}", "'k' is on no dim", 22),
        ("([i])->([i]) {i:8}", "a size is no 'name=number'", 13),
        ("i ->", "no result", 4),
    ],
)
def test_a_caret_stands_under_what_cannot_be_read(
    text: str, what: str, caret: int
) -> None:
    with pytest.raises(ValueError, match=re.escape(what)) as caught:
        rule_from_notation(text)
    first, shown, mark = str(caught.value).splitlines()
    assert "write operands and results as in '(i, k), (k, j) -> (i, j)'" in first
    assert shown == f"  {text}"
    assert mark.index("^") == caret + 2


def test_an_outer_index_without_a_size_is_refused() -> None:
    with pytest.raises(ValueError, match="give its size after the rule, as in '{i=4}'"):
        laid("(i j) -> (i j)", [(12,)], [(12,)])
