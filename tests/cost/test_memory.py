"""Bytes per GPU of a published model, exactly."""

import numpy as np
import pytest

from lts.cost.breakdown import memory_parts
from lts.degrees import by_hand
from lts.hardware import Cluster
from lts.models import load
from lts.prepare import Prepared, prepare_problem
from lts.problem import zoo_problem
from lts.workload import Workload

LAYERS, HIDDEN, FFN, VOCAB, HEADS, KV_HEADS, HEAD = 32, 4096, 14336, 128256, 32, 8, 128
CONTEXT = 192


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    workload = Workload(input_len=128, output_len=64, concurrency=64)
    problem = zoo_problem(load("llama-3.1-8b"), workload)
    return prepare_problem(problem, workload, Cluster.parse("h100:1x8"))


def weights(tp: int, stages: int = 1) -> float:
    """bfloat16 bytes of llama-3.1-8b on one GPU; norms are not sharded."""
    layer = (
        2 * HIDDEN * HEADS * HEAD + 2 * HIDDEN * KV_HEADS * HEAD + 3 * HIDDEN * FFN
    ) / tp + 2 * HIDDEN
    tables = VOCAB * HIDDEN / tp
    outer = 2 * tables + HIDDEN if stages == 1 else tables
    return 2 * (LAYERS * layer / stages + outer)


def cache(tp: int, dp: int = 1, stages: int = 1) -> float:
    """Key and value bytes of one sequence, per GPU."""
    return 2 * 2 * LAYERS * KV_HEADS * HEAD * CONTEXT / tp / dp / stages


@pytest.mark.parametrize(
    ("degrees", "tp", "dp", "stages"),
    [
        ({"tp": 8}, 8, 1, 1),
        ({"tp": 4, "dp": 2}, 4, 2, 1),
        ({"dp": 8}, 1, 8, 1),
        ({"tp": 4, "pp": 2}, 4, 1, 2),
        ({"pp": 8}, 1, 1, 8),
    ],
)
def test_weights_and_caches_are_exact(prepared, degrees, tp, dp, stages) -> None:
    parts = memory_parts(prepared.evaluator.tables, by_hand(prepared.space, degrees))
    assert parts["weights"] == weights(tp, stages)
    assert parts["cache_per_sequence"] == pytest.approx(
        cache(tp, dp, stages), rel=1e-12
    )


def test_the_peak_holds_weights_caches_and_activations(prepared) -> None:
    picks = by_hand(prepared.space, {"tp": 8})
    outcome = prepared.evaluator.outcome(picks[:, None])
    held = weights(8) + 64 * cache(8)
    peak = float(outcome.peak_bytes[0])
    assert float(outcome.concurrency[0]) == 64
    # 8192 tokens: the residual stream, and the widest op's operands beside it
    tokens = int(np.asarray(prepared.evaluator.tables.phases["prefill"].batches).max())
    stream = 2 * tokens * 128 * HIDDEN
    assert held < peak < held + 4 * stream


def test_more_context_never_frees_memory() -> None:
    peaks = []
    for output_len in (64, 128, 1024):
        workload = Workload(input_len=128, output_len=output_len, concurrency=64)
        problem = zoo_problem(load("llama-3.1-8b"), workload)
        found = prepare_problem(problem, workload, Cluster.parse("h100:1x8"))
        parts = memory_parts(found.evaluator.tables, by_hand(found.space, {"tp": 8}))
        peaks.append(parts["cache_per_sequence"])
    assert peaks == sorted(peaks)
    assert peaks[2] / peaks[0] == pytest.approx((128 + 1024) / (128 + 64))
