"""Searching the two pools: one phase at a time, by any method, for all sizes at once.

A pool's objective is what its instances serve per GPU, so the phases do not depend on
each other but for their sizes. The best candidate of every size is kept; when the
budget of a phase is spent, the best genes of all are tried under all degrees, so that
sizes which the method left early have their chance.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lts.evaluate.base import Scores
from lts.methods import METHODS, Method, run
from lts.pools.pairs import Candidates
from lts.prepare import Prepared
from lts.space import Space


@dataclass(frozen=True, kw_only=True)
class _Kept:
    fitness: float
    feasible: bool
    picks: np.ndarray


@dataclass(frozen=True, eq=False, kw_only=True)
class _Remembering:
    """A method that remembers the best candidate of every size of instance."""

    method: Method
    space: Space
    best: dict[int, _Kept] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.method.name

    @property
    def batch(self) -> int:
        return self.method.batch

    def init(self, key: jax.Array) -> Any:
        return self.method.init(key)

    def ask(self, state: Any) -> tuple[jax.Array, Any]:
        return self.method.ask(state)

    def tell(self, state: Any, picks: jax.Array, scores: Scores) -> Any:
        self.remember(np.asarray(picks), scores)
        return self.method.tell(state, picks, scores)

    def remember(self, picks: np.ndarray, scores: Scores) -> None:
        """Keep what is better than all before; the first of equal ones."""
        fitness, feasible = np.asarray(scores.fitness), np.asarray(scores.feasible)
        sizes = np.array([d.num_gpus for d in self.space.degrees])[picks[0]]
        for size in np.unique(sizes).tolist():
            places = np.flatnonzero(sizes == size)
            place = places[np.argmax(fitness[places])]
            known = self.best.get(size)
            if fitness[place] > (-np.inf if known is None else known.fitness):
                self.best[size] = _Kept(
                    fitness=float(fitness[place]),
                    feasible=bool(feasible[place]),
                    picks=np.array(picks[:, place], np.int32),
                )


@dataclass(frozen=True, eq=False, kw_only=True)
class Searched:
    """What a search of all pools found.

    Attributes:
      candidates: per phase the best feasible one of every size, smallest first; if
        there is none, the nearest miss.
      evaluations: candidates scored.
    """

    candidates: Candidates
    evaluations: int


def search_phases(
    prepared: Mapping[str, Prepared],
    *,
    method: str,
    budget: int,
    key: jax.Array,
    on_progress: Callable[[int, float], None] | None = None,
) -> Searched:
    """Search every phase with its share of the budget.

    Args:
      budget: candidates to score in all; a trial of the best genes under all degrees
        is part of it, where it takes no more than half.
      key: consumed.
    """
    trials = sum(len(own.space.degrees) for own in prepared.values())
    share = max(1, max(budget - trials, budget // 2) // len(prepared))
    candidates, evaluations = {}, 0
    for own_key, (phase, own) in zip(
        jax.random.split(key, len(prepared)), prepared.items(), strict=True
    ):
        evaluator, before = own.evaluator, evaluations

        def progress(count: int, fitness: float, before: int = before) -> None:
            if on_progress is not None:
                on_progress(before + count, fitness)

        remembering = _Remembering(
            method=METHODS[method](evaluator, share), space=own.space
        )
        found = run(
            remembering, evaluator, budget=share, key=own_key, on_progress=progress
        )
        evaluations += found.evaluations
        if found.evaluations == share:  # else the method has no more to ask
            every = np.repeat(found.picks[:, None], len(own.space.degrees), axis=1)
            every[0] = np.arange(len(own.space.degrees))
            remembering.remember(every, evaluator.evaluate(jnp.asarray(every)))
            evaluations += every.shape[1]
        kept = [remembering.best[size] for size in sorted(remembering.best)]
        nearest = max(kept, key=lambda one: one.fitness)
        kept = [one for one in kept if one.feasible] or [nearest]
        candidates[phase] = np.stack([one.picks for one in kept], axis=1)
    return Searched(candidates=candidates, evaluations=evaluations)
