"""Fits the engine profiles that come with the package to published measurements.

    python -m experiments.fit_profiles --measured FILE [--configs DIR] [--out DIR]

Writes a YAML file per engine and year, per release of an engine, and `middle.yaml`, to
`--out` (`lts/profiles` by default). Errors in them are of rows held out by shape, those
of the middle of engines that it did not see. About 2 minutes on one core.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import yaml

from experiments.e2e.folds import (
    by_engine,
    by_shape,
    folded,
    is_steady,
    named_profiles,
)
from experiments.e2e.models import Models
from experiments.e2e.points import Priced
from experiments.e2e.rows import Row
from experiments.e2e.summary import relative_errors
from experiments.e2e_accuracy import priced_file
from lts.cost.profile import FOLDER, MIDDLE, Profile, to_dict

_DIGITS = 3
_ERRORS = {
    "tpot_error": "tpot_s",
    "throughput_error": "tokens_per_s",
    "ttft_error": "ttft_s",
}


def with_errors(
    profile: Profile, priced: Priced, errors: np.ndarray, rows: list[Row]
) -> Profile:
    """The profile with the median held-out errors of its rows, and their number."""
    own = {id(row) for row in rows}
    found: dict[str, float | None] = {}
    for name, quantity in _ERRORS.items():
        use = [
            place
            for place, row in enumerate(priced.rows)
            if id(row) in own and row.quantity == quantity and is_steady(row)
        ]
        found[name] = round(float(np.median(errors[use])), 3) if use else None
    return replace(profile, **found)


def rounded(profile: Profile) -> dict:
    """As `to_dict`, scalars with `_DIGITS` significant digits."""
    return {
        name: float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
        for name, value in to_dict(profile).items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measured", type=Path, required=True)
    parser.add_argument("--configs", type=Path)
    parser.add_argument("--out", type=Path, default=FOLDER)
    args = parser.parse_args()
    priced = priced_file(args.measured, Models(args.configs))
    own = folded(priced)
    profiles = named_profiles(priced, own, Profile())
    shape = relative_errors(priced, by_shape(own, Profile()))
    unseen = relative_errors(priced, by_engine(own, Profile()))
    args.out.mkdir(parents=True, exist_ok=True)
    for name, profile in profiles.items():
        middle = name == MIDDLE
        rows = [
            r
            for r in priced.rows
            if middle or name in (r.engine_year, r.engine_version)
        ]
        kinds = sorted({r.profile for r in rows if is_steady(r)})
        how = "median of the profiles of" if middle else "fitted on"
        source = f"{how}: {', '.join(kinds)}"
        full = with_errors(profile, priced, unseen if middle else shape, rows)
        data = rounded(replace(full, name=name, source=source))
        path = args.out / f"{name}.yaml"
        path.write_text(yaml.safe_dump(data, sort_keys=False, width=88))
        print(f"{name}: {profile.points} points")


if __name__ == "__main__":
    main()
