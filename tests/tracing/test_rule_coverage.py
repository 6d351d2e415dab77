"""Every primitive that public functions bind has a rule and a line in the docs."""

import re
from pathlib import Path

import jax
import pytest

from experiments.rule_coverage import (
    Found,
    asked,
    coverage,
    enumerate_primitives,
    kind_of,
)

PAGE = Path(__file__).parents[2] / "docs" / "primitives.md"
ROW = re.compile(r"\| `([^`]+)` \| ([^|]+) \| `[^|]*` \| [^|]+ \|")


@pytest.fixture(scope="module")
def found() -> Found:
    return enumerate_primitives(check_all=False)


def test_at_least_97_percent_of_the_primitives_have_a_rule(found: Found) -> None:
    primitives = asked(found)
    assert len(primitives) > 150
    assert coverage(found, primitives) >= 0.97
    assert coverage(found, sorted(found.functions)) >= 0.97


def test_no_function_that_was_traced_is_refused(found: Found) -> None:
    assert found.refused == {}


def test_few_functions_could_not_be_traced(found: Found) -> None:
    assert len(found.untraced) < 60
    for name, reason in found.untraced.items():
        assert reason.startswith(("a collective", "computes with", "reads or")), name


def test_the_page_lists_every_primitive_with_its_kind(found: Found) -> None:
    listed = {row[1]: row[2] for row in ROW.finditer(PAGE.read_text())}
    for primitive in found.functions:
        assert listed.get(primitive) == kind_of(primitive), (
            f"docs/primitives.md of jax {jax.__version__}: write it again with "
            "python -m experiments.rule_coverage"
        )
