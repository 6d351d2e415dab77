"""Our sharding rules against Shardy's, over all cases of `primitive_cases`."""

from collections.abc import Iterator

import pytest

from experiments.shardy_agreement import markdown, summary
from lts.shardy import Shardy, available
from lts.tracing.decide import DECIDE, rule_from_notation
from tests.tracing.primitive_cases import TracedCase, cases, traced
from tests.tracing.rule_verdicts import REASONS, Verdict, judge
from tests.tracing.xla_findings import xla_findings


@pytest.fixture(scope="module")
def shardy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shardy]:
    with Shardy(cache=tmp_path_factory.mktemp("shardy")) as started:
        if (why := available(started)) is not None:
            pytest.skip(why)
        yield started


@pytest.fixture(scope="module")
def programs() -> dict[str, TracedCase]:
    """Every case, by name."""
    return {case.name: traced(case) for case in cases()}


@pytest.fixture(scope="module")
def verdicts(shardy: Shardy, programs: dict[str, TracedCase]) -> list[Verdict]:
    return [judge(shardy, program) for program in programs.values()]


def test_there_are_several_cases_of_most_primitives() -> None:
    primitives = {case.primitive for case in cases()}
    assert len(primitives) >= 135
    assert len(cases()) >= 270
    assert {"dot_general", "gather", "conv_general_dilated", "fft"} <= primitives


def test_every_primitive_has_a_rule(verdicts: list[Verdict]) -> None:
    assert [v.name for v in verdicts if v.outcome == "no rule of ours"] == []


def test_every_rule_is_shardys_or_differs_for_a_listed_reason(
    verdicts: list[Verdict],
) -> None:
    unexplained = [v for v in verdicts if v.outcome == "unexplained"]
    assert [f"{v.name} {v.shapes}: {v.details}" for v in unexplained] == []


def test_most_cases_are_the_same(verdicts: list[Verdict]) -> None:
    same = [v for v in verdicts if v.outcome == "same"]
    assert len(same) >= 0.6 * len(verdicts)
    # what sharded inference lives on is the same without exception
    core = "dot_general transpose broadcast_in_dim gather reduce_sum sort top_k".split()
    assert {v.outcome for v in verdicts if v.primitive in core} == {"same"}


def test_reasons_have_names_of_their_own() -> None:
    assert len({reason.name for reason in REASONS}) == len(REASONS)


@pytest.mark.parametrize(
    "case, wrong, what",
    [
        ("sort-2", "(i, j) -> (i, j)", "array 0 dim 0: pass here, whole in Shardy"),
        (
            "dot_general-3",
            "(i, k), (l, j) -> (i, j)",
            "array 0 dim 1 and array 1 dim 0: apart here, linked in Shardy",
        ),
        (
            "transpose-1",
            "(i, j) -> (k, l)",
            "array 0 dim 0: reduction here, pass in Shardy",
        ),
        ("cholesky-1", "(i, j) -> (i, j)", "array 0 dim 1: pass here, whole in Shardy"),
        (
            "triangular_solve-1",
            "(i, k), (k, j) -> (i, j)",
            "array 0 dim 0: pass here, whole in Shardy",
        ),
        (
            "conv_general_dilated-2",
            "(n, c, h, w), (o, c, !p, !q) -> (n, o, h, w)",
            "array 0 dim 2: pass here, exchange in Shardy",
        ),
    ],
)
def test_a_wrong_rule_is_caught(
    case: str,
    wrong: str,
    what: str,
    shardy: Shardy,
    programs: dict[str, TracedCase],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = programs[case]
    assert judge(shardy, program).outcome in ("same", "different")
    monkeypatch.setitem(DECIDE, program.case.primitive, rule_from_notation(wrong))
    found = judge(shardy, program)
    assert found.outcome == "unexplained"
    assert what in found.details


def test_a_rule_that_is_too_strict_is_caught(
    shardy: Shardy, programs: dict[str, TracedCase], monkeypatch: pytest.MonkeyPatch
) -> None:
    strict = rule_from_notation("(!i, k), (k, j) -> (!i, j)")
    monkeypatch.setitem(DECIDE, "dot_general", strict)
    found = judge(shardy, programs["dot_general-3"])
    assert found.outcome == "unexplained"
    assert "array 0 dim 0: whole here, pass in Shardy" in found.details


LOOSER = [
    ("conv_general_dilated-4", "in 0 dim 1 = out 0 dim 1"),  # still window
    ("triangular_solve-1", "in 1 dim 1 = out 0 dim 1"),  # own form
    ("dynamic_update_slice-1", "in 0 dim 1 = out 0 dim 1"),  # update, one position
    ("dynamic_update_slice-2", "in 0 dim 0 = out 0 dim 0"),  # update, several
    ("igammac-1", "in 0 dim 0 = in 1 dim 0 = out 0 dim 0"),  # loop test
]


@pytest.mark.parametrize("case, places", LOOSER)
def test_xla_moves_nothing_where_ours_is_looser_than_shardy(
    case: str, places: str, programs: dict[str, TracedCase]
) -> None:
    found = {finding.places: finding for finding in xla_findings(programs[case])}
    assert found[places].claim == "pass"
    assert found[places].holds, found[places].collectives


def test_xla_sums_what_ours_calls_a_reduction(programs: dict[str, TracedCase]) -> None:
    found = {f.places: f for f in xla_findings(programs["dot_general-3"])}
    assert found["in 0 dim 1 = in 1 dim 0"].collectives == "all_reduce 768 B"
    assert 768 == 8 * 24 * 4  # the whole result
    assert found["in 0 dim 0 = out 0 dim 0"].collectives == ""


def test_a_false_claim_is_seen_by_xla(
    programs: dict[str, TracedCase], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DECIDE, "cumsum", rule_from_notation("(!i, j) -> (!i, j)"))
    (finding,) = xla_findings(programs["cumsum-2"])
    assert (finding.claim, finding.holds) == ("pass", False)
    assert finding.collectives == "all_gather 192 B"
    assert 192 == 8 * 6 * 4  # the whole operand


def test_the_report_counts_outcomes_and_reasons(
    shardy: Shardy, programs: dict[str, TracedCase]
) -> None:
    names = "dot_general-3", "rev-1", "rev-2"
    judged = [judge(shardy, programs[name]) for name in names]
    findings = list(xla_findings(programs["dot_general-3"]))
    found = summary(judged, findings)
    assert (found["primitives"], found["cases"]) == (2, 3)
    assert found["outcomes"] == {"different": 2, "same": 1}
    assert found["reasons"] == {"exchange": 2}
    assert found["xla"]["classes_of_dims"] == found["xla"]["claims_that_hold"] == 3
    lines = markdown(judged, findings).splitlines()
    shapes = "float32[8, 16], float32[16, 24] -> float32[8, 24]"
    assert f"| dot_general | {shapes} | same |  | rule |" in lines
