"""Profiles as records and files."""

import dataclasses

import pytest

from lts.cost.profile import (
    MIDDLE,
    SCALARS,
    MemoryRule,
    Profile,
    from_dict,
    load,
    names,
    to_dict,
)


def test_every_number_field_but_counts_and_errors_is_a_scalar() -> None:
    numbers = [
        f.name for f in dataclasses.fields(Profile) if f.type in (float, "float")
    ]
    assert tuple(numbers) == SCALARS


def test_a_profile_survives_its_mapping() -> None:
    profile = Profile(name="x", gemm=1.5, memory=MemoryRule(fraction=0.8))
    assert from_dict(to_dict(profile)) == profile


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), "1"])
def test_a_scalar_that_is_no_positive_number_is_refused(value) -> None:
    with pytest.raises(ValueError, match="'x': step_s must be a positive number"):
        Profile(name="x", step_s=value)


def test_an_unknown_field_or_name_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown field 'speed'"):
        from_dict({"name": "x", "speed": 1.0})
    with pytest.raises(ValueError, match="unknown profile 'best'; there are: .*middle"):
        load("best")


def test_memory_rules_differ_in_what_the_fraction_is_of() -> None:
    whole = MemoryRule(fraction=0.9, other_bytes=3e9)
    assert whole.cache_bytes(80e9, 40e9) == pytest.approx(72e9 - 40e9 - 3e9)
    free = MemoryRule(fraction=0.9, of_free=True, other_bytes=2e9)
    assert free.cache_bytes(80e9, 40e9) == pytest.approx(0.9 * 38e9)
    assert whole.cache_bytes(40e9, 40e9) == 0


def test_shipped_profiles_are_of_engines_and_years_and_their_middle() -> None:
    assert {"trtllm-2025", "vllm-2025", "sglang-2025", MIDDLE} <= set(names())
    for name in names():
        profile = load(name)
        assert profile.name == name and profile.points > 0 and profile.source
        for scalar in ("gemm", "attention", "moe", "all_reduce", "prefill"):
            assert 0.2 < getattr(profile, scalar) < 5
    assert load() == load(MIDDLE)
