"""Predictions of rows that no fit has seen: by shape, model, profile and engine."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from experiments.e2e.points import Priced
from experiments.e2e.rows import Row
from lts.calibrate.profiles import (
    Family,
    Points,
    fit_common,
    fit_family,
    predicted,
)
from lts.cost.profile import MEMORY_RULES, MIDDLE, Profile

SHAPE_FOLDS = 5
TIGHTNESS, TIGHTNESS_OF_ONE = 0.8, 0.4
"""Of the priors' widths, and where all rows are of one architecture: what sets such a
profile apart may be the model's."""
LEAST_POINTS = 20
"""That a profile which is shipped is fitted on."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Folded:
    """What a fold is made of: rows by profile, their architecture, their points."""

    profiles: np.ndarray  # [rows] of names
    models: np.ndarray  # [rows] architecture, not the name
    shapes: np.ndarray  # [rows] numbers
    engines: np.ndarray  # [rows] of families
    fitted: np.ndarray  # [rows] bool: used by fits
    points: Points


def folded(priced: Priced) -> Folded:
    """Of priced rows; rows that no steady state describes are not fitted."""
    rows = priced.rows
    models = np.array([d.model.name for d in priced.deployments])
    keys = [
        (model, row.input_len, row.output_len)
        for model, row in zip(models, rows, strict=True)
    ]
    number = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    return Folded(
        profiles=np.array([row.profile for row in rows]),
        models=models,
        shapes=np.array([number[key] for key in keys]),
        engines=np.array([row.family for row in rows]),
        fitted=np.array([is_steady(row) for row in rows]),
        points=priced.points,
    )


def is_steady(row: Row) -> bool:
    """Whether a row measures what the formulas describe.

    Not queueing, not requests sent at once of widely varying lengths (their rate is
    predicted, but not fitted), not overload, and no decode time of 2023 software.
    """
    if row.queueing or row.load == "at_once":
        return False
    if row.quantity == "ttft_s" and row.value > 5.0:
        return False
    if row.load == "open" and (row.rate or 0) >= 32:
        return False
    return not (row.engine == "splitwise" and row.quantity == "tpot_s")


def by_profile(own: Folded, chosen: np.ndarray) -> dict[str, Points]:
    """Fitted points of the chosen rows, by profile."""
    use = chosen & own.fitted
    return {
        name: own.points.at(use & (own.profiles == name))
        for name in np.unique(own.profiles[use])
    }


def fitted(own: Folded, chosen: np.ndarray, start: Profile) -> Family:
    """Profiles of the chosen rows."""
    sets = by_profile(own, chosen)
    use = chosen & own.fitted
    tightness = {
        name: TIGHTNESS
        if len(np.unique(own.models[use & (own.profiles == name)])) > 1
        else TIGHTNESS_OF_ONE
        for name in sets
    }
    engine_of = dict(zip(own.profiles, own.engines, strict=True))
    return fit_family(sets, engine_of, start, tightness)


def held_out(own: Folded, start: Profile) -> dict[str, np.ndarray]:
    """Predictions by protocol, each `[rows]`; see the module."""
    return {
        "shape": by_shape(own, start),
        "model": _by_name(own, start, own.models),
        "profile": _by_name(own, start, own.profiles),
        "engine": by_engine(own, start),
    }


def by_shape(own: Folded, start: Profile, seed: int = 0) -> np.ndarray:
    """Whole shapes held out, in `SHAPE_FOLDS` folds."""
    numbers = np.unique(own.shapes)
    order = np.random.default_rng(seed).permutation(len(numbers)) % SHAPE_FOLDS
    fold = dict(zip(numbers, order, strict=True))
    of_row = np.array([fold[shape] for shape in own.shapes])
    return _predicted_in_folds(own, start, of_row)


def by_engine(own: Folded, start: Profile) -> np.ndarray:
    """One engine held out at a time, with all its versions."""
    return _by_name(own, start, own.engines)


def _by_name(own: Folded, start: Profile, names: np.ndarray) -> np.ndarray:
    """All rows of one name held out at a time."""
    return _predicted_in_folds(own, start, np.unique(names, return_inverse=True)[1])


def fixed(own: Folded, profile_of: Sequence[Profile]) -> np.ndarray:
    """Predictions of given profiles, one per row."""
    values = np.zeros(len(own.profiles))
    places: Mapping[Profile, list[int]] = defaultdict(list)
    for place, profile in enumerate(profile_of):
        places[profile].append(place)
    for profile, rows in places.items():
        values[rows] = predicted(own.points.at(np.array(rows)), profile)
    return values


def _predicted_in_folds(
    own: Folded, start: Profile, fold_of_row: np.ndarray
) -> np.ndarray:
    values = np.zeros(len(own.profiles))
    for number in np.unique(fold_of_row):
        held = fold_of_row == number
        found = fitted(own, ~held, start)
        for name in np.unique(own.profiles[held]):
            rows = held & (own.profiles == name)
            profile = found.nearest(name, own.engines[rows][0])
            values[rows] = predicted(own.points.at(rows), profile)
    return values


def named_profiles(priced: Priced, own: Folded, start: Profile) -> dict[str, Profile]:
    """What is shipped: a profile per engine and year, per release, and the `middle`.

    One profile is fitted to all sources of a year or release together, each counting
    by the root of its rows, and drawn to what its engine's versions share.
    """
    everything = np.ones(len(own.profiles), bool)
    family = fitted(own, everything, start)
    sets = by_profile(own, everything)
    parts: dict[str, dict[str, Points]] = defaultdict(dict)
    engine_of = {}
    for row in priced.rows:
        if row.profile in sets and row.family in MEMORY_RULES:
            for name in filter(None, (row.engine_year, row.engine_version)):
                parts[name][row.profile] = sets[row.profile]
                engine_of[name] = row.family
    out = {}
    for name, found in parts.items():
        if sum(len(points.value) for points in found.values()) >= LEAST_POINTS:
            engine = engine_of[name]
            profile = fit_common(found, family.engines[engine], tightness=TIGHTNESS)
            out[name] = replace(profile, name=name, memory=MEMORY_RULES[engine])
    return {**out, MIDDLE: family.middle}
