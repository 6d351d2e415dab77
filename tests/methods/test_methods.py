"""Every method of the dict: reproducible, legal, honestly counted, never too good."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lts.evaluate.base import Scores
from lts.evaluate.tables import TableEvaluator
from lts.methods import METHODS, Found, run
from lts.methods.base import Method

BUDGET = 203  # divides no batch of any method
RULES = {"megatron", "megatron_grid"}
SEARCHING = sorted(set(METHODS) - RULES)


WIDTH = 256


class Counting:
    """An evaluator that notes what it was asked, and compiles for one shape."""

    def __init__(self, evaluator: TableEvaluator) -> None:
        self.evaluator = evaluator
        self.asked: list[np.ndarray] = []

    @property
    def space(self):
        return self.evaluator.space

    def evaluate(self, picks: jax.Array) -> Scores:
        self.asked.append(np.asarray(picks))
        return scored(self.evaluator, picks)


def scored(evaluator: TableEvaluator, picks) -> Scores:
    """Scores of candidates, always asked for `WIDTH` at a time."""
    parts = []
    for start in range(0, picks.shape[1], WIDTH):
        part = np.asarray(picks)[:, start : start + WIDTH]
        count = part.shape[1]
        found = evaluator.evaluate(np.pad(part, ((0, 0), (0, WIDTH - count))))
        parts.append([x[:count] for x in found])
    return Scores(*(jnp.concatenate(found) for found in zip(*parts, strict=True)))


@pytest.fixture(scope="module")
def methods(decoder: TableEvaluator) -> dict[str, Method]:
    """One of each, so that what they compile is shared."""
    return {name: make(decoder, BUDGET) for name, make in METHODS.items()}


@pytest.fixture(scope="module")
def small(product: TableEvaluator) -> dict[str, Method]:
    """One of each for the space that can be listed."""
    return {name: make(product, 800) for name, make in METHODS.items()}


@pytest.fixture(scope="module")
def searches(decoder, methods) -> dict[str, tuple[Found, Counting]]:
    found = {}
    for name, method in methods.items():
        evaluator = Counting(decoder)
        key = jax.random.key(3)
        found[name] = (run(method, evaluator, budget=BUDGET, key=key), evaluator)
    return found


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_key_gives_the_same_search_bit_for_bit(name, decoder, methods, searches):
    again = run(methods[name], Counting(decoder), budget=BUDGET, key=jax.random.key(3))
    first, _ = searches[name]
    np.testing.assert_array_equal(again.picks, first.picks)
    assert again.history == first.history
    assert again.found_at == first.found_at


@pytest.mark.parametrize("name", SEARCHING)
def test_another_key_gives_another_search(name, decoder, methods, searches):
    evaluator = Counting(decoder)
    run(methods[name], evaluator, budget=BUDGET, key=jax.random.key(4))
    assert (evaluator.asked[0] != searches[name][1].asked[0]).any()


@pytest.mark.parametrize("name", sorted(METHODS))
def test_values_are_candidates_of_the_space(name, decoder, searches):
    limits = decoder.space.cardinalities[:, None]
    for picks in searches[name][1].asked:
        assert picks.dtype == np.int32
        assert ((0 <= picks) & (picks < limits)).all()


@pytest.mark.parametrize("name", sorted(METHODS))
def test_the_result_is_the_first_best_of_what_was_counted(name, decoder, searches):
    found, evaluator = searches[name]
    picks = np.concatenate(evaluator.asked, axis=1)[:, : found.evaluations]
    if name in RULES:  # they have no more to ask
        assert 1 <= found.evaluations < BUDGET
    else:
        assert found.evaluations == BUDGET
    fitness = np.asarray(scored(decoder, picks).fitness)
    assert found.found_at == np.argmax(fitness) + 1
    np.testing.assert_array_equal(found.picks, picks[:, np.argmax(fitness)])
    assert found.fitness == fitness.max()
    assert found.violation == 0.0


@pytest.mark.parametrize("name", sorted(METHODS))
def test_no_method_beats_the_exhaustive_best(name, product, small, every_candidate):
    best = float(np.asarray(scored(product, every_candidate).fitness).max())
    found = run(small[name], Counting(product), budget=800, key=jax.random.key(0))
    assert found.fitness <= best
    if name not in RULES:
        assert found.fitness == best


@pytest.mark.parametrize("name", SEARCHING)
def test_seeds_are_scored_first_and_can_win(name, product, small, every_candidate):
    fitness = np.asarray(scored(product, every_candidate).fitness)
    order = np.argsort(-fitness, kind="stable")
    best, worst = every_candidate[:, order[0]], every_candidate[:, order[-1]]
    evaluator = Counting(product)
    seen: list[tuple[int, float]] = []
    found = run(
        small[name],
        evaluator,
        budget=40,
        key=jax.random.key(0),
        seeds=[worst, best],
        on_progress=lambda count, value: seen.append((count, value)),
    )
    np.testing.assert_array_equal(evaluator.asked[0][:, :2].T, [worst, best])
    assert (found.evaluations, found.found_at) == (40, 2)
    assert found.fitness == fitness.max()
    assert tuple(seen) == found.history
    assert seen[0][1] == found.fitness and seen[-1] == (40, found.fitness)


@pytest.mark.parametrize("name", SEARCHING)
def test_nan_never_wins(name, product, small):
    class Odd:
        space = product.space

        def evaluate(self, picks):
            objective = jnp.where(picks[1] == 0, jnp.nan, 1.0 + picks[1])
            return Scores(objective=objective, violation=jnp.zeros(picks.shape[1]))

    found = run(small[name], Odd(), budget=400, key=jax.random.key(0))
    assert found.picks[1] == product.space.cardinalities[1] - 1
    assert found.objective == product.space.cardinalities[1]


def test_a_budget_below_one_is_refused(product, methods):
    with pytest.raises(ValueError, match="budget is 0"):
        run(methods["random"], product, budget=0, key=jax.random.key(0))


def test_a_seed_outside_the_space_is_refused(product):
    method = METHODS["random"](product, 4)
    with pytest.raises(ValueError, match=r"gene 1 of a seed is 99"):
        seed = np.zeros(product.space.num_genes, np.int32)
        seed[1] = 99
        run(method, product, budget=4, key=jax.random.key(0), seeds=[seed])
    with pytest.raises(ValueError, match=r"a seed has shape \(1,\)"):
        run(method, product, budget=4, key=jax.random.key(0), seeds=[np.zeros(1)])


def test_learning_beats_the_prior_and_nothing_compiles_twice(decoder, methods):
    def median(name: str) -> float:
        keys = jax.random.split(jax.random.key(0), 3)
        found = [
            run(methods[name], Counting(decoder), budget=600, key=key) for key in keys
        ]
        return float(np.median([x.fitness for x in found]))

    assert median("learn_to_shard") > median("random")
    learner = methods["learn_to_shard"]
    assert learner._ask._cache_size() == learner._tell._cache_size() == 1
    chains = methods["annealing"]
    assert chains._ask._cache_size() == chains._tell._cache_size() == 1
