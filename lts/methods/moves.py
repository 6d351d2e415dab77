"""The prior over candidates and the small changes of them that methods share.

Every method draws from the same prior in the same encoding, so that a comparison of
methods compares no encodings.
"""

import jax
import jax.numpy as jnp
import numpy as np

from lts.cost.features import INHERIT_SHARE, LEVELS
from lts.space import INHERIT, Space

MOVES = {
    "degrees": 0.04,
    "role": 0.3,
    "swap roles": 0.1,
    "override": 0.36,
    "inherit": 0.2,
}
"""Chance of every kind of move."""
NUM_UNIFORMS = 4
"""Random numbers that one move needs."""


def quick_key(key: jax.Array) -> jax.Array:
    """A key of XLA's own generator from any key.

    Its draws compile several times faster than those of the default generator, which
    a search that compiles for ten seconds notices.
    """
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.key_data(key)
    return jax.random.wrap_key_data(jnp.resize(key, (4,)), impl="unsafe_rbg")


def sample_prior(space: Space, key: jax.Array, count: int) -> jax.Array:
    """Candidates from the prior, int32 `[genes, count]`.

    Degrees and roles are uniform; an override inherits with `INHERIT_SHARE`, else it
    is uniform over all its values.
    """
    value_key, inherit_key = jax.random.split(key)
    shape = (space.num_genes, count)
    picks = _uniform_values(space, value_key, shape)
    inherit = jax.random.bernoulli(inherit_key, INHERIT_SHARE, shape)
    override = np.arange(space.num_genes) >= space.first_override
    return _with_pins(space, jnp.where(override[:, None] & inherit, INHERIT, picks))


def _with_pins(space: Space, picks: jax.Array) -> jax.Array:
    for gene, value in space.pinned:
        picks = picks.at[gene].set(value)
    return picks


def _uniform_values(space: Space, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    limits = jnp.asarray(space.cardinalities)[:, None]
    values = (jax.random.uniform(key, shape) * limits).astype(jnp.int32)
    return jnp.minimum(values, limits - 1)


def live_genes(space: Space, degrees: jax.Array) -> jax.Array:
    """Genes that have an effect: not pinned, nor of an axis of size 1.

    Args:
      degrees: int32 `[candidates]`.

    Returns:
      bool `[genes, candidates]`.
    """
    axes = np.array([gene.axis for gene in space.genes])
    live = np.where(axes < 0, True, space.sizes[:, axes] > 1)
    live[:, [gene for gene, _ in space.pinned]] = False
    return jnp.asarray(live.T)[:, degrees]


def move(space: Space, uniforms: jax.Array, picks: jax.Array) -> jax.Array:
    """Every candidate with one small change.

    A change is new degrees, one new role, two axes of a group with their roles
    swapped, one new override, or one override back to "inherit".

    Args:
      uniforms: draws from [0, 1), `[NUM_UNIFORMS, candidates]`.
      picks: int32 `[genes, candidates]`.
    """
    of_kind, of_gene, of_value, of_axis = uniforms
    ends = np.cumsum([*MOVES.values()])
    kind = (of_kind[:, None] >= jnp.asarray(ends[None, :-1], jnp.float32)).sum(1)
    level = np.array([LEVELS.index(g.kind) for g in space.genes])
    live = live_genes(space, picks[0])
    open_ = live & (jnp.asarray(space.cardinalities)[:, None] > 1)
    wanted = jnp.array([0, 1, 1, 2, 2])[kind]
    among = open_ & (level[:, None] == wanted[None])
    returning = among & (picks != INHERIT)
    among = jnp.where(((kind == 4) & returning.any(0))[None], returning, among)
    # a gene drawn uniformly from those of the kind; none if there are none
    place = of_gene * among.sum(0)
    gene = jnp.argmax(jnp.cumsum(among, axis=0) > place[None], axis=0)
    limit = jnp.asarray(space.cardinalities)[gene]
    now = jnp.take_along_axis(picks, gene[None], axis=0)[0]
    step = (of_value * (limit - 1)).astype(jnp.int32)
    other = (now + 1 + step) % limit
    value = jnp.where(kind == 4, INHERIT, other)
    chosen = (jnp.arange(len(picks))[:, None] == gene[None]) & among
    changed = jnp.where(chosen, value[None], picks)
    swapped = _swapped(space, of_axis, picks, gene, changed)
    return jnp.where((kind == 2)[None], swapped, changed)


def _swapped(
    space: Space,
    draw: jax.Array,
    picks: jax.Array,
    gene: jax.Array,
    fallback: jax.Array,
) -> jax.Array:
    """Roles of the axis of `gene` and another axis swapped; `fallback` if equal."""
    axes = space.num_axes
    if axes == 1:
        return fallback
    owner, axis = (gene - space.first_role) // axes, (gene - space.first_role) % axes
    step = 1 + (draw * (axes - 1)).astype(jnp.int32)
    other = space.first_role + owner * axes + (axis + step) % axes
    here = jnp.take_along_axis(picks, gene[None], axis=0)
    there = jnp.take_along_axis(picks, other[None], axis=0)
    rows = jnp.arange(len(picks))[:, None]
    swapped = jnp.where(rows == other[None], here, picks)
    swapped = jnp.where(rows == gene[None], there, swapped)
    is_role = (gene >= space.first_role) & (gene < space.first_override)
    return jnp.where(is_role[None] & (here != there), swapped, fallback)
