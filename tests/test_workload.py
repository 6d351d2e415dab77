"""Workload: derived quantities, what is refused, and the dict form."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lts.workload import Workload

LIMITS = st.none() | st.floats(min_value=1e-3, max_value=1e9) | st.integers(1, 10**9)
WORKLOADS = st.builds(
    Workload,
    input_len=st.integers(1, 10**7),
    output_len=st.integers(0, 10**7),
    ttft_ms=LIMITS,
    tpot_ms=LIMITS,
    concurrency=st.none() | st.integers(1, 10**6),
    routing_skew=st.floats(1, 10),
)


def test_limits_are_given_in_milliseconds_and_read_in_seconds() -> None:
    workload = Workload(2048, 256, ttft_ms=1000, tpot_ms=50)
    assert (workload.ttft_s, workload.tpot_s) == (1.0, 0.05)


def test_no_limit_stays_no_limit() -> None:
    workload = Workload(input_len=1)
    assert workload.ttft_s is None and workload.tpot_s is None


def test_context_holds_prompt_and_output() -> None:
    assert Workload(8192, 1024).context_len == 9216


def test_no_output_is_prefill_only() -> None:
    assert Workload(4096).prefill_only
    assert not Workload(4096, 1).prefill_only


def test_equal_workloads_hash_equal() -> None:
    assert len({Workload(16, 4, tpot_ms=50), Workload(16, 4, tpot_ms=50.0)}) == 1


@settings(deadline=None)  # machines are shared
@given(WORKLOADS)
def test_dict_form_survives_json(workload: Workload) -> None:
    assert Workload.from_dict(json.loads(json.dumps(workload.to_dict()))) == workload


@settings(deadline=None)  # machines are shared
@given(WORKLOADS)
def test_seconds_are_positive_and_context_is_at_least_the_prompt(w: Workload) -> None:
    assert all(limit is None or limit > 0 for limit in (w.ttft_s, w.tpot_s))
    assert w.context_len >= w.input_len


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"input_len": 0}, "input_len must be at least 1, got 0"),
        ({"input_len": -5}, "input_len must be at least 1, got -5"),
        ({"output_len": -1}, "output_len must be at least 0, got -1"),
        ({"concurrency": 0}, "concurrency must be at least 1, got 0"),
        ({"routing_skew": 0.9}, "routing_skew must be at least 1, got 0.9"),
        ({"ttft_ms": 0}, "ttft_ms must be a positive number"),
        ({"tpot_ms": -1.0}, "tpot_ms must be a positive number"),
        ({"tpot_ms": math.inf}, "tpot_ms must be a positive number"),
        ({"ttft_ms": math.nan}, "ttft_ms must be a positive number"),
    ],
)
def test_out_of_range_is_a_value_error(fields: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        Workload(**{"input_len": 16, **fields})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"input_len": 16.0}, "input_len must be an integer, got 16.0"),
        ({"input_len": "16"}, "input_len must be an integer, got '16'"),
        ({"input_len": True}, "input_len must be an integer, got True"),
        ({"output_len": None}, "output_len must be an integer, got None"),
        ({"concurrency": 1.5}, "concurrency must be an integer, got 1.5"),
        ({"routing_skew": "high"}, "routing_skew must be a number, got 'high'"),
        ({"ttft_ms": "1s"}, "ttft_ms must be a number or None, got '1s'"),
        ({"tpot_ms": True}, "tpot_ms must be a number or None, got True"),
    ],
)
def test_wrong_kind_is_a_type_error(fields: dict, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Workload(**{"input_len": 16, **fields})


def test_from_dict_names_unknown_and_missing_fields() -> None:
    with pytest.raises(ValueError, match="unknown field 'input_length'; known: input_"):
        Workload.from_dict({"input_length": 16})
    with pytest.raises(ValueError, match="field 'input_len' is missing"):
        Workload.from_dict({"output_len": 16})
