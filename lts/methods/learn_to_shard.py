"""Learning to shard: an attention policy over the elite buffer, trained as it searches.

Every step the policy draws candidates; those that repeat what was scored before, or
each other, are left out by drawing more than needed. At large budgets small changes
of elites and of the draws fill the batch, for a policy call costs more than a score
from tables. Scores train the policy by clipped policy gradient on rank advantages
(PPO, arXiv 1707.06347), and by imitation of the best elites, each read with itself
hidden (self-imitation, arXiv 1806.05635).
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from lts.cost.features import GeneFeatures, gene_features
from lts.elite import Elites, empty_elites, fingerprints, insert, repeats
from lts.evaluate.base import Scores
from lts.evaluate.tables import TableEvaluator
from lts.methods.moves import NUM_UNIFORMS, move, quick_key
from lts.policy import ElitePolicy, Reading, init_policy, log_probability, sample
from lts.space import Space


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings; the defaults are those of `METHODS`."""

    policy: ElitePolicy = ElitePolicy()
    num_elites: int = 32
    basin_quota: int = 8
    learning_rate: float = 3e-3
    epochs: int = 3
    clip: float = 0.2
    num_imitated: int = 8
    imitation: float = 0.3
    entropy: float = 0.003
    temperatures: tuple[float, float] = (1.0, 2.0)
    focus: float = 2.0  # scale of the noise by which candidates follow few elites
    oversampling: int = 3
    changed_draws: float = 0.25  # share of changed candidates that were draws
    max_moves: int = 3  # small changes of one mutated candidate
    seen_slots: int = 1 << 16  # scored candidates remembered, by hash


class LearnState(struct.PyTreeNode):
    """All that the search knows."""

    key: jax.Array
    params: Any
    optimizer: Any
    elites: Elites
    seen: jax.Array  # [slots] uint32 second hash of the candidate in a slot
    log_probs: jax.Array  # [genes, draws] of the draws now being scored
    focus: jax.Array  # [draws, elites] that they were drawn with
    asked: jax.Array  # [] bool: whether what is told next was asked for


@dataclass(frozen=True, eq=False, kw_only=True)
class LearnToShard:
    """`num_draws` candidates of the policy and `batch - num_draws` changed ones."""

    features: GeneFeatures
    batch: int
    num_draws: int
    config: Config = Config()
    name: str = "learn_to_shard"

    @property
    def space(self) -> Space:
        """The space that candidates are from."""
        return self.features.space

    @functools.cached_property
    def _optimizer(self):
        adam = optax.adam(self.config.learning_rate)
        # on one vector: a kernel per weight would triple the time to compile
        return optax.flatten(optax.chain(optax.clip_by_global_norm(1.0), adam))

    @functools.cached_property
    def _init(self):
        def init(key: jax.Array) -> LearnState:
            key, params_key = jax.random.split(quick_key(key))
            params = init_policy(self.features, self.config.policy, params_key)
            genes = self.space.num_genes
            return LearnState(
                key=key,
                params=params,
                optimizer=self._optimizer.init(params),
                elites=empty_elites(genes, self.config.num_elites),
                seen=jnp.zeros(self.config.seen_slots, jnp.uint32),
                log_probs=jnp.zeros((genes, self.num_draws)),
                focus=jnp.zeros((self.num_draws, self.config.num_elites)),
                asked=jnp.zeros((), bool),
            )

        return jax.jit(init)

    def init(self, key: jax.Array) -> LearnState:
        """Fresh weights, an empty buffer."""
        return self._init(key)

    def ask(self, state: LearnState) -> tuple[jax.Array, LearnState]:
        """Draws of the policy, then changed elites and draws."""
        return self._ask(state)

    def tell(self, state: LearnState, picks: jax.Array, scores: Scores) -> LearnState:
        """Train on the draws and on the elites, then take in what was scored."""
        return self._tell(state, picks, scores.fitness)

    def _reading(self, focus: jax.Array, elites: Elites) -> Reading:
        count = len(focus)
        low, high = self.config.temperatures
        # repeats of the same ladder, so that the draws kept have all temperatures
        ladder = np.linspace(low, high, self.num_draws)
        return Reading(
            focus=focus,
            visible=jnp.broadcast_to(elites.filled[None], focus.shape),
            temperature=jnp.asarray(np.resize(ladder, count), jnp.float32),
        )

    @functools.cached_property
    def _ask(self):
        config = self.config

        def ask(state: LearnState) -> tuple[jax.Array, LearnState]:
            key, focus_key, draw_key, change_key = jax.random.split(state.key, 4)
            pool = self.num_draws * config.oversampling
            noise = jax.random.gumbel(focus_key, (pool, config.num_elites))
            reading = self._reading(config.focus * noise, state.elites)
            drawn, log_probs = sample(
                self.features,
                config.policy,
                state.params,
                draw_key,
                state.elites,
                reading,
            )
            fresh = self._fresh(state, drawn)
            # of the draws of one temperature the first fresh one
            by_rung = fresh.reshape(config.oversampling, self.num_draws)
            kept = jnp.argmax(by_rung, axis=0) * self.num_draws
            kept = kept + np.arange(self.num_draws)
            picks = drawn[:, kept]
            if self.batch > self.num_draws:
                changed = self._changed(state, change_key, picks)
                picks = jnp.concatenate([picks, changed], axis=1)
            return picks, state.replace(
                key=key,
                log_probs=log_probs[:, kept],
                focus=reading.focus[kept],
                asked=jnp.ones((), bool),
            )

        return jax.jit(ask)

    def _fresh(self, state: LearnState, picks: jax.Array) -> jax.Array:
        """Candidates not scored before (as far as remembered) and not repeated."""
        hashes = fingerprints(picks)
        slot = hashes[0] % self.config.seen_slots
        return (state.seen[slot] != hashes[1]) & ~repeats(hashes)

    def _changed(
        self, state: LearnState, key: jax.Array, draws: jax.Array
    ) -> jax.Array:
        """Small changes of elites (good ones more often) and, one in four, of draws."""
        number = self.batch - self.num_draws
        pool = number + number // 4 + 4  # some will be repeats
        moves = self.config.max_moves
        uniforms = jax.random.uniform(key, (4 + NUM_UNIFORMS * moves, pool))
        of_parent, of_draw, of_source, of_count = uniforms[:4]
        elites = state.elites
        # places near the head are drawn more often
        parent = (of_parent**2 * elites.filled.sum()).astype(jnp.int32)
        draw = (of_draw * self.num_draws).astype(jnp.int32)
        from_draws = (of_source < self.config.changed_draws) | ~elites.filled[0]
        picks = jnp.where(from_draws[None], draws[:, draw], elites.picks[:, parent])

        def change(picks, step):
            number_of_move, uniforms = step
            moved = move(self.space, uniforms, picks)
            # one move, and each further one with half the chance
            more = of_count < 0.5**number_of_move
            return jnp.where(more[None], moved, picks), None

        steps = jnp.arange(moves), uniforms[4:].reshape(moves, NUM_UNIFORMS, pool)
        picks, _ = jax.lax.scan(change, picks, steps)
        picks = self.features.canonical(picks)
        order = jnp.argsort(~self._fresh(state, picks), stable=True)
        return picks[:, order[:number]]

    def _loss(self, params, state: LearnState, picks, fitness) -> jax.Array:
        """Clipped policy gradient on draws, imitation of elites, entropy."""
        config, draws = self.config, self.num_draws
        top = config.num_imitated
        samples = jnp.concatenate([picks[:, :draws], state.elites.picks[:, :top]], 1)
        own = self._reading(state.focus, state.elites)
        hidden = ~jnp.eye(top, config.num_elites, dtype=bool)
        reading = Reading(
            focus=jnp.concatenate([own.focus, jnp.zeros((top, config.num_elites))]),
            visible=jnp.concatenate([own.visible, hidden & state.elites.filled[None]]),
            temperature=jnp.concatenate([own.temperature, jnp.ones(top)]),
        )
        log_probs, entropy = log_probability(
            self.features, config.policy, params, samples, state.elites, reading
        )
        scored = jnp.isfinite(fitness) & state.asked
        rank = (fitness[:, None] > fitness[None]).sum(1)
        ties = (fitness[:, None] == fitness[None]).sum(1) - 1
        advantage = (2 * rank + ties) / max(1, draws - 1) - 1.0
        # clipped gene by gene: the ratio of a whole candidate leaves the range at once
        ratio = jnp.exp(log_probs[:, :draws] - state.log_probs)
        clipped = jnp.clip(ratio, 1 - config.clip, 1 + config.clip)
        gain = jnp.minimum(ratio * advantage[None], clipped * advantage[None]).sum(0)
        gain = jnp.where(scored, gain, 0.0).sum() / jnp.maximum(scored.sum(), 1)
        imitated = jnp.where(
            state.elites.filled[:top], log_probs[:, draws:].sum(0), 0.0
        )
        return -(
            gain
            + config.imitation * imitated.mean()
            + config.entropy * entropy[:, :draws].sum(0).mean()
        )

    @functools.cached_property
    def _tell(self):
        def tell(state: LearnState, picks, fitness) -> LearnState:
            drawn = fitness[: self.num_draws]

            def epoch(carry, _):
                params, optimizer = carry
                grads = jax.grad(self._loss)(params, state, picks, drawn)
                updates, optimizer = self._optimizer.update(grads, optimizer, params)
                return (optax.apply_updates(params, updates), optimizer), None

            (params, optimizer), _ = jax.lax.scan(
                epoch,
                (state.params, state.optimizer),
                length=self.config.epochs,
            )
            hashes = fingerprints(picks)
            slot = hashes[0] % self.config.seen_slots
            slot = jnp.where(jnp.isfinite(fitness), slot, self.config.seen_slots)
            return state.replace(
                params=params,
                optimizer=optimizer,
                elites=insert(
                    state.elites,
                    picks,
                    fitness,
                    num_basin_genes=self.space.first_override,
                    quota=self.config.basin_quota,
                ),
                seen=state.seen.at[slot].set(hashes[1], mode="drop"),
                asked=jnp.zeros((), bool),
            )

        return jax.jit(tell)


def learn_to_shard(evaluator: TableEvaluator, budget: int) -> LearnToShard:
    """The method for a budget: about 60 batches, of 16 to 2048 candidates."""
    batch = int(np.clip(budget // 60 // 16 * 16, 16, 2048))
    return LearnToShard(
        features=gene_features(evaluator.tables),
        batch=batch,
        num_draws=min(32, max(12, batch // 4)),
    )
