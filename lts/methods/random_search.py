"""Random search: the prior, again and again. The floor under every method."""

import functools
from dataclasses import dataclass

import jax

from lts.evaluate.base import Evaluator, Scores
from lts.methods.moves import quick_key, sample_prior
from lts.space import Space

MAX_BATCH = 1024


@dataclass(frozen=True, eq=False, kw_only=True)
class RandomSearch:
    """Independent draws from the prior; its state is a key."""

    space: Space
    batch: int
    name: str = "random"

    @functools.cached_property
    def _sample(self):
        return jax.jit(lambda key: sample_prior(self.space, key, self.batch))

    def init(self, key: jax.Array) -> jax.Array:
        """The key is all there is."""
        return quick_key(key)

    def ask(self, state: jax.Array) -> tuple[jax.Array, jax.Array]:
        """A fresh batch."""
        key, next_key = jax.random.split(state)
        return self._sample(key), next_key

    def tell(self, state: jax.Array, picks: jax.Array, scores: Scores) -> jax.Array:
        """Nothing is learnt."""
        return state


def random_search(evaluator: Evaluator, budget: int) -> RandomSearch:
    """Random search over the evaluator's space."""
    return RandomSearch(space=evaluator.space, batch=min(MAX_BATCH, max(1, budget)))
