"""Simulated annealing: a few independent chains, cooled over the known budget.

Source: Kirkpatrick, Gelatt, Vecchi, "Optimization by simulated annealing", 1983, with
a geometric schedule. Energy is minus the fitness: the log of the objective, and the
log of how far limits are missed where a candidate is not feasible.
"""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct

from lts.evaluate.base import Evaluator, Scores
from lts.methods.moves import NUM_UNIFORMS, move, quick_key, sample_prior
from lts.space import Space

FIRST_TEMPERATURE = 0.5  # halves of the objective are passed freely
LAST_TEMPERATURE = 0.002  # only changes of 0.2% are


class AnnealingState(struct.PyTreeNode):
    """The chains: where they are, and how many steps were made."""

    key: jax.Array
    picks: jax.Array  # [genes, chains]
    fitness: jax.Array  # [chains]; -inf where a chain has not started
    steps: jax.Array  # []


@dataclass(frozen=True, eq=False, kw_only=True)
class Annealing:
    """`batch` chains, one move each per step, `num_steps` steps in all."""

    space: Space
    batch: int
    num_steps: int
    name: str = "annealing"

    @functools.cached_property
    def _ask(self):
        def ask(state: AnnealingState) -> tuple[jax.Array, AnnealingState]:
            key, prior_key, move_key = jax.random.split(state.key, 3)
            start = sample_prior(self.space, prior_key, self.batch)
            uniforms = jax.random.uniform(move_key, (NUM_UNIFORMS, self.batch))
            moved = move(self.space, uniforms, state.picks)
            started = jnp.isfinite(state.fitness)
            return jnp.where(started[None], moved, start), state.replace(key=key)

        return jax.jit(ask)

    @functools.cached_property
    def _tell(self):
        def tell(state: AnnealingState, picks, fitness) -> AnnealingState:
            key, accept_key = jax.random.split(state.key)
            done = jnp.minimum(state.steps / max(1, self.num_steps - 1), 1.0)
            ratio = LAST_TEMPERATURE / FIRST_TEMPERATURE
            temperature = FIRST_TEMPERATURE * ratio**done
            started = jnp.isfinite(state.fitness)
            gain = fitness - jnp.where(started, state.fitness, 0.0)
            chance = jnp.exp(jnp.minimum(gain / temperature, 0.0))
            accept = jax.random.uniform(accept_key, gain.shape) < chance
            accept = jnp.isfinite(fitness) & (accept | ~started)
            return AnnealingState(
                key=key,
                picks=jnp.where(accept[None], picks, state.picks),
                fitness=jnp.where(accept, fitness, state.fitness),
                steps=state.steps + 1,
            )

        return jax.jit(tell)

    def init(self, key: jax.Array) -> AnnealingState:
        """No chain has started."""
        return AnnealingState(
            key=quick_key(key),
            picks=jnp.zeros((self.space.num_genes, self.batch), jnp.int32),
            fitness=jnp.full(self.batch, -jnp.inf, jnp.float32),
            steps=jnp.zeros((), jnp.int32),
        )

    def ask(self, state: AnnealingState) -> tuple[jax.Array, AnnealingState]:
        """One move of every chain, or its start from the prior."""
        return self._ask(state)

    def tell(
        self, state: AnnealingState, picks: jax.Array, scores: Scores
    ) -> AnnealingState:
        """Chains that accept their move make it; a seed starts a chain."""
        return self._tell(state, picks, scores.fitness)


def annealing(evaluator: Evaluator, budget: int) -> Annealing:
    """Annealing over `budget`: 4 chains, 16 when each has thousands of steps."""
    chains = 4 if budget < 10_000 else 16
    return Annealing(
        space=evaluator.space, batch=chains, num_steps=max(1, budget // chains)
    )
