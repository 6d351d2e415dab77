"""What every evaluator gives a search: scores, however they were found."""

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from lts.space import Space


class Scores(NamedTuple):
    """Scores of candidates, `[candidates]` each.

    Attributes:
      objective: higher is better; meaningful where feasible.
      violation: 0 if feasible, else how far limits are missed (natural log).
    """

    objective: jax.Array
    violation: jax.Array

    @property
    def feasible(self) -> jax.Array:
        """Which candidates keep every limit."""
        return self.violation <= 0

    @property
    def fitness(self) -> jax.Array:
        """One number to maximise: log objective, any feasible above any infeasible."""
        safe = jnp.where(self.feasible, self.objective, 1.0)
        good = jnp.log(safe)
        return jnp.where(self.feasible, good, -100.0 - self.violation)


class Evaluator(Protocol):
    """Scores candidates. One candidate scored is one evaluation."""

    @property
    def space(self) -> Space:
        """The space that candidates are from."""
        ...

    def evaluate(self, picks: jax.Array) -> Scores:
        """Scores of `picks`, int32 `[genes, candidates]`."""
        ...
