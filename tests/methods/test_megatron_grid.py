"""The grid holds what Megatron's flags express, and finds the best of it."""

import jax
import numpy as np
import pytest

from lts.degrees import by_hand
from lts.methods import METHODS, run
from lts.methods.megatron import megatron_picks
from lts.methods.megatron_grid import megatron_grid
from tests.methods.problems import plain_evaluator
from tests.tiny import CLUSTER
from tests.tiny_experts import prepared


def found_by(name: str, evaluator, budget: int):
    method = METHODS[name](evaluator, budget)
    return run(method, evaluator, budget=budget, key=jax.random.key(0))


def columns(picks: np.ndarray) -> set[bytes]:
    return {np.ascontiguousarray(column).tobytes() for column in picks.T}


@pytest.mark.parametrize("name", ["experts", "latent attention"])
def test_the_grid_finds_the_best_of_all_its_candidates(name):
    evaluator = prepared(name).evaluator
    grid = megatron_grid(evaluator, 10**6).picks
    assert len(columns(grid)) == grid.shape[1] > 100
    best = np.asarray(evaluator.evaluate(grid).fitness).max()
    found = found_by("megatron_grid", evaluator, 10**6)
    assert found.evaluations == grid.shape[1]
    assert found.fitness == pytest.approx(best)


def test_the_grid_is_no_worse_than_any_folding_by_hand():
    own = prepared("experts")
    best = found_by("megatron_grid", own.evaluator, 10**6).objective
    folds = [
        (8, 8, 1),
        (1, 1, 8),
        (2, 2, 4),
        (2, 1, 8),
        (4, 4, 2),
        (4, 1, 8),
        (8, 1, 8),
    ]
    for tp, moe_tp, moe_ep in folds:
        degrees = {"tp": tp, "moe_tp": moe_tp, "moe_ep": moe_ep}
        picks = by_hand(own.space, degrees)
        outcome = own.evaluator.outcome(picks[:, None])
        if float(outcome.violation[0]) <= 0:
            assert float(outcome.objective[0]) <= best * (1 + 1e-6), degrees


def test_static_megatron_is_no_better_than_the_grid(llama_70b):
    static = llama_70b.outcome(megatron_picks(llama_70b.tables)[:, None])
    found = found_by("megatron_grid", llama_70b, 10**6)
    assert found.objective >= float(static.objective[0])
    # two uses of an axis (tensor, data), output projection, norms, three ways for the
    # logits' matrix
    sized = [sum(a.size > 1 for a in d.axes) for d in llama_70b.space.degrees]
    assert found.evaluations <= sum(2**n for n in sized) * 2 * 2 * 3


def test_output_projections_are_split_inside_the_node_under_data_parallel_attention():
    own = prepared("latent attention")
    grid = megatron_grid(own.evaluator, 10**6).picks
    found = 0
    for picks in grid.T[:: max(1, grid.shape[1] // 200)]:
        states = own.space.decode(picks).states["decode"]
        attend, out = (states[f"layers1/attention/{n}"] for n in ("attend", "out"))
        if set(attend) == {"batch"} and set(out) == {"heads"}:
            assert set(states["params/layers1/out/values"]) == {"heads"}
            found += 1
    assert found


def test_a_small_budget_cuts_the_least_usual_end():
    evaluator = prepared("experts").evaluator
    whole = megatron_grid(evaluator, 10**6).picks
    part = megatron_grid(evaluator, 20).picks
    assert columns(part) <= columns(whole[:, : part.shape[1]])
    assert part.shape[1] <= 20


def test_a_program_without_shared_indexes_is_refused():
    x = jax.ShapeDtypeStruct((8, 8), "float32")
    evaluator = plain_evaluator(lambda x: x * 2.0, (x,), CLUSTER)
    with pytest.raises(ValueError, match="choose another method"):
        megatron_grid(evaluator, 10)
