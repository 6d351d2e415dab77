"""The jitted table evaluator against a slow pricing of the same candidates."""

import dataclasses
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lts.cost.breakdown import breakdown, memory_parts
from lts.cost.serving import LEAST_STEP_S, Outcome
from lts.cost.tables import build_tables
from lts.evaluate.tables import CHUNKS, TableEvaluator
from lts.graph import NodeKind
from lts.hardware import Cluster
from lts.mesh import Degrees, MeshAxis
from lts.prepare import Prepared, prepare_function
from lts.problem import TRACED_BATCH

# float32 sums of about a hundred terms.
TOLERANCE = 1e-5


WIDTH, CHUNK = CHUNKS


def outcome_of(prepared: Prepared, picks: np.ndarray) -> Outcome:
    return jax.tree.map(np.asarray, prepared.evaluator.outcome(picks))


@pytest.mark.parametrize("name", ["served", "given"])
def test_served_models_cost_what_the_slow_pricing_says(
    name: str, request, random_picks, pricing: ModuleType
) -> None:
    prepared: Prepared = request.getfixturevalue(name)
    tables, workload = prepared.evaluator.tables, prepared.evaluator.workload
    picks = random_picks(prepared.space, 12 if name == "served" else 32)
    found = outcome_of(prepared, picks)
    feasible = 0
    for i in range(picks.shape[1]):
        assignment = prepared.space.decode(picks[:, i])
        slow = pricing.Pricer(tables, assignment, TRACED_BATCH).colocated(workload)
        assert (found.violation[i] <= 0) == (slow.objective is not None)
        if slow.objective is None:
            continue
        feasible += 1
        assert found.objective[i] == pytest.approx(slow.objective, rel=TOLERANCE)
        # At the best batch: another one within the tolerance may have been taken.
        if found.concurrency[i] == slow.concurrency:
            for field in ("ttft_s", "tpot_s", "step_time_s", "peak_bytes"):
                fast = getattr(found, field)[i]
                assert fast == pytest.approx(getattr(slow, field), rel=TOLERANCE)
    assert feasible >= 4


def test_each_phase_costs_what_the_slow_pricing_says(
    served: Prepared, random_picks, pricing: ModuleType
) -> None:
    tables = served.evaluator.tables
    picks = random_picks(served.space, 12, seed=1)
    for i in range(picks.shape[1]):
        assignment = served.space.decode(picks[:, i])
        pricer = pricing.Pricer(tables, assignment, TRACED_BATCH)
        degrees = int(picks[0, i])
        for phase, own in tables.phases.items():
            place = own.batches.shape[1] - 1
            last = {p: t.batches.shape[1] - 1 for p, t in tables.phases.items()}
            parts = breakdown(tables, picks[:, i], last)
            batch = int(own.batches[degrees, place])
            total = sum(part.time_s for part in parts if part.phase == phase)
            slow, _ = pricer.served(phase, batch)
            assert total == pytest.approx(slow, rel=1e-6)


def test_memory_is_what_the_slow_pricing_says(
    served: Prepared, random_picks, pricing: ModuleType
) -> None:
    tables = served.evaluator.tables
    picks = random_picks(served.space, 12, seed=2)
    for i in range(picks.shape[1]):
        pricer = pricing.Pricer(tables, served.space.decode(picks[:, i]), TRACED_BATCH)
        weights, cache = pricer.weights_and_cache("decode")
        parts = memory_parts(tables, picks[:, i])
        assert parts["weights"] == pytest.approx(weights, rel=1e-12)
        assert parts["cache_per_sequence"] == pytest.approx(cache, rel=1e-12)


def test_plain_functions_cost_what_the_slow_pricing_says(
    function: Prepared, random_picks, pricing: ModuleType
) -> None:
    tables = function.evaluator.tables
    picks = random_picks(function.space, 40)
    found = outcome_of(function, picks)
    for i in range(picks.shape[1]):
        pricer = pricing.Pricer(tables, function.space.decode(picks[:, i]), 1)
        time_s, active = pricer.phase("step", 1)
        held = pricer.held((NodeKind.INPUT, NodeKind.ACTIVATION), "step")
        graph = tables.phases["step"].graph
        results = sum(
            pricer.local("step", node, leaf.array, leaf.factors, 1)
            for node in graph.values
            if node.kind is not NodeKind.CACHE
            for leaf in node.leaves
            if leaf.is_output
        )
        assert found.violation[i] == 0
        assert found.step_time_s[i] == pytest.approx(time_s, rel=TOLERANCE)
        assert found.objective[i] == pytest.approx(1 / time_s, rel=TOLERANCE)
        peak = sum(held.values()) + results + active
        assert found.peak_bytes[i] == pytest.approx(peak, rel=TOLERANCE)


def test_prefill_costs_what_the_slow_pricing_says(
    prefilled: Prepared, random_picks, pricing: ModuleType
) -> None:
    tables = prefilled.evaluator.tables
    picks = random_picks(prefilled.space, 16)
    found = outcome_of(prefilled, picks)
    assert (found.violation <= 0).sum() >= 4
    for i in range(picks.shape[1]):
        assignment = prefilled.space.decode(picks[:, i])
        pricer = pricing.Pricer(tables, assignment, TRACED_BATCH)
        degrees, stages = int(picks[0, i]), assignment.degrees.stages
        weights, cache = pricer.weights_and_cache("prefill")
        best = 0.0
        for batch in set(tables.phases["prefill"].batches[degrees].tolist()):
            time_s, active = pricer.served("prefill", batch)
            peak = weights + active + cache * batch * stages
            if np.isfinite(time_s) and peak <= tables.cluster.usable_bytes:
                best = max(best, batch * stages * 256 / time_s / 8)
        assert (found.violation[i] <= 0) == (best > 0)
        if best:
            assert found.objective[i] == pytest.approx(best, rel=TOLERANCE)


def test_a_given_concurrency_is_kept(given: Prepared, random_picks) -> None:
    found = outcome_of(given, random_picks(given.space, 64))
    stages = np.array([d.stages for d in given.space.degrees])
    feasible = found.violation <= 0
    picks = random_picks(given.space, 64)
    expected = -(-24 // stages) * stages
    assert feasible.any()
    assert (found.concurrency == expected[picks[0]])[feasible].all()


def test_a_batch_over_all_axes_must_divide(given: Prepared) -> None:
    space = given.space
    picks = np.zeros(space.num_genes, np.int32)
    picks[0] = next(i for i, d in enumerate(space.degrees) if d.stages == 1)
    batch = next(x for x, name in space.label_names.items() if name == "batch")
    for group, labels in enumerate(space.role_labels):
        start = space.first_role + group * space.num_axes
        picks[start : start + space.num_axes] = 1 + labels.index(batch)
    for concurrency, feasible in ((24, True), (20, False)):
        tables = given.evaluator.tables
        phases = dict(tables.phases)
        batches = np.full_like(phases["decode"].batches, concurrency)
        assert given.evaluator.workload is not None
        workload = dataclasses.replace(
            given.evaluator.workload, concurrency=concurrency
        )
        prepared = given
        if concurrency != 24:
            rebuilt = build_tables(
                space,
                tables.pricing,
                {"prefill": phases["prefill"].batches, "decode": batches},
                TRACED_BATCH,
                {},
            )
            evaluator = TableEvaluator(tables=rebuilt, workload=workload)
            prepared = dataclasses.replace(given, evaluator=evaluator)
        found = outcome_of(prepared, picks[:, None])
        assert (found.violation[0] == 0) == feasible


def test_chunks_price_as_one_by_one(function: Prepared, random_picks) -> None:
    picks = random_picks(function.space, CHUNK + 77)
    every = outcome_of(function, picks)
    for start in (0, CHUNK - 3, CHUNK + 70):
        part = outcome_of(function, picks[:, start : start + 7])
        for field in ("objective", "violation", "peak_bytes"):
            whole = getattr(every, field)[start : start + 7]
            # The compiler sums in another order for another width.
            np.testing.assert_allclose(whole, getattr(part, field), rtol=1e-6)
    assert every.objective.shape == (CHUNK + 77,)


def test_a_full_chunk_is_priced_too(function: Prepared, random_picks) -> None:
    picks = random_picks(function.space, 2 * CHUNK)
    whole = outcome_of(function, picks)
    half = outcome_of(function, picks[:, :CHUNK])
    np.testing.assert_allclose(whole.objective[:CHUNK], half.objective, rtol=1e-6)


def test_scores_have_no_nan_where_they_count(
    served: Prepared, given: Prepared, function: Prepared, random_picks
) -> None:
    for prepared in (served, given, function):
        picks = random_picks(prepared.space, WIDTH, seed=3)
        scores = prepared.evaluator.evaluate(picks)
        assert not np.isnan(np.asarray(scores.violation)).any()
        assert not np.isnan(np.asarray(scores.fitness)).any()
        feasible = np.asarray(scores.feasible)
        assert feasible.any()
        assert np.isfinite(np.asarray(scores.objective)[feasible]).all()
        if not feasible.all():
            fitness = np.asarray(scores.fitness)
            assert fitness[feasible].min() > fitness[~feasible].max()


def test_pinned_genes_are_priced_as_pinned(function: Prepared, random_picks) -> None:
    space = function.space
    pinned = dataclasses.replace(space, pinned=((space.first_override, 1),))
    tables = dataclasses.replace(function.evaluator.tables, space=pinned)
    picks = random_picks(space, WIDTH)
    wanted = picks.copy()
    wanted[space.first_override] = 1
    found = TableEvaluator(tables=tables, workload=None).outcome(picks)
    np.testing.assert_array_equal(
        np.asarray(found.objective), outcome_of(function, wanted).objective
    )


def test_splitting_an_axis_with_one_role_never_changes_the_price() -> None:
    """Eight GPUs as one axis or as 2 x 2 x 2 in the same role: one price."""
    cluster = Cluster.parse("h100:1x8")
    x, w = (jax.ShapeDtypeStruct(s, "bfloat16") for s in ((64, 512), (512, 1024)))

    def mlp(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(x @ w) @ w.T

    times = []
    for sizes in ((8,), (2, 4), (2, 2, 2)):
        axes = tuple(
            MeshAxis(name=name, size=size, inside=True)
            for name, size in zip("xyz", sizes, strict=False)
        )
        degrees = (Degrees(stages=1, axes=axes),)
        prepared = prepare_function(mlp, (x, w), {}, cluster, degrees=degrees)
        space, rows = prepared.space, []
        for label in sorted({x for labels in space.role_labels for x in labels}):
            picks = np.zeros(space.num_genes, np.int32)
            for group, labels in enumerate(space.role_labels):
                if label in labels:
                    start = space.first_role + group * space.num_axes
                    picks[start : start + len(sizes)] = 1 + labels.index(label)
            rows.append(picks)
        times.append(outcome_of(prepared, np.stack(rows, 1)).step_time_s)
    np.testing.assert_allclose(times[1], times[0], rtol=1e-6)
    np.testing.assert_allclose(times[2], times[0], rtol=1e-6)


def test_functions_without_ops_have_a_finite_price() -> None:
    x = jax.ShapeDtypeStruct((64, 512), "bfloat16")
    cluster = Cluster.parse("h100:1x8")
    chip = cluster.chip
    prepared = prepare_function(jnp.tanh, (x,), {}, cluster)
    picks = np.zeros((prepared.space.num_genes, 1), np.int32)
    moved = 2 * 2 * 64 * 512 / (chip.hbm_bandwidth_bytes_per_s * chip.hbm_efficiency)
    time_s = float(prepared.evaluator.outcome(picks).step_time_s[0])
    assert time_s == pytest.approx(moved + chip.op_launch_s, rel=1e-6)
    prepared = prepare_function(lambda x: x, (x,), {}, cluster)
    picks = np.zeros((prepared.space.num_genes, 1), np.int32)
    found = outcome_of(prepared, picks)
    assert found.step_time_s[0] == pytest.approx(LEAST_STEP_S)
    assert np.isfinite(found.objective[0])
