"""A mixture of experts as serving engines run it: one fused kernel, and all-to-alls.

Where axes shard tokens and experts at once, tokens travel to the ranks of their experts
and come back, by the quicker of the kernels for low latency and for throughput.
"""

import numpy as np

from lts.cost.distinct import evaluated
from lts.cost.experts import Sizes, exchanging, load_of, sizes_of
from lts.cost.kernels import READ_SHARE, busiest, spread_of
from lts.cost.operators import moe
from lts.cost.operators.deep_ep import (
    combine_time_s,
    dispatch_time_s,
    fit_key,
    notify_time_s,
)
from lts.cost.pricing import Pricing
from lts.cost.sharding import Sharding, group_sizes
from lts.cost.steady import SPREAD_SHARE
from lts.graph import Node

_GATED = 3  # matrices of the experts that were measured


def fused_time_s(node: Node, sharding: Sharding, pricing: Pricing) -> np.ndarray:
    """Seconds of all trips of an expert op, its exchanges included.

    Returns:
      `[degrees, choices, batches]`.
    """
    load, sizes = load_of(node, sharding, 1.0), sizes_of(node)
    power = node.operands[0].array.batch_power
    # at the traced batch, per device: sizes of the load are linear in the batch
    scale = sharding.scale(power)[:, None]
    tokens = (load.tokens * load.exchanged / scale)[..., 0]
    inside, across = group_sizes(exchanging(node, sharding.states), sharding)
    shape = sharding.ways.shape[:2]
    columns = [
        (tokens, power),
        (np.broadcast_to(load.hidden_ways[..., 0], shape), 0),
        (np.broadcast_to(load.split[..., 0], shape), 0),
        (inside, 0),
        (across, 0),
    ]

    def model(
        tokens: np.ndarray,
        tensor_ways: np.ndarray,
        expert_ways: np.ndarray,
        inside: np.ndarray,
        across: np.ndarray,
    ) -> np.ndarray:
        time = _kernel_s(sizes, tokens, tensor_ways, expert_ways, node.dtype, pricing)
        ways = inside * across
        sent = _exchange_s(sizes, tokens / ways, inside, across, pricing)
        sent = np.where(ways > 1, sent * pricing.factor("dispatch"), 0.0)
        return time * pricing.factor("moe") + sent + _spread_s(expert_ways, pricing)

    return evaluated(sharding, columns, model) * node.trips


def _spread_s(expert_ways: np.ndarray, pricing: Pricing) -> np.ndarray:
    """What the engine takes more where experts lie on several ranks."""
    assert pricing.engine is not None
    return pricing.engine.expert_layer_s * SPREAD_SHARE * np.log2(expert_ways)


def form_of(sizes: Sizes, pricing: Pricing) -> str:
    """The fitted form (`lts.cost.operators.moe.FORMS`) that prices the experts."""
    elements = sizes.products * sizes.hidden * sizes.width
    one_byte = sizes.expert_bytes < 1.5 * elements
    if not one_byte or pricing.one_byte not in moe.FORMS:
        return "bfloat16"
    return pricing.one_byte


def _kernel_s(
    sizes: Sizes,
    tokens: np.ndarray,
    tensor_ways: np.ndarray,
    expert_ways: np.ndarray,
    dtype: str,
    pricing: Pricing,
) -> np.ndarray:
    form = form_of(sizes, pricing)
    wanted = moe.FORMS[form].dtype
    known = dict(pricing.chip.peak_flops_per_s)
    if form == "bfloat16" or wanted not in known:
        wanted = dtype
    skew = pricing.skew * busiest(tokens, sizes.top_k, sizes.experts, expert_ways)
    time = moe.moe_time_s(
        tokens,
        np.array(sizes.width, float),
        np.array(sizes.hidden, float),
        np.array(sizes.top_k, float),
        np.array(sizes.experts, float),
        tensor_ways,
        expert_ways,
        skew=skew,
        spread=spread_of(sizes.experts),
        form=form,
        values=pricing.values(f"moe/{form}"),
        chip=pricing.chip_for(moe.FORMS[form].dtype, wanted),
    )
    _, active = moe.rank_load(
        tokens,
        np.array(sizes.top_k, float),
        np.array(sizes.experts, float),
        expert_ways,
        skew=skew,
        spread=spread_of(sizes.experts),
    )
    stored = moe.FORMS[form].weight_bytes * sizes.products * sizes.hidden * sizes.width
    time = time * sizes.products / _GATED
    return _lighter(time, active / tensor_ways, stored, sizes.expert_bytes, pricing)


def _lighter(
    time: np.ndarray,
    experts: np.ndarray,
    stored: float,
    read: float,
    pricing: Pricing,
) -> np.ndarray:
    """The time without the bytes that weights of fewer bits save.

    Args:
      experts: whole ones that are read.
      stored, read: bytes of one in the form that priced it, and as it is.
    """
    if read >= stored:
        return time
    rate = READ_SHARE * pricing.chip.hbm_bandwidth_bytes_per_s
    saved = experts * (stored - read) / rate
    return np.maximum(time - saved, time * read / stored)


def _exchange_s(
    sizes: Sizes,
    tokens: np.ndarray,
    inside: np.ndarray,
    across: np.ndarray,
    pricing: Pricing,
) -> np.ndarray:
    """To the experts and back, of a device's `tokens`."""
    found = []
    for low_latency in (True, False):
        total = np.zeros(tokens.shape)
        for phase, time_s in ("dispatch", dispatch_time_s), ("combine", combine_time_s):
            values = {
                place: pricing.values(fit_key(phase, place, low_latency=low_latency))
                for place in ("inside", "across")
            }
            total = total + time_s(
                tokens,
                np.array(sizes.width, float),
                np.array(sizes.top_k, float),
                np.array(sizes.experts, float),
                inside,
                across,
                low_latency=low_latency,
                values=values,
                chip=pricing.chip,
                intra=pricing.cluster.intra,
                inter=pricing.cluster.inter,
            )
        found.append(total if low_latency else total + notify_time_s(across))
    return np.minimum(*found) * pricing.exposed
