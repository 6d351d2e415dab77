"""How near are predicted serving latencies and throughputs to published measurements?

    python -m experiments.e2e_accuracy --measured FILE [--equal FILE] [--configs DIR]
                                       [--out DIR] [--quick]

FILE has a row per measured metric (columns: `experiments/e2e/rows.py`); `--equal` names
rows of configurations of equal size. Model names resolve through aliases, `--configs`
(a folder of config.json files) and published sizes; rows without a prediction count as
misses and are listed. Columns of the tables:

    shipped   profiles that come with the package: by engine and year, else the middle
    middle    the shipped middle alone, as for an engine that is not named
    shape     fitted on the other rows, whole (model, input, output length) held out
    model     fitted on the other rows, whole architectures held out
    profile   the middle of the profiles of all other engine versions and sources
    engine    the middle of the profiles of all other engines

Only the last four are held out where the shipped profiles were fitted on FILE. A rule
that knows nothing stands beside each comparison. `--quick` leaves out the fits. Writes
e2e.json and e2e.md to `--out`. About 4 minutes on one core.

Found: see `results/`.
"""

import argparse
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from experiments.e2e.folds import fixed, folded, held_out
from experiments.e2e.models import Models
from experiments.e2e.points import Priced, price
from experiments.e2e.rows import Row, read, without_repeats
from experiments.e2e.summary import (
    Figures,
    absolute,
    by_profile,
    comparisons,
    equal_sizes,
)
from lts.cost.kernels import CalibratedKernels
from lts.cost.profile import MIDDLE, Profile, load, names


def shipped(row: Row) -> Profile:
    """The profile that comes with the package for the engine and year of a row.

    Where the year has none, the nearest year of the engine; else the middle.
    """
    engine = row.engine_year.rpartition("-")[0]
    years = [
        int(name.rpartition("-")[2])
        for name in names()
        if name.startswith(f"{engine}-")
    ]
    if not years:
        return load(MIDDLE)
    return load(f"{engine}-{min(years, key=lambda year: abs(year - row.year))}")


def predictions(priced: Priced, quick: bool) -> dict[str, np.ndarray]:
    """Values of every row by protocol."""
    own = folded(priced)
    values = {
        "shipped": fixed(own, [shipped(row) for row in priced.rows]),
        "middle": fixed(own, [load(MIDDLE)] * len(priced.rows)),
    }
    return values if quick else {**values, **held_out(own, Profile())}


def priced_file(path: Path, models: Models) -> Priced:
    """Rows of a file with their points; repeats of one measurement are dropped."""
    return price(without_repeats(read(path), models.key), models, CalibratedKernels)


def report(title: str, by_protocol: Mapping[str, Mapping[str, Figures]]) -> list[str]:
    """A table: a line per row of figures, a column per protocol."""
    protocols = [*by_protocol]
    lines = [f"## {title}", "", f"| | {' | '.join(protocols)} |"]
    lines.append("|---" * (1 + len(protocols)) + "|")
    first = by_protocol[protocols[0]]
    for name, figures in first.items():
        for figure in figures:
            cells = [_cell(by_protocol[p][name].get(figure, "")) for p in protocols]
            if len(set(cells)) == 1 and len(cells) > 1:
                cells = [cells[0]] + ['"'] * (len(cells) - 1)
            lines.append(f"| {name}: {figure} | {' | '.join(cells)} |")
    return [*lines, ""]


def _cell(value: float | str) -> str:
    if isinstance(value, float):
        return f"{value:.1%}"
    return str(value)


def misses_of(priced: Priced) -> list[str]:
    """Reasons with their rows."""
    by_reason = Counter(reason for _, reason in priced.misses)
    lines = [f"## Rows without a prediction: {len(priced.misses)}", ""]
    for reason, count in by_reason.most_common():
        ids = [row.id for row, why in priced.misses if why == reason]
        shown = ", ".join(ids[:8]) + (", ..." if count > 8 else "")
        lines.append(f"- {count}: {reason} ({shown})")
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measured", type=Path, required=True)
    parser.add_argument("--equal", type=Path)
    parser.add_argument("--configs", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    models = Models(args.configs)
    priced = priced_file(args.measured, models)
    values = predictions(priced, args.quick)
    tables = {
        "Errors": {p: absolute(priced, v) for p, v in values.items()},
        "Comparisons": {p: comparisons(priced, v) for p, v in values.items()},
        "Errors by profile": {p: by_profile(priced, v) for p, v in values.items()},
    }
    lines = [f"# Serving: {len(priced.rows)} rows predicted", ""]
    if args.equal:
        equal = priced_file(args.equal, models)
        tables["Equal size"] = {
            p: equal_sizes(equal, v) for p, v in predictions(equal, True).items()
        }
    for title, table in tables.items():
        lines += report(title, table)
    lines += misses_of(priced)
    if args.equal:
        lines += ["Of equal size:", "", *misses_of(equal)]
    print("\n".join(lines))
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "e2e.md").write_text("\n".join(lines), encoding="utf-8")
        data = json.dumps(tables, indent=1, default=float)
        (args.out / "e2e.json").write_text(data + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
