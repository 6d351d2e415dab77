"""Time, memory and collectives of a mixture of experts under every choice.

What is priced is what `lts.models.dispatch` does: a token goes once to each device that
holds one of its experts and one row comes back, in buffers with some room over the even
share; each device then runs the experts that it holds, as grouped products that read
the weights of those experts only that some row has. The sum over axes of experts or of
their hidden index alone is an edge of the graph, not part of the op.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lts.cost.collective import collective_time_s
from lts.cost.dispatch import all_to_all_bytes, expert_rows, experts_touched, rounds
from lts.cost.pricing import Pricing
from lts.cost.sharding import Sharding, group_sizes, shard
from lts.graph import Node, Operand
from lts.mesh import Degrees, MeshAxis

_ELEMENTWISE_LAUNCHES = 4  # sort, pack, activation, combine


@dataclass(frozen=True, eq=False, kw_only=True)
class Load:
    """What one device of an expert op works on; `[degrees, choices, batches]` each.

    Attributes:
      tokens: that it holds.
      pairs: (token, expert) pairs that its experts work on.
      experts: that it holds, `[degrees, choices, 1]`.
      hidden_ways: devices that share each expert, likewise.
      split: devices that the experts are split over, likewise.
      exchanged: over how many of these tokens travel, likewise.
      inside, across: these by link level, `[degrees, choices]`.
    """

    tokens: np.ndarray
    pairs: np.ndarray
    experts: np.ndarray
    hidden_ways: np.ndarray
    split: np.ndarray
    exchanged: np.ndarray
    inside: np.ndarray
    across: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of an expert op that no sharding changes."""

    top_k: int
    experts: int
    width: int
    hidden: int
    itemsize: int  # of activations
    products: int  # matrices of an expert
    expert_bytes: float  # weights and scales of one expert


def sizes_of(node: Node) -> Sizes:
    """The sizes of an `expert_ffn` node."""
    x, weight, _, *weights = (operand.array for operand in node.operands)
    experts, hidden, width = _down(node).array.shape
    return Sizes(
        top_k=weight.shape[-1],
        experts=experts,
        width=width,
        hidden=hidden,
        itemsize=int(x.itemsize),
        products=len(weights) if len(weights) < 4 else len(weights) // 2,
        expert_bytes=sum(array.nbytes for array in weights) / experts,
    )


def exchanging(node: Node, states: np.ndarray) -> np.ndarray:
    """Axes that shard tokens and experts at once; bool like `states`."""
    pairs = [i + 1 for i, factor in enumerate(node.factors) if factor.both]
    return np.isin(states, pairs)


def _down(node: Node) -> Operand:
    """The matrix `[experts, hidden, width]`: the last operand, or before its scales."""
    return node.operands[-2 if len(node.operands) > 6 else -1]


def _ways(sharding: Sharding, factors: Sequence[int | None]) -> np.ndarray:
    ways = np.ones(sharding.ways.shape[:2])
    for factor in factors:
        if factor is not None:
            ways = ways * sharding.ways[:, :, factor]
    return ways[..., None]


def load_of(node: Node, sharding: Sharding, skew: float) -> Load:
    """What the busiest device of every choice works on.

    Args:
      skew: tokens that it receives over the mean of all devices.
    """
    x = node.operands[0].array
    experts, hidden, _ = _down(node).factors
    split = _ways(sharding, [experts])
    on = exchanging(node, sharding.states)
    inside, across = group_sizes(on, sharding)
    count = np.prod(x.shape[:-1]) * sharding.scale(x.batch_power)[:, None]
    local = count / _ways(sharding, node.operands[0].factors)
    exchanged = (inside * across)[..., None].astype(float)
    sizes = sizes_of(node)
    even = local * exchanged * sizes.top_k / split
    return Load(
        tokens=local,
        pairs=np.where(split > 1, even * skew, even),
        experts=sizes.experts / split,
        hidden_ways=_ways(sharding, [hidden]),
        split=split,
        exchanged=exchanged,
        inside=inside,
        across=across,
    )


def expert_time_s(node: Node, sharding: Sharding, pricing: Pricing) -> np.ndarray:
    """Seconds of all trips of an expert op under XLA, its exchanges included.

    Returns:
      `[degrees, choices, batches]`.
    """
    load, sizes = load_of(node, sharding, pricing.skew), sizes_of(node)
    chip = pricing.chip
    bandwidth = chip.achieved_bytes_per_s
    rows = _rows(load)
    products = 2.0 * sizes.products * sizes.width * sizes.hidden / load.hidden_ways
    math_s = rows * products / chip.achieved_flops_per_s(node.dtype)
    touched = experts_touched(load.pairs, load.experts)
    moved = touched * sizes.expert_bytes / load.hidden_ways
    wide = (sizes.products + 1) * sizes.hidden / load.hidden_ways
    moved = moved + rows * (2 * sizes.width + wide) * sizes.itemsize
    launches = sizes.products + _ELEMENTWISE_LAUNCHES
    time_s = np.maximum(math_s, moved / bandwidth) + launches * pricing.launch_s
    time_s = time_s + _exchange_time_s(load, sizes, pricing, bandwidth)
    return time_s * node.trips


def _rows(load: Load) -> np.ndarray:
    """Rows of the grouped products of the busiest device."""
    return expert_rows(load.pairs, load.experts, most=load.tokens * load.exchanged)


def _exchanged_bytes(load: Load, sizes: Sizes) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of one device's rows in a round, there and back."""
    return all_to_all_bytes(
        load.tokens,
        sizes.top_k,
        load.exchanged,
        load.split,
        sizes.width,
        sizes.itemsize,
    )


def _exchange_time_s(
    load: Load, sizes: Sizes, pricing: Pricing, bandwidth: float
) -> np.ndarray:
    """Two all-to-alls a round, and the all-reduce that counts the rounds."""
    there, back = _exchanged_bytes(load, sizes)
    group = load.inside[..., None], load.across[..., None]
    packed = 2 * (there + back) / bandwidth  # written and read once on each side
    one_round = packed + sum(
        collective_time_s("all_to_all", nbytes, *group, pricing)
        for nbytes in (there, back)
    )
    count = collective_time_s("all_reduce", np.array(4.0), *group, pricing)
    total = rounds(load.tokens, sizes.top_k, load.split, pricing.skew)
    total = total * one_round + count
    return np.where(load.exchanged > 1, total, 0.0)


def buffer_bytes(node: Node, sharding: Sharding) -> np.ndarray:
    """Bytes of the buffers of an expert op; `[degrees, choices, batches]`."""
    load, sizes = load_of(node, sharding, 1.0), sizes_of(node)
    there, back = _exchanged_bytes(load, sizes)
    rows = _rows(load)
    wide = sizes.width + 2 * sizes.hidden / load.hidden_ways
    exchanged = np.where(load.exchanged > 1, there + back, 0.0)
    return exchanged + rows * wide * sizes.itemsize


def exchanged_bytes(
    node: Node, states: np.ndarray, axes: Sequence[MeshAxis]
) -> tuple[int, int]:
    """Bytes of one device's rows there and back in one round, at the traced batch.

    Args:
      states: of the node, `[axes]`.
    """
    degrees = Degrees(stages=1, axes=tuple(axes))
    ones = np.ones((1, 1), np.int64)
    load = load_of(node, shard(node, states[None], (degrees,), ones, 1), 1.0)
    sizes = sizes_of(node)
    there, back = _exchanged_bytes(load, sizes)
    return int(there.squeeze()), int(back.squeeze())
