"""Experts split over devices: `expert_ffn` under `jax.shard_map`.

What a mesh axis of the experts costs depends on whether it shards tokens too:

| a mesh axis shards | collectives of one layer, on every device |
|---|---|
| tokens and experts | two all-to-alls a round; an all-reduce of 4 bytes |
| experts alone | an all-reduce of the result `[t, d]` |
| the hidden dim of experts | the same all-reduce, over all such axes at once |
| tokens alone | none |

A token goes *once* to each device that holds one of its experts, whatever their number,
and one row comes back. Rows beyond the room of a round travel in a further round, so
that nothing is dropped; the 4 bytes say how many rounds there are.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from lts.models.capacity import (
    COLUMNS_PER_SLOT,
    destination_rows,
    exchanged_capacity,
    expert_capacity,
)
from lts.models.experts import (
    Weight,
    buckets,
    grouped_ffn,
    num_experts,
    rows_at,
    summed_rows,
)
from lts.models.quantized import BlockScaled

AnyMesh = Mesh | AbstractMesh

_BASE = 256  # two digits name 65,536 experts; bfloat16 holds each exactly


class ExpertLayout(NamedTuple):
    """Mesh axes of the op's dims, as the specs of its arrays have them.

    Attributes:
      tokens: axes of every token dim.
      experts: axes of the experts, as they stand in the weights' spec: in mesh order.
      hidden: axes of the experts' hidden dim.
    """

    tokens: tuple[tuple[str, ...], ...]
    experts: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()

    @property
    def on(self) -> tuple[str, ...]:
        """Axes of the experts that shard tokens too: rows are exchanged over them."""
        return tuple(axis for axis in self.experts if axis in self.token_axes)

    @property
    def off(self) -> tuple[str, ...]:
        """Axes of the experts alone: results are summed over them."""
        return tuple(axis for axis in self.experts if axis not in self.token_axes)

    @property
    def token_axes(self) -> tuple[str, ...]:
        """Axes of all token dims."""
        return tuple(axis for dim in self.tokens for axis in dim)


def sharded_expert_ffn(
    mesh: AnyMesh,
    layout: ExpertLayout,
    x: jax.Array,
    weight: jax.Array,
    expert: jax.Array,
    gate: Weight | None,
    up: Weight,
    down: Weight,
    scatter: Mapping[str, int] | None = None,
) -> jax.Array:
    """`expert_ffn` with tokens, experts and their hidden dim split as `layout` says.

    Manual over all axes of the mesh: what a partitioner may split over idle ones, it
    gathers again in every round.

    Args:
      x, weight, expert, gate, up, down: as for `expert_ffn`, global arrays.
      scatter: for axes of `off` and `hidden`, the dim of the result over which their
        sum is scattered, inside the axes that shard the dim already; the sum over other
        axes is whole on every device.

    Returns:
      `[*tokens, d]`, its token dims split as those of `x`.

    Raises:
      ValueError: in one line, if an axis shards two dims other than tokens and experts,
        a dim does not divide, `scatter` names another axis, or rows are exchanged in a
        type of less than 16 bits.
    """
    scatter = dict(scatter or {})
    _check(mesh, layout, x, up, scatter)
    token = PartitionSpec(*layout.tokens)
    into = layout.experts, (), layout.hidden
    back = layout.experts, layout.hidden, ()
    result = [*layout.tokens, ()]
    for axis, dim in scatter.items():
        result[dim] = (*result[dim], axis)
    axes = {*layout.token_axes, *layout.experts, *layout.hidden}
    run = partial(_local, mesh, layout, scatter)
    if not axes:
        return run(x, weight, expert, gate, up, down)
    return jax.shard_map(
        run,
        mesh=mesh,
        in_specs=(
            *(token, token, token),
            *(_weight_spec(gate, into), _weight_spec(up, into)),
            _weight_spec(down, back),
        ),
        out_specs=PartitionSpec(*result),
        check_vma=False,
    )(x, weight, expert, gate, up, down)


def _local(
    mesh: AnyMesh,
    layout: ExpertLayout,
    scatter: Mapping[str, int],
    x: jax.Array,
    weight: jax.Array,
    expert: jax.Array,
    gate: Weight | None,
    up: Weight,
    down: Weight,
) -> jax.Array:
    """What one device does, on its local arrays."""
    top_k, width = expert.shape[-1], x.shape[-1]
    rows = x.reshape(-1, width), weight.reshape(-1, top_k), expert.reshape(-1, top_k)
    owner, expert = _owners(mesh, layout, rows[2], num_experts(up))
    if layout.on:
        out = _exchanged(mesh, layout, owner, *rows[:2], expert, (gate, up, down))
    else:
        held = jnp.where(owner == 0, expert, -1)
        total = num_experts(up) * _ways(mesh, layout.experts)
        capacity = int(expert_capacity(len(held), top_k, total))
        out = grouped_ffn(*rows[:2], held, gate, up, down, capacity=capacity)
    return _summed(out.reshape(x.shape), layout, scatter)


def _owners(
    mesh: AnyMesh, layout: ExpertLayout, expert: jax.Array, held: int
) -> tuple[jax.Array, jax.Array]:
    """Where each expert lives: its place on the `on` axes, and its number there.

    The place is -1 for an expert that no device of this exchange holds, which includes
    those of devices elsewhere on the `off` axes.
    """
    block, number = expert // held, expert % held
    here = (block >= 0) & (block < _ways(mesh, layout.experts))
    place = jnp.zeros_like(block)
    inner = _ways(mesh, layout.experts)
    for axis in layout.experts:  # outermost first, as a spec has them
        size = mesh.shape[axis]
        inner //= size
        position = block // inner % size
        if axis in layout.on:
            place = place * size + position
        else:
            here &= position == lax.axis_index(axis)
    return jnp.where(here, place, -1), number


def _exchanged(
    mesh: AnyMesh,
    layout: ExpertLayout,
    owner: jax.Array,
    x: jax.Array,
    weight: jax.Array,
    expert: jax.Array,
    weights: tuple[Weight | None, Weight, Weight],
) -> jax.Array:
    """Sends rows to the devices of their experts, and adds up what comes back.

    Args:
      owner, expert: `[t, k]`, as `_owners` gives them.

    Returns:
      `[t, d]`: the part of the experts on the `on` axes.
    """
    (tokens, top_k), width = owner.shape, x.shape[1]
    ways, split = _ways(mesh, layout.on), _ways(mesh, layout.experts)
    capacity = int(destination_rows(tokens, top_k, split))
    total = num_experts(weights[1]) * split
    per_expert = int(exchanged_capacity(tokens, top_k, total, ways, split))
    first = _is_first(owner) & (owner >= 0)
    rows = buckets(jnp.where(first, owner, -1).reshape(-1), ways)
    rank = rows.rank.reshape(owner.shape)
    send = partial(
        lax.all_to_all, axis_name=layout.on, split_axis=0, concat_axis=0, tiled=True
    )

    def one_round(number: jax.Array, total: jax.Array) -> jax.Array:
        item, filled = rows.items(number, capacity)
        token = item // top_k  # [ways, capacity]
        device = lax.broadcasted_iota(jnp.int32, (ways, capacity, top_k), 0)
        there = (rows_at(owner, token) == device) & lax.expand_dims(filled, (2,))
        local = jnp.where(there, rows_at(expert, token), -1)
        sent = _packed(rows_at(x, token), rows_at(weight, token), local)
        received = send(sent).reshape(ways * capacity, -1)
        out = grouped_ffn(*_unpacked(received, top_k), *weights, capacity=per_expert)
        out = send(out.reshape(ways, capacity, width)).reshape(-1, width)
        now = first & (rank // capacity == number)
        place = jnp.where(now, owner * capacity + rank % capacity, -1)
        return total + summed_rows(out, place)

    # All devices of an exchange do as many rounds as the busiest of them.
    rounds = lax.pmax(rows.rounds(capacity), layout.on)
    return lax.fori_loop(0, rounds, one_round, jnp.zeros_like(x))


def _is_first(owner: jax.Array) -> jax.Array:
    """Whether each slot `[t, k]` is the first of its token with that owner."""
    slots = owner.shape[1]
    same = lax.expand_dims(owner, (2,)) == lax.expand_dims(owner, (1,))
    earlier = lax.expand_dims(jnp.tri(slots, k=-1, dtype=bool), (0,))
    return ~(same & earlier).any(axis=2)


def _packed(x: jax.Array, weight: jax.Array, expert: jax.Array) -> jax.Array:
    """Rows `[.., d + 3k]` in the type of `x`: one array, so one all-to-all.

    An expert's number is written in two digits, which 16 bits hold exactly; -1 stays.
    """
    high, low = expert // _BASE, expert % _BASE
    columns = [column.astype(x.dtype) for column in (x, weight, high, low)]
    return jnp.concatenate(columns, axis=-1)


def _unpacked(rows: jax.Array, top_k: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`_packed` undone: x `[r, d]`, weight and expert `[r, k]`."""
    width = rows.shape[-1] - COLUMNS_PER_SLOT * top_k
    ends = [width, width + top_k, width + 2 * top_k]
    x, weight, high, low = jnp.split(rows, ends, axis=-1)
    return x, weight, high.astype(jnp.int32) * _BASE + low.astype(jnp.int32)


def _summed(
    out: jax.Array, layout: ExpertLayout, scatter: Mapping[str, int]
) -> jax.Array:
    """The sum over `off` and `hidden`; scattered sums first, they leave less to add."""
    for dim in sorted(set(scatter.values())):
        axes = tuple(axis for axis in scatter if scatter[axis] == dim)
        out = lax.psum_scatter(out, axes, scatter_dimension=dim, tiled=True)
    whole = tuple(a for a in layout.off + layout.hidden if a not in scatter)
    return lax.psum(out, whole) if whole else out


def _weight_spec(
    weight: Weight | None, dims: Sequence[tuple[str, ...]]
) -> BlockScaled | PartitionSpec:
    """Spec of a weight; a dim with one scale for all of it has that everywhere."""
    spec = PartitionSpec(*dims)
    if not isinstance(weight, BlockScaled):
        return spec
    sizes = zip(weight.scale.shape, dims, strict=True)
    scale = PartitionSpec(*(axes if size > 1 else () for size, axes in sizes))
    return BlockScaled(spec, scale)  # pyright: ignore[reportArgumentType]


def _ways(mesh: AnyMesh, axes: Sequence[str]) -> int:
    return math.prod(mesh.shape[axis] for axis in axes)


def _check(
    mesh: AnyMesh,
    layout: ExpertLayout,
    x: jax.Array,
    up: Weight,
    scatter: Mapping[str, int],
) -> None:
    summed = layout.off + layout.hidden
    used = [*layout.token_axes, *summed]
    if twice := {axis for axis in used if used.count(axis) > 1}:
        raise ValueError(
            f"expert_ffn cannot shard two dims over axis {min(twice)!r}: only tokens "
            f"and experts may share an axis"
        )
    if unknown := set(scatter) - set(summed):
        raise ValueError(
            f"expert_ffn has no sum over axis {min(unknown)!r} to scatter: name one of "
            f"{', '.join(summed) or 'no axes'}"
        )
    if layout.on and x.dtype.itemsize < 2:
        raise ValueError(
            f"expert_ffn exchanges rows of 16 bits or more, got {x.dtype}: cast x first"
        )
    values = up.values if isinstance(up, BlockScaled) else up
    into = (layout.experts, (), layout.hidden)
    dims = [*zip(x.shape[:-1], layout.tokens, strict=True)]
    dims += zip(values.shape, into, strict=True)
    if isinstance(up, BlockScaled):
        dims += [d for d in zip(up.scale.shape, into, strict=True) if d[0] > 1]
    for size, axes in dims:
        if size % _ways(mesh, axes):
            raise ValueError(
                f"expert_ffn cannot split {size} over axes {', '.join(axes)} "
                f"({_ways(mesh, axes)} ways): choose axes whose size divides it"
            )
