"""What a search method is, and the loop that runs any of them.

A method is `init`, `ask`, `tell` over an explicit state that holds its own key. It
never learns what scores its candidates. One candidate scored is one evaluation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from lts.evaluate.base import Evaluator, Scores

State = TypeVar("State")


class Method(Protocol[State]):
    """A search method; `batch` candidates are asked for at a time."""

    @property
    def name(self) -> str:
        """Its name in `METHODS`."""
        ...

    @property
    def batch(self) -> int:
        """Candidates per `ask`, and per `tell`."""
        ...

    def init(self, key: jax.Array) -> State:
        """State before anything is known; consumes `key`."""
        ...

    def ask(self, state: State) -> tuple[jax.Array, State]:
        """Candidates to score, int32 `[genes, batch]`; none if it has no more."""
        ...

    def tell(self, state: State, picks: jax.Array, scores: Scores) -> State:
        """State after scores are known.

        What was not scored (padding, candidates over budget) has infinite violation,
        hence fitness -inf. The first calls may bring candidates that were never asked
        for: the seeds.
        """
        ...


@dataclass(frozen=True, eq=False, kw_only=True)
class Found:
    """Result of a search.

    Attributes:
      picks: the best candidate; host int32 `[genes]`.
      fitness, objective, violation: its scores.
      evaluations: candidates scored in all.
      found_at: evaluations made when it was first seen, itself included.
      history: (evaluations, best fitness) after every batch.
    """

    picks: np.ndarray
    fitness: float
    objective: float
    violation: float
    evaluations: int
    found_at: int
    history: tuple[tuple[int, float], ...]


@dataclass(kw_only=True)
class _Best:
    picks: np.ndarray | None = None
    fitness: float = -np.inf
    objective: float = np.nan
    violation: float = np.inf
    evaluations: int = 0
    found_at: int = 0


def run(
    method: Method,
    evaluator: Evaluator,
    *,
    budget: int,
    key: jax.Array,
    seeds: Sequence[np.ndarray] = (),
    on_progress: Callable[[int, float], None] | None = None,
) -> Found:
    """Search until the budget is spent or the method has nothing more to ask.

    Args:
      budget: candidates to score at most, seeds included.
      key: consumed.
      seeds: candidates `[genes]` that are scored first, whatever the method.
      on_progress: called after every batch with evaluations and best fitness.

    Returns:
      The best candidate; of equal ones the first.

    Raises:
      ValueError: if the budget is below 1, or a seed is not a candidate of the space.
    """
    if budget < 1:
        raise ValueError(f"budget is {budget}; a search needs 1 evaluation at least")
    space = evaluator.space
    for seed in seeds:
        _check_seed(np.asarray(seed), space.cardinalities)
    state, best = method.init(key), _Best()
    history: list[tuple[int, float]] = []
    waiting = [np.asarray(seed, np.int32) for seed in seeds]
    while best.evaluations < budget:
        if waiting:
            count = min(method.batch, len(waiting))
            filled = waiting[:count] + waiting[:1] * (method.batch - count)
            picks, waiting = jnp.asarray(np.stack(filled, axis=1)), waiting[count:]
        else:
            picks, state = method.ask(state)
            count = picks.shape[1]
            if count == 0:
                break
        count = min(count, budget - best.evaluations)
        scores = _cleaned(evaluator.evaluate(picks), count)
        _update(best, picks, scores, count)
        state = method.tell(state, picks, scores)
        history.append((best.evaluations, best.fitness))
        if on_progress is not None:
            on_progress(*history[-1])
    assert best.picks is not None
    return Found(
        picks=best.picks,
        fitness=best.fitness,
        objective=best.objective,
        violation=best.violation,
        evaluations=best.evaluations,
        found_at=best.found_at,
        history=tuple(history),
    )


def _check_seed(seed: np.ndarray, cardinalities: np.ndarray) -> None:
    if seed.shape != cardinalities.shape:
        raise ValueError(
            f"a seed has shape {seed.shape}; a candidate of this space has "
            f"{cardinalities.shape}"
        )
    bad = np.flatnonzero((seed < 0) | (seed >= cardinalities))
    if len(bad):
        gene = bad[0]
        raise ValueError(
            f"gene {gene} of a seed is {seed[gene]}; it must be at least 0 and below "
            f"{cardinalities[gene]}"
        )


def _cleaned(scores: Scores, count: int) -> Scores:
    """Scores with NaN and what lies beyond `count` at infinite violation."""
    objective, violation = (np.asarray(x) for x in scores)
    bad = (
        np.isnan(objective) | np.isnan(violation) | (np.arange(len(objective)) >= count)
    )
    return Scores(
        objective=jnp.asarray(np.where(bad, 0.0, objective)),
        violation=jnp.asarray(np.where(bad, np.inf, violation)),
    )


def _update(best: _Best, picks: jax.Array, scores: Scores, count: int) -> None:
    fitness = np.asarray(scores.fitness)[:count]
    first = int(np.argmax(fitness))
    if best.picks is None or fitness[first] > best.fitness:
        best.picks = np.array(picks[:, first])
        best.fitness = float(fitness[first])
        best.objective = float(scores.objective[first])
        best.violation = float(scores.violation[first])
        best.found_at = best.evaluations + first + 1
    best.evaluations += count
