"""Serving as two pools: sizes of instances, what they serve together, and the plan."""

import functools
import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import lts
from lts.cost import profile
from lts.evaluate.bound import relaxed_outcome
from lts.methods import METHODS
from lts.models import Decoder, kv_bytes_per_token
from lts.pools.pairs import pools_bound
from lts.pools.prepare import prepare_pools
from lts.pools.search import search_phases
from lts.pools.sizes import bounded, instance_degrees, instances
from lts.prepare import Prepared
from lts.problem import zoo_problem
from tests.tiny import BATCH, PRICED, PROMPT, model_of

CLUSTER = lts.Cluster.parse("h100:2x4")
WORKLOAD = lts.Workload(256, 64, ttft_ms=40, tpot_ms=4)
MODEL = Decoder(config=PRICED)


@functools.cache
def searched(method: str = "random", budget: int = 512) -> lts.Plan:
    return lts.search(
        MODEL,
        cluster=CLUSTER,
        workload=WORKLOAD,
        serving="pools",
        method=method,
        budget=budget,
    )


def priced(degrees: Any, **options: Any) -> lts.Plan:
    return _priced(json.dumps(degrees), **options)


@functools.cache
def _priced(degrees: str, **options: Any) -> lts.Plan:
    options = {"cluster": CLUSTER, "workload": WORKLOAD, **options}
    return lts.price(MODEL, serving="pools", degrees=json.loads(degrees), **options)


@pytest.fixture(scope="module")
def prepared() -> dict[str, Prepared]:
    problem = zoo_problem(MODEL, WORKLOAD)
    problems = {"prefill": problem, "decode": problem}
    return prepare_pools(problems, WORKLOAD, CLUSTER)


# -- sizes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cluster, alone, gpus",
    [
        ("h100:1x1", False, []),
        ("h100:1x8", False, [1, 2, 4]),
        ("h100:1x8", True, [1, 2, 4, 8]),
        ("h100:1x6", False, [1, 2, 3]),
        ("h100:3x8", False, [1, 2, 4, 8, 16]),
        ("h100:12x8", False, [1, 2, 4, 8, 16, 24, 32, 48]),
        ("h100:13x8", True, [1, 2, 4, 8, 16, 32, 104]),
        ("h100:128x8", False, [2**i for i in range(10)]),
    ],
)
def test_instances_are_parts_of_a_node_or_whole_nodes(
    cluster: str, alone: bool, gpus: list[int]
) -> None:
    found = instances(lts.Cluster.parse(cluster), alone=alone)
    assert [size.num_gpus for size in found] == gpus


def test_all_sizes_share_one_number_of_axes_and_pipelines_are_bounded() -> None:
    sizes = instances(lts.Cluster.parse("h100:128x8"), alone=False)
    every = instance_degrees(sizes, layers=96)
    assert {len(degrees.axes) for degrees in every} == {3}
    assert len(every) > 64
    kept = bounded(every)
    assert len(kept) <= 64
    assert {d.num_gpus for d in kept} == {d.num_gpus for d in every}
    deepest = max(d.stages for d in kept)
    assert kept == [d for d in every if d.stages <= deepest]


def test_instances_inside_a_node_hand_over_inside_it() -> None:
    sizes = instances(lts.Cluster.parse("h100:2x8"), alone=False)
    for degrees in instance_degrees(sizes, layers=8):
        assert degrees.stages_inside
        assert all(axis.inside for axis in degrees.axes)


def test_two_pools_that_do_not_hold_the_model_name_the_cluster_that_would() -> None:
    # 811.7 GB of weights in each pool: 11 GPUs of 76.4 GB, so two nodes each
    with pytest.raises(lts.NoFeasiblePlanError) as caught:
        lts.search(
            "llama-3.1-405b",
            cluster=lts.Cluster.parse("h100:2x8"),
            workload=lts.Workload(1024, 1024),
            serving="pools",
        )
    assert str(caught.value) == (
        "llama-3.1-405b does not fit h100:2x8 as two pools: each holds all weights, so "
        "with one request an instance needs 16 GPUs to prefill and 16 GPUs to decode "
        "at least; the smallest cluster that would do is h100:4x8"
    )
    with pytest.raises(
        lts.NoFeasiblePlanError, match=r"1 GPUs .* would do is h100:1x2"
    ):
        lts.search(
            MODEL,
            cluster=lts.Cluster.parse("h100:1x1"),
            workload=WORKLOAD,
            serving="pools",
        )


# -- what pools serve ----------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        searched,
        lambda: priced({"tp": 2}),
        lambda: priced({"prefill": {"pp": 2, "tp": 2}, "decode": {"dp": 2}}),
        lambda: priced({"prefill": {"tp": 2}, "decode": {"tp": 4}}),
    ],
    ids=["searched", "tp 2", "pp 2", "nodes"],
)
def test_a_plan_serves_what_its_slower_pool_does(make: Any) -> None:
    plan = make()
    metrics, prefill, decode = plan.metrics, plan.phase("prefill"), plan.phase("decode")
    stages = {
        phase.name: phase.assignment.degrees.stages for phase in plan.phases.values()
    }
    period_s = max(prefill.step_time_s / stages["prefill"], metrics.kv_transfer_s)
    reading = prefill.instances * prefill.batch / period_s
    in_flight = decode.batch * stages["decode"]
    further = WORKLOAD.output_len - 1
    writing = decode.instances * in_flight / (further * decode.step_time_s)
    assert prefill.requests_per_s == pytest.approx(reading, rel=1e-5)
    assert decode.requests_per_s == pytest.approx(writing, rel=1e-5)
    tokens_per_s = min(reading, writing) * WORKLOAD.output_len
    assert plan.objective == pytest.approx(tokens_per_s / CLUSTER.num_gpus, rel=1e-5)
    ttft_s = prefill.step_time_s + metrics.kv_transfer_s + profile.load().host_s
    assert metrics.ttft_s == pytest.approx(ttft_s, rel=1e-5)
    assert metrics.tpot_s == pytest.approx(decode.step_time_s, rel=1e-5)
    assert metrics.concurrency == decode.instances * in_flight
    used = prefill.instances * prefill.gpus + decode.instances * decode.gpus
    assert used <= CLUSTER.num_gpus
    assert plan.objective <= plan.bound
    assert metrics.peak_bytes == max(prefill.peak_bytes, decode.peak_bytes)


@pytest.mark.parametrize(
    "prefill, decode, parts, link",
    [
        # four KV heads; both in one node of four
        ({"tp": 2}, {"tp": 2}, 2, CLUSTER.intra),
        ({"tp": 2}, {"tp": 4}, 2, CLUSTER.inter),  # sending two GPUs are the busier
        ({"tp": 4}, {"tp": 2}, 2, CLUSTER.inter),  # receiving two are
        ({"tp": 4}, {"pp": 2, "tp": 2}, 4, CLUSTER.inter),
    ],
)
def test_the_transfer_is_that_of_the_caches_of_one_call(
    prefill: dict[str, int], decode: dict[str, int], parts: int, link: Any
) -> None:
    plan = priced({"prefill": prefill, "decode": decode})
    nbytes = plan.phase("prefill").batch * WORKLOAD.input_len
    nbytes *= kv_bytes_per_token(PRICED)
    expected_s = nbytes / parts / link.bandwidth_bytes_per_s
    expected_s += link.latency_s + link.hop_latency_s
    assert plan.metrics.kv_transfer_s == pytest.approx(expected_s, rel=1e-6)


def test_memory_is_weights_and_the_caches_of_what_is_in_flight() -> None:
    plan = priced({"prefill": {"tp": 4}, "decode": {"pp": 2, "tp": 2}})
    per_token = kv_bytes_per_token(PRICED)
    prefill, decode = plan.phase("prefill"), plan.phase("decode")
    read = prefill.batch * WORKLOAD.input_len * per_token
    assert prefill.cache_bytes == pytest.approx(read / 4)
    kept = 2 * decode.batch * WORKLOAD.context_len * per_token
    assert decode.cache_bytes == pytest.approx(kept / 4)
    weights = 2 * MODEL.num_params  # bfloat16
    assert weights / 4 <= prefill.weight_bytes < weights / 3


def test_a_search_is_no_worse_than_a_colocated_plan_split_by_hand() -> None:
    """Four GPUs each, laid out as a colocated plan of four is, at its batch."""
    half, concurrency = lts.Cluster.parse("h100:1x4"), 32
    workload = lts.Workload(256, 64, concurrency=concurrency)
    options = {"workload": workload, "degrees": {"tp": 4}}
    shared = lts.price(MODEL, cluster=half, **options)
    split = priced(**options)
    decode_s = shared.phase("decode").step_time_s
    assert split.phase("decode").step_time_s == pytest.approx(decode_s, rel=1e-6)
    assert [phase.instances for phase in split.phases.values()] == [1, 1]
    requests_per_s = min(
        concurrency / (63 * decode_s), split.phase("prefill").requests_per_s
    )
    assert split.objective == pytest.approx(requests_per_s * 64 / 8, rel=1e-5)
    found = lts.search(
        MODEL,
        cluster=CLUSTER,
        workload=workload,
        serving="pools",
        method="megatron_grid",
        budget=1024,
    )
    assert found.objective >= split.objective


def test_requests_in_flight_that_are_given_are_spread_over_instances() -> None:
    workload = lts.Workload(256, 64, concurrency=30)
    plan = priced({"tp": 1}, workload=workload)
    decode = plan.phase("decode")
    assert decode.batch == math.ceil(30 / decode.instances)
    assert plan.metrics.concurrency == 30
    # what is not there is not served, however large the batch
    serving = 30 / (63 * decode.step_time_s)
    assert decode.requests_per_s == pytest.approx(serving, rel=1e-5)


@pytest.mark.parametrize("output_len", [0, 1])
def test_without_decoding_every_instance_prefills(output_len: int) -> None:
    workload = lts.Workload(256, output_len, ttft_ms=40)
    plan = priced({"tp": 2}, workload=workload)
    (prefill,) = plan.phases.values()
    assert plan.main_phase is prefill
    assert (prefill.name, prefill.instances, prefill.gpus) == ("prefill", 4, 2)
    assert plan.metrics.kv_transfer_s is None
    tokens = (output_len or 256) * 4 * prefill.batch / prefill.step_time_s
    assert plan.objective == pytest.approx(tokens / 8, rel=1e-5)


def test_alone_an_instance_may_take_all_as_a_colocated_plan_does() -> None:
    workload = lts.Workload(256, 0, ttft_ms=40)
    degrees = {"tp": 4, "dp": 2}
    colocated = lts.price(MODEL, cluster=CLUSTER, workload=workload, degrees=degrees)
    assert priced(degrees, workload=workload).objective == colocated.objective


# -- the search ----------------------------------------------------------------------


def test_same_seed_gives_the_same_file(tmp_path) -> None:
    files = [tmp_path / f"{number}.json" for number in range(2)]
    searched().save(files[0])
    searched.cache_clear()
    searched().save(files[1])
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("method", ["random", "megatron_grid"])
def test_any_method_searches_within_its_budget(method: str) -> None:
    plan = searched(method)
    assert 0 < plan.evaluations <= 512
    assert plan.bound * (1 + 1e-6) >= plan.objective > 0


def test_the_best_of_every_size_is_kept(prepared: dict[str, Prepared]) -> None:
    """Random search lists its candidates, so they can be ranked again."""
    decode = {"decode": prepared["decode"]}
    asked: list[np.ndarray] = []
    evaluator, space = decode["decode"].evaluator, decode["decode"].space
    make = METHODS["random"]

    class Listening:
        def __init__(self, method):
            self.method = method
            self.name, self.batch, self.init = method.name, method.batch, method.init
            self.tell = method.tell

        def ask(self, state):
            picks, state = self.method.ask(state)
            asked.append(np.asarray(picks))
            return picks, state

    patched = pytest.MonkeyPatch()
    patched.setitem(METHODS, "random", lambda e, b: Listening(make(e, b)))  # type: ignore[arg-type]
    with patched.context():
        found = search_phases(
            decode, method="random", budget=300, key=jax.random.key(1)
        )
    patched.undo()
    tried = np.concatenate(asked, axis=1)[:, : 300 - len(space.degrees)]
    scores = evaluator.evaluate(jnp.asarray(tried))
    fitness, best = np.asarray(scores.fitness), int(np.argmax(scores.fitness))
    under_all = np.repeat(tried[:, best : best + 1], len(space.degrees), axis=1)
    under_all[0] = np.arange(len(space.degrees))
    tried = np.concatenate([tried, under_all], axis=1)
    again = np.asarray(evaluator.evaluate(jnp.asarray(under_all)).fitness)
    fitness = np.concatenate([fitness, again])
    sizes = np.array([d.num_gpus for d in space.degrees])[tried[0]]
    kept = found.candidates["decode"]
    assert found.evaluations == 300 == len(fitness)
    assert [space.degrees[d].num_gpus for d in kept[0]] == sorted(set(sizes.tolist()))
    for size, picks in zip(sorted(set(sizes.tolist())), kept.T, strict=True):
        own = np.flatnonzero(sizes == size)
        np.testing.assert_array_equal(picks, tried[:, own[np.argmax(fitness[own])]])


def test_megatron_has_tensor_parallel_nodes_for_every_size(
    prepared: dict[str, Prepared],
) -> None:
    space = prepared["decode"].space
    method = METHODS["megatron"](prepared["decode"].evaluator, 100)
    picks, _ = method.ask(method.init(jax.random.key(0)))
    found = [space.degrees[d] for d in np.asarray(picks[0]).tolist()]
    assert [degrees.num_gpus for degrees in found] == [1, 2, 4]
    for degrees, column in zip(found, np.asarray(picks).T, strict=True):
        assert degrees.stages == 1
        roles = space.decode(column).roles["attention"]
        sized = [
            r for r, axis in zip(roles, degrees.axes, strict=True) if axis.size > 1
        ]
        assert set(sized) <= {"kv_heads"}
    plan = searched("megatron")
    assert plan.evaluations == 6
    assert plan.degrees["tp"] == plan.phase("decode").gpus


def test_bounds_hold_for_every_pair_and_are_below_the_harmonic_form(
    prepared: dict[str, Prepared],
) -> None:
    bound = pools_bound(prepared, WORKLOAD)
    rates = []
    for own in prepared.values():
        found = relaxed_outcome(
            own.evaluator.tables, WORKLOAD, own.evaluator.transfer_s
        )
        feasible = np.asarray(found.violation) <= 0
        rates.append(np.asarray(found.objective)[feasible].max())
    harmonic = 1 / sum(1 / rate for rate in rates)
    assert 0 < bound <= harmonic * (1 + 1e-6)
    for degrees in ({"tp": 1}, {"tp": 2}, {"prefill": {"tp": 2}, "decode": {"tp": 4}}):
        assert priced(degrees).objective <= bound * (1 + 1e-6)


# -- limits and bad input ------------------------------------------------------------


@pytest.mark.parametrize(
    "limits, message",
    [
        (
            {"ttft_ms": 0.01},
            r"to prefill, .* TTFT: .* ms against a limit of 0.01 ms; -",
        ),
        (
            {"ttft_ms": 0.01, "tpot_ms": 0.01},
            r"to prefill, .* TTFT: .*to decode, .* TPOT: .*; --tpot-ms 1 would do",
        ),
    ],
)
def test_limits_that_cannot_be_kept_name_phase_limit_and_relaxation(
    limits: dict[str, float], message: str
) -> None:
    with pytest.raises(lts.NoFeasiblePlanError, match=message) as caught:
        priced({"tp": 2}, workload=lts.Workload(256, 64, **limits))
    assert "--" in str(caught.value) and "\n" not in str(caught.value)


def test_a_transfer_that_breaks_ttft_is_named() -> None:
    """Four GPUs send a quarter of one prompt each; one GPU of data parallelism gets it.

    Prefill alone keeps the limit, and does so beside a decode instance by heads.
    """
    one = lts.Workload(256, 64, concurrency=1)
    kept = priced({"tp": 4}, workload=one).metrics
    prompt_s = 256 * kv_bytes_per_token(PRICED) / CLUSTER.inter.bandwidth_bytes_per_s
    limit_ms = (kept.ttft_s + prompt_s / 2) * 1e3
    limited = lts.Workload(256, 64, ttft_ms=limit_ms, concurrency=1)
    degrees = {"prefill": {"tp": 4}, "decode": {"tp": 4}}
    assert priced(degrees, workload=limited).metrics.ttft_s == kept.ttft_s
    with pytest.raises(lts.NoFeasiblePlanError) as caught:
        priced({**degrees, "decode": {"dp": 1}}, workload=limited)
    ttft_ms = (kept.ttft_s + prompt_s * 3 / 4) * 1e3
    transfer_ms = (kept.kv_transfer_s + prompt_s * 3 / 4) * 1e3
    assert (
        f"misses TTFT: {ttft_ms:.1f} ms, {transfer_ms:.1f} ms of it KV transfer, "
        f"against a limit of {limit_ms:g} ms" in str(caught.value)
    )


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: priced({"tp": 8}),
            "one instance of each pool needs 16 .*8 to prefill",
        ),
        (lambda: priced({"tp": 3}), "an instance of 3 GPUs cannot be had on h100:2x4"),
        (lambda: priced({"tp": 0}), "tp must be a positive integer, got 0"),
        (lambda: priced({"ep": 2}), "unknown degree 'ep'"),
        (lambda: priced({"prefill": {"tp": 2}}), "given for prefill and decode, got"),
        (
            lambda: priced({"prefill": {"tp": 2}, "tp": 2}),
            "given for prefill and decode, got 'prefill', 'tp'",
        ),
        (
            lambda: lts.price(
                MODEL,
                cluster=CLUSTER,
                workload=WORKLOAD,
                serving="pools",
                specs={"tokens": PartitionSpec()},
            ),
            "specs name the axes of one mesh; pools take degrees=",
        ),
        (
            lambda: lts.search(
                jnp.tanh, (jnp.ones(8),), cluster=CLUSTER, serving="pools"
            ),
            "pools serve a model; a function has one phase",
        ),
        (
            lambda: lts.search(
                MODEL, cluster=CLUSTER, workload=WORKLOAD, serving="pools", max_stages=0
            ),
            "max_stages must be at least 1, got 0",
        ),
    ],
)
def test_bad_input_is_refused_in_one_line(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


# -- the plan ------------------------------------------------------------------------

SPLIT = {"prefill": {"tp": 2}, "decode": {"tp": 4}}


@functools.cache
def runnable() -> lts.Plan:
    """A float32 decoder, prefill on two GPUs, decode on four."""
    return lts.price(
        model_of("dense"),
        cluster=lts.Cluster.parse("h100:1x8"),
        workload=lts.Workload(PROMPT, 8, concurrency=BATCH),
        serving="pools",
        degrees=SPLIT,
    )


def test_every_phase_has_degrees_mesh_and_specs_of_its_own() -> None:
    plan = runnable()
    prefill, decode = plan.phase("prefill"), plan.phase("decode")
    assert (plan.serving, plan.degrees["tp"]) == ("pools", 4)
    assert prefill.degrees["tp"] == 2
    assert prefill.mesh().size == 2 and plan.mesh().size == decode.mesh().size == 4
    assert list(prefill.assignment.states) == ["prefill"]
    assert plan.assignment == decode.assignment
    assert plan.in_specs == decode.in_specs
    (query,) = {str(spec) for path, spec in decode.arguments.items() if "query" in path}
    assert "('x', 'y')" in query
    (query,) = {
        str(spec) for path, spec in prefill.arguments.items() if "query" in path
    }
    assert "'x'" in query and "'y'" not in query


def test_colocated_plans_have_the_same_fields() -> None:
    plan = lts.price(MODEL, cluster=CLUSTER, workload=WORKLOAD, degrees={"tp": 4})
    assert (plan.serving, plan.metrics.kv_transfer_s) == ("colocated", None)
    for phase in plan.phases.values():
        assert (phase.instances, phase.gpus) == (1, 8)
        assert phase.degrees == plan.degrees
        assert phase.peak_bytes == plan.metrics.peak_bytes
        served = phase.requests_per_s * WORKLOAD.output_len / 8
        assert served == pytest.approx(plan.objective)
    assert set(plan.assignment.states) == {"prefill", "decode"}


def test_a_loaded_plan_is_the_saved_one(tmp_path) -> None:
    plan = runnable()
    plan.save(tmp_path / "plan.json")
    loaded = lts.Plan.load(tmp_path / "plan.json")
    assert loaded.to_dict() == plan.to_dict() == json.loads(json.dumps(plan.to_dict()))
    for phase in ("prefill", "decode"):
        assert loaded.phase(phase).in_specs == plan.phase(phase).in_specs
        assert loaded.phase(phase).gpus == plan.phase(phase).gpus
    assert loaded.phase("prefill").model == plan.phase("prefill").model


def test_caches_go_from_one_pool_to_the_other_and_outputs_are_unsharded_ones() -> None:
    plan, model = runnable(), model_of("dense")
    key = jax.random.key(0)
    params = model.init_params(key)
    cache = model.init_cache(BATCH, PROMPT + 2)
    tokens = jax.random.randint(key, (BATCH, PROMPT), 0, model.config.vocab_size)
    expected, plain = model.prefill(params, cache, tokens)
    reading = plan.phase("prefill")
    prefill = plan.apply(model.prefill, donate=())
    logits, filled = prefill(*reading.device_put((params, cache, tokens)))
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
    decode = plan.apply(model.decode, donate=())
    for step in range(2):
        following = expected.argmax(-1).astype(jnp.int32)
        position = jnp.int32(PROMPT + step)
        args = (params, filled, following, position)
        if step == 0:  # the KV transfer, and the weights of the decode instance
            args = plan.device_put(args)
            params_there = args[0]
        else:
            args = (params_there, *args[1:])
        expected, plain = model.decode(params, plain, following, position)
        logits, filled = decode(*args)
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


def test_both_phases_compile_as_predicted() -> None:
    reports = runnable().verify().reports
    assert [report.phase for report in reports] == ["prefill", "decode"]
    for report in reports:
        assert report.argument_bytes == report.predicted_argument_bytes
        assert report.ok, report.differing


def test_a_problem_of_ones_own_is_served_as_pools() -> None:
    zoo = zoo_problem(MODEL, WORKLOAD)
    own = lts.Problem(prefill=zoo.prefill, decode=zoo.decode, args=zoo.args)
    plan = lts.price(
        own,
        cluster=CLUSTER,
        workload=WORKLOAD,
        serving="pools",
        degrees={"tp": 2},
    )
    assert plan.model is None
    # its prefill keeps caches of whole requests, and all of that is handed over
    nbytes = plan.phase("prefill").batch * WORKLOAD.context_len
    nbytes *= kv_bytes_per_token(PRICED) / 2
    link = CLUSTER.intra
    expected_s = link.latency_s + link.hop_latency_s
    expected_s += nbytes / link.bandwidth_bytes_per_s
    assert plan.metrics.kv_transfer_s == pytest.approx(expected_s, rel=1e-6)
