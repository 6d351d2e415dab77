"""Fits of engine profiles to measured serving points, drawn to one another.

The scalars of a profile move by factors; each is pulled by a normal prior of its own
width: those of an engine's version to what all versions of the engine share, those to
what all engines share. So a profile with few points, or with points of one model only,
stays near its relatives.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from lts.cost.profile import SCALARS, Profile
from lts.cost.steady import (
    Depth,
    alone_s,
    at_once_tokens_per_s,
    closed_tokens_per_s,
    decode_step_s,
    prompt_s,
    tpot_s,
    ttft_s,
)

TPOT, TTFT, CLOSED_RATE, AT_ONCE_RATE, ALONE, STEP = range(6)
"""What a point measures: time per token and to the first, tokens per second of a closed
loop and of requests sent at once, a prompt alone, one decode step."""

WIDTHS = {
    "gemm": 0.15,
    "attention": 0.2,
    "moe": 0.3,
    "all_reduce": 0.4,
    "prefill": 0.15,
    "layer_s": 0.8,
    "expert_layer_s": 1.0,
    "step_s": 0.8,
    "sequence_s": 0.8,
    "prompt_s": 1.2,
    "handover_s": 1.0,
    "host_s": 1.0,
    "alone": 0.2,
    "waiting": 1.0,
    "running": 0.6,
    "saturation_s": 1.5,
}
"""Width of the prior of each scalar, as a natural logarithm. `dispatch` is not fitted:
of published rows too few have attention replicas, most of them of one engine that is
slow for other reasons."""
_NOT_SHARED = ("saturation_s",)
"""Of single engine versions: left as it was when one profile is fitted to several."""

FARTHEST = 3.0
"""Widths that a scalar may lie off its prior's centre: measurements that ask for more
show something else than that scalar."""

_SOFT = 0.1
_SOFT_TTFT = 0.2
"""Relative error from which a point pulls less (soft L1): times to first token scatter
more than others."""
COMMON_TIGHTNESS = 0.25
"""Of the widths, when one profile is fitted to all sets: it must serve engines,
too, that have little in common with most of them."""
ENGINE_TIGHTNESS, FEW_TIGHTNESS, FEW_POINTS = 0.6, 0.15, 400
"""Of the widths, when one is fitted to an engine's versions, and where these have few
points: what sets such an engine apart may be its one model's."""
_MOST_STEPS = 60


class Points(NamedTuple):
    """What step times, counts and measurements of serving points are; `[points]`.

    `decode`, `last`, `prompt`, `alone` are operator times by class
    `[points, classes]`: a step of all that are in flight, one of the last wave, what a
    prompt adds, and a prompt by itself. Counts as in `lts.cost.steady`.
    """

    decode: np.ndarray
    last: np.ndarray
    prompt: np.ndarray
    alone: np.ndarray
    in_flight: np.ndarray
    rank_sequences: np.ndarray
    rank_last: np.ndarray
    waves: np.ndarray
    rest: np.ndarray
    requests: np.ndarray
    servers: np.ndarray
    output_len: np.ndarray
    layers: np.ndarray
    expert_layers: np.ndarray
    expert_doublings: np.ndarray
    stages: np.ndarray
    quantity: np.ndarray
    value: np.ndarray

    def at(self, places: np.ndarray) -> "Points":
        """The same with some points only; bool or int `places`."""
        return Points(*(array[places] for array in self))


def joined(parts: Sequence[Points]) -> Points:
    """All points of several sets, in order."""
    return Points(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def predicted(points: Points, profile: Profile) -> np.ndarray:
    """Seconds or tokens per second of every point, in its own quantity."""
    depth = Depth(points.layers, points.expert_layers, points.expert_doublings)
    decode = decode_step_s(
        points.decode,
        points.rank_sequences,
        points.in_flight,
        points.stages,
        depth,
        profile,
    )
    prompt = prompt_s(points.prompt, points.stages, depth, profile)
    alone = alone_s(points.alone, depth, profile)
    tpot = tpot_s(decode, prompt, points.in_flight, points.output_len)
    rate = closed_tokens_per_s(tpot, points.in_flight, points.output_len)
    ttft = ttft_s(alone, prompt, decode, points.in_flight, rate, profile)
    # a closed loop's requests also wait for their first token
    own = ttft + (points.output_len - 1) * tpot
    closed = points.servers * points.in_flight * points.output_len / own
    last = decode_step_s(
        points.last, points.rank_last, points.rest, points.stages, depth, profile
    )
    at_once = points.servers * at_once_tokens_per_s(
        decode,
        last,
        prompt,
        points.waves,
        points.rest,
        points.requests,
        points.output_len,
    )
    choices = [tpot, ttft, closed, at_once, alone + profile.host_s, decode]
    return np.choose(points.quantity, choices)


def fit_profile(
    points: Points,
    common: Profile,
    *,
    name: str = "",
    tightness: float = 1.0,
    weights: np.ndarray | None = None,
) -> Profile:
    """The profile that comes closest to the points and to a common profile.

    Least squares in the logarithm with a soft L1 loss; deterministic.

    Args:
      common: centre of the prior; its other fields are kept.
      tightness: factor of the priors' widths; 0 gives the common profile.
      weights: of the points' residuals, `[points]`; None for 1.
    """
    if not len(points.value) or not tightness:
        return replace(common, name=name or common.name)
    fitted = [*WIDTHS]
    centre = np.array([getattr(common, scalar) for scalar in fitted])
    width = tightness * np.array([WIDTHS[scalar] for scalar in fitted])
    scale = np.where(np.isin(points.quantity, (TTFT, ALONE)), _SOFT_TTFT, _SOFT)
    scale = scale if weights is None else scale / weights

    def profile_of(code: np.ndarray) -> Profile:
        values = centre * np.exp(width * code)
        return replace(common, **dict(zip(fitted, map(float, values), strict=True)))

    def residuals(code: np.ndarray) -> np.ndarray:
        error = np.log(predicted(points, profile_of(code)) / points.value) / scale
        return np.concatenate([error, code])

    found = least_squares(
        residuals,
        np.zeros(len(fitted)),
        bounds=(-FARTHEST, FARTHEST),
        loss="soft_l1",
        max_nfev=_MOST_STEPS,
    )
    return replace(profile_of(found.x), name=name, points=len(points.value))


def middle(profiles: Sequence[Profile], name: str = "middle") -> Profile:
    """Median of every scalar over profiles, in the logarithm; memory as a default's.

    Raises:
      ValueError: if there are none.
    """
    if not profiles:
        raise ValueError("a middle needs profiles")
    values = {
        scalar: float(np.exp(np.median([np.log(getattr(p, scalar)) for p in profiles])))
        for scalar in SCALARS
    }
    points = sum(profile.points for profile in profiles)
    return replace(Profile(name=name, points=points), **values)


def fit_common(
    sets: Mapping[str, Points], start: Profile, *, tightness: float = COMMON_TIGHTNESS
) -> Profile:
    """One profile for all sets; a set counts by the root of its number of points.

    Of what is not shared (`_NOT_SHARED`) the start is kept; it is fitted all the same,
    so that no other scalar stands for it.
    """
    sets = {name: points for name, points in sets.items() if len(points.value)}
    weights = [np.full(len(p.value), len(p.value) ** -0.25) for p in sets.values()]
    pooled = np.concatenate(weights)
    found = fit_profile(
        joined([*sets.values()]),
        start,
        tightness=tightness,
        weights=pooled / pooled.mean(),
    )
    return replace(found, **{name: getattr(start, name) for name in _NOT_SHARED})


class Family(NamedTuple):
    """Profiles by version, what each engine's versions share, and all engines."""

    versions: dict[str, Profile]
    engines: dict[str, Profile]
    common: Profile

    @property
    def middle(self) -> Profile:
        """The geometric middle of the versions."""
        return middle([*self.versions.values()])

    def nearest(self, version: str, engine: str) -> Profile:
        """Of the version; where there is none, of its engine; else the middle."""
        return self.versions.get(version) or self.engines.get(engine) or self.middle


def fit_family(
    sets: Mapping[str, Points],
    engine_of: Mapping[str, str],
    start: Profile,
    tightness: Mapping[str, float],
) -> Family:
    """One profile per version, drawn to its engine's, which is drawn to the common one.

    Args:
      sets: points by version.
      engine_of: of each version.
      tightness: of each version, as `fit_profile`.
    """
    common = fit_common(sets, start)
    engines = {}
    for engine in dict.fromkeys(engine_of[name] for name in sets):
        own = {n: points for n, points in sets.items() if engine_of[n] == engine}
        few = sum(len(points.value) for points in own.values()) <= FEW_POINTS
        width = FEW_TIGHTNESS if few else ENGINE_TIGHTNESS
        engines[engine] = fit_common(own, common, tightness=width)
    versions = {
        name: fit_profile(
            points, engines[engine_of[name]], name=name, tightness=tightness[name]
        )
        for name, points in sets.items()
    }
    return Family(versions=versions, engines=engines, common=common)
