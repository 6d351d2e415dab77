"""The relaxed bound is above every candidate, and reached where nothing is shared."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lts.degrees import by_hand
from lts.evaluate.bound import relaxed_bound
from lts.hardware import Cluster
from lts.prepare import Prepared, prepare_function


@pytest.mark.parametrize("name", ["served", "given", "prefilled", "function"])
def test_no_candidate_is_above_the_bound(name: str, request, random_picks) -> None:
    prepared: Prepared = request.getfixturevalue(name)
    evaluator = prepared.evaluator
    bound = relaxed_bound(evaluator.tables, evaluator.workload)
    assert 0 < bound < np.inf
    for seed in range(3):
        scores = evaluator.evaluate(random_picks(prepared.space, 64, seed))
        objective = np.where(scores.feasible, scores.objective, -np.inf)
        assert objective.max() <= bound * (1 + 1e-6)


@pytest.mark.parametrize("degrees", [{"tp": 4}, {"dp": 8}, {"tp": 4, "pp": 2}])
def test_hand_made_plans_are_below_the_bound(served: Prepared, degrees) -> None:
    picks = by_hand(served.space, degrees)
    bound = relaxed_bound(served.evaluator.tables, served.evaluator.workload)
    scores = served.evaluator.evaluate(picks[:, None])
    assert float(scores.objective[0]) <= bound * (1 + 1e-6)


def test_the_bound_is_reached_by_row_parallel_work() -> None:
    x = jax.ShapeDtypeStruct((4096, 512), "float32")
    prepared = prepare_function(jnp.tanh, (x,), {}, Cluster.parse("h100:1x8"))
    bound = relaxed_bound(prepared.evaluator.tables, None)
    space = prepared.space
    size = [factor.size for factor in space.variables[0].factors].index(4096)
    picks = np.full((space.num_genes, 1), 2 + size, np.int32)
    picks[0] = 0
    score = prepared.evaluator.evaluate(picks)
    assert float(score.objective[0]) == pytest.approx(bound, rel=1e-6)


def test_an_impossible_limit_has_no_bound(served: Prepared) -> None:
    assert served.evaluator.workload is not None
    tight = dataclasses.replace(served.evaluator.workload, tpot_ms=1e-6)
    assert relaxed_bound(served.evaluator.tables, tight) == -np.inf
