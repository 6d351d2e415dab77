"""Steady state of continuous batching: from the times of steps to those of requests.

Pure functions of arrays that broadcast, made of arithmetic alone, so that NumPy and
jitted JAX run the same formulas. `B` requests of `I` tokens read and `O` generated are
in flight:

    t_decode = sum_c m_c t_c + launches + step_s + sequence_s * B_rank
               + handover_s * B * (1 - 1 / stages)
    P        = prefill * (marginal time of a prompt + launches + prompt_s) / stages
    TPOT     = t_decode + (B - 1) / (O - 1) * P
    TTFT     = host_s + alone * T_alone + waiting * B * P + running * t_decode
               + saturation_s * (tokens/s / 10^4)^4
    launches = layer_s * L + expert_layer_s * L_experts * (1 + log2(EP) / 2)
    N requests at once, B at a time:
    time     = N * P + O * (floor(N / B) * t_decode(B) + t_decode(N mod B))

A pipeline's token takes the full depth at `B / stages` sequences; prompts overlap over
its stages. Form and constants: fits to published measurements (`experiments/e2e`).
"""

from typing import Any, NamedTuple

from lts.cost.profile import Profile
from lts.cost.served_step import CLASSES

Array = Any  # numpy or jax

MULTIPLIER_OF = {
    "gemm": "gemm",
    "lm_head": "gemm",
    "attention": "attention",
    "moe": "moe",
    "all_reduce": "all_reduce",
    "dispatch": "dispatch",
    "elementwise": None,
}
"""The scalar of a profile that each class of operators is multiplied by."""


class Depth(NamedTuple):
    """What launches are counted by; all broadcast against the step times.

    `expert_doublings` is the logarithm to base 2 of the ways that whole experts are
    spread over.
    """

    layers: Array
    expert_layers: Array
    expert_doublings: Array = 0.0


def weighted_s(times: Array, profile: Profile) -> Array:
    """Sum over classes with the profile's factors; `times` `[..., classes]`."""
    total = 0.0
    for place, name in enumerate(CLASSES):
        scalar = MULTIPLIER_OF[name]
        factor = 1.0 if scalar is None else getattr(profile, scalar)
        total = total + factor * times[..., place]
    return total


def launches_s(depth: Depth, profile: Profile) -> Array:
    """Launches of one pass through the layers, seconds."""
    each = profile.expert_layer_s * (1 + SPREAD_SHARE * depth.expert_doublings)
    return profile.layer_s * depth.layers + each * depth.expert_layers


SPREAD_SHARE = 0.5
"""What a layer with experts takes more for each doubling of the ranks that they are
spread over: sorting out which rows are local, and waiting for the last rank."""


def decode_step_s(
    times: Array,
    rank_sequences: Array,
    in_flight: Array,
    stages: Array,
    depth: Depth,
    profile: Profile,
) -> Array:
    """A step that decodes, with all its micro-batches.

    Args:
      times: `[..., classes]` of a micro-batch, full depth.
      rank_sequences: of the busiest rank in a micro-batch.
      in_flight: sequences of all micro-batches.
    """
    overhead = profile.step_s + profile.sequence_s * rank_sequences
    overhead = overhead + profile.handover_s * in_flight * (1 - 1 / stages)
    return weighted_s(times, profile) + launches_s(depth, profile) + overhead


def prompt_s(times: Array, stages: Array, depth: Depth, profile: Profile) -> Array:
    """What one prompt adds to running steps; `times`: with it less without it."""
    own = weighted_s(times, profile) + launches_s(depth, profile) + profile.prompt_s
    return profile.prefill * own / stages


def alone_s(times: Array, depth: Depth, profile: Profile) -> Array:
    """A prompt on an idle server, full depth."""
    own = weighted_s(times, profile) + launches_s(depth, profile) + profile.step_s
    return profile.prefill * own


def tpot_s(decode: Array, prompt: Array, in_flight: Array, output_len: Array) -> Array:
    """Time per further token of a closed loop; nothing further: the step itself."""
    further = _at_least(output_len - 1.0, 1.0)
    return decode + _at_least(in_flight - 1.0, 0.0) / further * prompt


def ttft_s(
    alone: Array,
    prompt: Array,
    decode: Array,
    in_flight: Array,
    tokens_per_s: Array,
    profile: Profile,
) -> Array:
    """Time to first token of a closed loop that does not queue."""
    waited = profile.waiting * in_flight * prompt + profile.running * decode
    busy = profile.saturation_s * (tokens_per_s / 1e4) ** 4
    return profile.host_s + profile.alone * alone + waited + busy


def closed_tokens_per_s(tpot: Array, in_flight: Array, output_len: Array) -> Array:
    """Generated tokens per second of a closed loop, the first token's wait aside."""
    return in_flight / tpot * output_len / _at_least(output_len - 1.0, 1.0)


def at_once_tokens_per_s(
    decode: Array,
    last: Array,
    prompt: Array,
    waves: Array,
    rest: Array,
    requests: Array,
    output_len: Array,
) -> Array:
    """Generated tokens per second when all requests are there from the start.

    Args:
      decode, last: step of a full batch, and of the `rest` of the requests.
      waves: full batches (`requests // batch`).
    """
    some = rest > 0
    time = requests * prompt + output_len * (waves * decode + some * last)
    return requests * output_len / time


def capacity(cache_bytes: Array, bytes_per_request: Array, replicas: Array) -> Array:
    """Requests that caches have room for, over all attention replicas; at least 1."""
    return _at_least(replicas * cache_bytes / bytes_per_request, 1.0)


def _at_least(value: Array, least: float) -> Array:
    """`maximum` by arithmetic that NumPy and JAX share."""
    return (value + least + abs(value - least)) / 2
