"""How near are predicted serving latencies and throughputs to published measurements?

    python -m experiments.e2e_accuracy --measured FILE [--equal FILE] [--configs DIR]
                                       [--out DIR] [--quick]

FILE has a row per measured metric (columns: `experiments/e2e/rows.py`); `--equal` names
rows of configurations of equal size. Model names resolve through aliases, `--configs`
(a folder of config.json files) and published sizes; rows without a prediction count as
misses and are listed. Columns of the tables:

    shipped   profiles that come with the package: by release, else year, else middle
    middle    the shipped middle alone, as for an engine that is not named
    unfitted  the scalars that all fits start from, set by hand on such points
    shape     fitted on the other rows, whole (model, input, output length) held out
    model     fitted on the other rows, whole architectures held out
    profile   fitted on the other rows, versions and sources of an engine held out
    engine    the middle of what was fitted on the rows of all other engines

Only the last four are held out where the shipped profiles were fitted on FILE. A rule
that knows nothing stands beside each comparison. `--quick` leaves out the fits. Writes
summary.json, figures.csv, e2e.md and errors.png to `--out`. About 3 minutes on one
core.

Found: see `results/`.
"""

import argparse
import csv
import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from experiments.e2e.folds import fixed, folded, held_out, is_steady
from experiments.e2e.models import Models
from experiments.e2e.points import Priced, price
from experiments.e2e.rows import Row, read, without_repeats
from experiments.e2e.summary import (
    QUANTITIES,
    Figures,
    absolute,
    by_profile,
    comparisons,
    equal_sizes,
    relative_errors,
)
from lts.cost.kernels import CalibratedKernels
from lts.cost.profile import MIDDLE, Profile, load, names


def shipped(row: Row) -> Profile:
    """The profile that comes with the package for the engine of a row.

    Of its release, else of its year or the nearest one; else the middle.
    """
    if row.engine_version in names():
        return load(row.engine_version)
    years = [
        int(found[1])
        for name in names()
        if (found := re.fullmatch(rf"{re.escape(row.family)}-(20\d\d)", name))
    ]
    if not years:
        return load(MIDDLE)
    return load(f"{row.family}-{min(years, key=lambda year: abs(year - row.year))}")


def predictions(priced: Priced, quick: bool) -> dict[str, np.ndarray]:
    """Values of every row by protocol."""
    own = folded(priced)
    values = {
        "shipped": fixed(own, [shipped(row) for row in priced.rows]),
        "middle": fixed(own, [load(MIDDLE)] * len(priced.rows)),
        "unfitted": fixed(own, [Profile()] * len(priced.rows)),
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


def write(out: Path, tables: Mapping[str, Mapping[str, Mapping[str, Figures]]]) -> None:
    """summary.json, with a key per figure, and figures.csv, with a line per figure."""
    flat, lines = {}, []
    for title, by_protocol in tables.items():
        for protocol, groups in by_protocol.items():
            for group, figures in groups.items():
                for name, value in figures.items():
                    flat[f"{title}/{group}/{name}/{protocol}"] = value
                    lines.append((title, group, name, protocol, value))
    data = json.dumps(flat, indent=1, default=float)
    (out / "summary.json").write_text(data + "\n", encoding="utf-8")
    with (out / "figures.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("table", "group", "figure", "protocol", "value"))
        writer.writerows(lines)


def draw(priced: Priced, values: Mapping[str, np.ndarray], path: Path) -> None:
    """Share of the rows whose error is at most so large, by quantity and protocol."""
    errors = {name: relative_errors(priced, own) for name, own in values.items()}
    figure, panels = plt.subplots(1, 3, figsize=(9.6, 3.2), sharey=True)
    shown = ("TPOT", "throughput at maximum load", "TTFT, not queueing")
    for axes, name in zip(panels.flat, shown, strict=True):
        chosen = [is_steady(row) and QUANTITIES[name](row) for row in priced.rows]
        for protocol, own in errors.items():
            ordered = np.sort(own[np.array(chosen, bool)])
            shares = np.arange(1, len(ordered) + 1) / max(len(ordered), 1)
            axes.plot(ordered, shares, lw=1.2, label=protocol)
        axes.set(xscale="log", xlim=(0.005, 2), ylim=(0, 1))
        axes.set_xticks([0.01, 0.03, 0.1, 0.3, 1], ["1%", "3%", "10%", "30%", "100%"])
        axes.minorticks_off()
        axes.grid(lw=0.3, color="0.8")
        axes.set_title(f"{name}: {sum(chosen)} rows", fontsize=8)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    panels.flat[0].legend(frameon=False, fontsize=7)
    figure.supxlabel("relative error", size=8)
    figure.supylabel("share of rows within it", size=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


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
        write(args.out, tables)
        draw(priced, values, args.out / "errors.png")


if __name__ == "__main__":
    main()
