"""The elite buffer: the best distinct candidates so far, in fixed shapes.

Distinct means of different picks; callers insert canonical ones. A *basin* is one
choice of degrees and roles. A quota per basin keeps the buffer from filling with small
variations of one plan.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct


class Elites(struct.PyTreeNode):
    """Best candidates, best first; empty places have fitness -inf.

    Attributes:
      picks: int32 `[genes, elites]`.
      fitness: `[elites]`.
    """

    picks: jax.Array
    fitness: jax.Array

    @property
    def filled(self) -> jax.Array:
        """Which places hold a candidate; bool `[elites]`."""
        return jnp.isfinite(self.fitness)


def empty_elites(num_genes: int, capacity: int) -> Elites:
    """A buffer that holds nothing."""
    return Elites(
        picks=jnp.zeros((num_genes, capacity), jnp.int32),
        fitness=jnp.full(capacity, -jnp.inf, jnp.float32),
    )


def fingerprints(picks: jax.Array, seed: int = 0) -> jax.Array:
    """Two 32-bit hashes of every candidate; equal for equal candidates.

    Args:
      picks: int32 `[genes, candidates]`.

    Returns:
      uint32 `[2, candidates]`. Two different candidates agree in both with a chance
      of about 2^-64.
    """
    random = np.random.default_rng(seed)
    shape = (2, len(picks), 1)
    factors = random.integers(0, 2**32, shape, dtype=np.uint32) | np.uint32(1)
    shifts = random.integers(0, 2**32, shape, dtype=np.uint32)
    mixed = (picks.astype(jnp.uint32)[None] + jnp.asarray(shifts)) * factors
    mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(0x2C1B3C6D)
    mixed = (mixed ^ (mixed >> 12)) * jnp.uint32(0x297A2D39)
    return (mixed ^ (mixed >> 15)).sum(1, dtype=jnp.uint32)


def repeats(hashes: jax.Array) -> jax.Array:
    """Which candidates equal an earlier one; `hashes` is `[2, candidates]`."""
    same = (hashes[:, :, None] == hashes[:, None, :]).all(0)
    return jnp.tril(same, -1).any(1)


def insert(
    elites: Elites,
    picks: jax.Array,
    fitness: jax.Array,
    *,
    num_basin_genes: int,
    quota: int,
) -> Elites:
    """The best distinct candidates of a buffer and new ones.

    Of equal fitness the earlier found comes first, and of equal picks it is kept.

    Args:
      elites: the buffer.
      picks: int32 `[genes, candidates]`.
      fitness: `[candidates]`; -inf or NaN is never inserted.
      num_basin_genes: candidates that agree in so many first genes are one basin.
      quota: the most candidates of one basin.
    """
    picks = jnp.concatenate([elites.picks, picks], axis=1)
    fitness = jnp.where(jnp.isnan(fitness), -jnp.inf, fitness)
    fitness = jnp.concatenate([elites.fitness, fitness])
    order = jnp.argsort(-fitness, stable=True)
    picks, fitness = picks[:, order], fitness[order]
    keep = jnp.isfinite(fitness) & ~repeats(fingerprints(picks))
    basins = fingerprints(picks[:num_basin_genes])
    same = (basins[:, :, None] == basins[:, None, :]).all(0)
    better = (jnp.tril(same, -1) & keep[None, :]).sum(1)
    fitness = jnp.where(keep & (better < quota), fitness, -jnp.inf)
    order = jnp.argsort(-fitness, stable=True)[: elites.fitness.shape[0]]
    return Elites(picks=picks[:, order], fitness=fitness[order])
