"""Public bug reports about what plans cost, and the right answer.

Each test names the report that it comes from.
"""

import functools

import numpy as np
import pytest

import lts
from lts.cost.estimates import BOUND, MEASURED, SCALED
from lts.cost.profile import load as load_profile
from lts.degrees import by_hand
from lts.hardware import Cluster
from lts.mesh import Degrees, MeshAxis
from lts.prepare import Prepared, prepare_problem
from lts.problem import zoo_problem
from lts.workload import Workload
from tests.tiny import priced

EIGHT = Degrees(
    stages=1,
    axes=tuple(MeshAxis(name=name, size=2, inside=True) for name in "xyz"),
)


@functools.cache
def prepared(name: str, cluster: str, input_len: int, output_len: int) -> Prepared:
    """A model on eight GPUs of one node, priced at every batch."""
    workload = Workload(input_len=input_len, output_len=output_len)
    problem = zoo_problem(lts.models.load(name), workload)
    return prepare_problem(problem, workload, Cluster.parse(cluster), degrees=[EIGHT])


def decode_times(found: Prepared, degrees: dict[str, int]) -> dict[int, float]:
    """Seconds of a decode step by batch."""
    picks = by_hand(found.space, degrees)[:, None]
    step = found.evaluator.priced(picks).steps["decode"]
    times = np.asarray(step.time_s[0]).tolist()
    return dict(zip(np.asarray(step.batches[0]).tolist(), times, strict=True))


def test_how_far_experts_spread_is_a_matter_of_the_batch():
    """vllm-project/vllm#28889: 4 ways beat 8 up to 32 requests; vLLM has 1 or 8."""
    found = prepared("qwen3-235b-a22b", "h200:1x8", 1600, 600)
    four = decode_times(found, {"tp": 8, "moe_ep": 4, "moe_tp": 2})
    eight = decode_times(found, {"tp": 8, "moe_ep": 8})
    whole = [batch for batch in four if batch % 8 == 0]  # others divide no ranks
    small = [batch for batch in whole if batch <= 32]
    large = [batch for batch in whole if batch >= 320]
    assert {8, 16, 32} <= set(small) and large
    assert all(four[batch] < eight[batch] for batch in small)
    assert all(eight[batch] < four[batch] for batch in large)


def test_fewer_ways_lose_by_the_room_for_caches_not_by_speed():
    """vllm-project/vllm#16011, #12470, #6938: TP8 against 2 x TP4 and 4 x TP2.

    At one load per GPU fewer ways wait less for sums; but weights of 70 GB a GPU leave
    no room for requests, and with them the throughput of the whole is least.
    """
    found = prepared("llama-3.1-70b", "h100:1x8", 1024, 1024)
    sixteen = {ways: decode_times(found, {"tp": ways})[16] for ways in (4, 8)}
    assert sixteen[8] < sixteen[4]  # one step: more GPUs read the weights

    def outcome(ways: int):
        picks = by_hand(found.space, {"tp": ways})[:, None]
        return found.evaluator.outcome(picks)

    rates = {ways: float(outcome(ways).objective[0]) for ways in (2, 4, 8)}
    room = {ways: float(outcome(ways).concurrency[0]) for ways in (2, 4, 8)}
    assert room[2] < room[4] < room[8]
    assert rates[2] < rates[4]
    per_request = decode_times(found, {"tp": 2})
    assert room[2] in per_request


def test_a_price_says_how_far_off_it_may_be_and_what_it_rests_on():
    """ai-dynamo/aiconfigurator#1396: 883.7 predicted, 192.4 measured, no error bar."""
    plan = priced("dense", tp=8)
    parts = plan.metrics.breakdown
    assert plan.metrics.error is not None and 0 < plan.metrics.error < 1
    assert {part.provenance for part in parts} <= {MEASURED, SCALED, BOUND}
    assert all(0 < part.error < 1 for part in parts)
    products = [p for p in parts if p.kind == "op" and p.name.startswith("mlp/")]
    assert products and all(p.provenance == MEASURED for p in products)
    assert f"+-{plan.metrics.error:.1%}" in str(plan)


def test_a_chip_that_was_not_measured_says_so():
    """redhat-performance/configiq#89: advice for a GPU that nobody had measured."""
    known = Cluster.preset("h100")
    data = known.to_dict()
    data["chip"] |= {"name": "Some-GPU", "hbm_bandwidth_bytes_per_s": 3e12}
    unknown = Cluster.from_dict(data)
    workload = Workload(input_len=64, output_len=64)
    plans = {
        cluster: lts.price(
            lts.models.load("llama-3.1-8b"),
            cluster=cluster.resized(1, 1),
            workload=workload,
            degrees={},
        )
        for cluster in (known, unknown)
    }
    (product,) = (
        p
        for p in plans[unknown].metrics.breakdown
        if p.name == "mlp/down" and p.phase == "decode"
    )
    assert product.provenance == SCALED
    assert product.error >= 0.2
    assert plans[unknown].metrics.error >= plans[known].metrics.error


@pytest.mark.parametrize("engine", ["vllm-2025", "trtllm-2025"])
def test_engines_differ(engine: str):
    middle = priced("dense", tp=8).metrics
    model = lts.models.load("llama-3.1-8b")
    options = {"cluster": Cluster.parse("h100:1x1"), "degrees": {}}
    workload = Workload(input_len=1024, output_len=128, concurrency=8)
    named = lts.price(model, workload=workload, engine=engine, **options)
    unnamed = lts.price(model, workload=workload, **options)
    assert (named.metrics.engine, unnamed.metrics.engine) == (engine, "middle")
    assert middle.engine == "middle"
    assert named.metrics.tpot_s != unnamed.metrics.tpot_s


def test_an_unknown_engine_is_refused_with_those_that_are_known():
    model = lts.models.load("llama-3.1-8b")
    with pytest.raises(ValueError, match="unknown profile 'vlm'; there are: .*vllm-20"):
        lts.price(
            model,
            cluster=Cluster.parse("h100:1x1"),
            workload=Workload(input_len=64, output_len=64),
            degrees={},
            engine="vlm",
        )


def test_parts_add_up_to_the_steps_that_an_engine_makes():
    """Also where its factor of prefill is below 1, as the middle's."""
    assert load_profile().prefill < 1
    metrics = priced("dense", tp=8).metrics
    decode = [p.time_s for p in metrics.breakdown if p.phase == "decode"]
    prefill = {p.kind: p for p in metrics.breakdown if p.phase == "prefill"}
    assert sum(decode) == pytest.approx(metrics.step_time_s, rel=1e-4)
    assert prefill["engine"].time_s > 0


@pytest.mark.parametrize(
    ("name", "degrees"),
    [
        ("dense", {"tp": 4, "dp": 2}),
        ("dense", {"cp": 8}),
        ("two KV heads", {"tp": 8}),
    ],
)
def test_every_part_of_memory_stands_beside_its_prediction(name, degrees) -> None:
    """Case 19: jax-ml/jax#18954, #31292: fields zero or unstable, no peak to trust.

    Arguments, results and what lies in place are exact. XLA's scratch on CPUs is not a
    GPU's: that of its H100 target is compared in `experiments/xla_agreement.py`.
    """
    for report in priced(name, **degrees).verify().reports:
        held = report.predicted
        assert (report.argument_bytes, report.output_bytes, report.alias_bytes) == (
            held.argument,
            held.output,
            held.alias,
        )
        assert 0 < held.alias < held.output < held.argument
        assert held.temp > 0
        assert held.peak == held.argument + held.output - held.alias + held.temp
