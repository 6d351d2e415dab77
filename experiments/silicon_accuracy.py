"""How far are predicted times of operators from measured ones?

    python experiments/silicon_accuracy.py --data DIR --out DIR [--quick] [--package]

For each kind of operator and chip of a folder of measured timings (format: adapters in
`lts/calibrate/tables`), absolute relative errors, median and 90th percentile, of

    shipped      the parameters in lts/calibrations, as they are
    held out     a fit on 4 of 5 folds of the folder's shapes, on the fifth; not --quick
    from H100    H200 only: H100's shipped parameters with H200's specification
    roofline     max(arithmetic, bytes) at the chip's achieved rates + a launch, or
                 bytes at the link's rate + its latency
    package      --package: tables of aiconfigurator-core, each point interpolated from
                 the others

Of a folder that the shipped parameters were fitted on, read `held out`; of rows that no
fit has seen, `shipped`. Prints the table, writes errors.csv, summary.json and
ratios.png. About 15 minutes on one core with folds, a minute without.

Found: see README.md.
"""

import argparse
import csv
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import matplotlib
import numpy as np

from lts.calibrate.fit import Series, errors, held_out_s
from lts.calibrate.package import leave_one_out_s
from lts.calibrate.tables import series
from lts.calibration import load
from lts.hardware import Chip, Cluster

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402

FOLDS = 5
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_FAMILY_OF = {
    **dict.fromkeys(_COLLECTIVES, "collectives"),
    **dict.fromkeys(("dispatch", "combine"), "deep_ep"),
    **dict.fromkeys(("mla_context", "mla_generation"), "mla"),
}


@dataclass(frozen=True, kw_only=True)
class Points:
    """Predicted over measured times of one series, `[points]`; None: not predicted."""

    chip: str
    key: str
    measured_s: np.ndarray
    ratios: dict[str, np.ndarray | None]
    balanced: np.ndarray | None = None  # experts: equal loads, bool [points]

    @property
    def family(self) -> str:
        """Kind of operator for the summary: `gemm/bfloat16`, `collectives`, ..."""
        operator = self.key.partition("/")[0]
        if operator == "gemm" or self.key == "all_reduce/internode":
            return self.key
        return _FAMILY_OF.get(operator, operator)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A line of the table: relative errors of one way to predict."""

    chip: str
    key: str
    way: str
    points: int
    median: float
    p90: float
    bias: float


def roofline_chip(chip: Chip) -> Chip:
    """The chip whose bounds are times at the achieved rates, without a cache."""
    peaks = [(d, chip.matmul_efficiency * flops) for d, flops in chip.peak_flops_per_s]
    return replace(
        chip,
        peak_flops_per_s=tuple(peaks),
        hbm_bandwidth_bytes_per_s=chip.achieved_bytes_per_s,
        l2_bytes=1,
    )


def predicted(
    name: str, one: Series, *, folds: bool, package: bool
) -> dict[str, np.ndarray | None]:
    """Seconds by way of predicting; None where there are no parameters.

    Raises:
      ValueError: if the package is asked for and not installed.
    """
    chip = Cluster.preset(name).chip
    operator = one.operator
    shipped, found = load(name).fits, {}
    found["shipped"] = (
        operator.time_s(one.sizes, shipped[one.key].values, chip)
        if one.key in shipped
        else None
    )
    count = min(FOLDS, len(np.unique(one.shapes)))
    if folds and count > 1:
        found["held out"] = held_out_s(one, chip, count)
    if name == "h200" and one.key in load("h100").fits:
        values = load("h100").fit(one.key).values
        found["from H100"] = operator.time_s(one.sizes, values, chip)
    bound = operator.bound_s(one.sizes, roofline_chip(chip))
    found["roofline"] = bound + one.sizes.get("latency_s", chip.op_launch_s)
    if package:
        found["package"] = leave_one_out_s(name, one)
    return found


def points_of(folder: Path, *, folds: bool, package: bool) -> Iterator[Points]:
    """Every series of a folder, predicted."""
    for name, one in series(folder):
        ways = predicted(name, one, folds=folds, package=package)
        ratios = {
            way: None if time_s is None else time_s / one.time_s
            for way, time_s in ways.items()
        }
        spread = one.sizes.get("spread")
        yield Points(
            chip=name,
            key=one.key,
            measured_s=one.time_s,
            ratios=ratios,
            balanced=None if spread is None else spread == 0,
        )


def some(one: Points, which: np.ndarray) -> Points:
    """Some points of a series only."""
    ratios = {way: r if r is None else r[which] for way, r in one.ratios.items()}
    return replace(one, measured_s=one.measured_s[which], ratios=ratios)


def rows_of(points: list[Points]) -> list[Row]:
    """Errors per series, and pooled per chip and family (a key of more than one)."""
    pools: dict[tuple[str, str], list[Points]] = defaultdict(list)
    for one in points:
        pools[one.chip, one.key].append(one)
        if one.family != one.key:
            pools[one.chip, one.family].append(one)
        if one.balanced is not None:
            pools[one.chip, "moe, balanced"].append(some(one, one.balanced))
    rows = []
    for (chip, key), pool in sorted(pools.items()):
        for way in dict.fromkeys(way for one in pool for way in one.ratios):
            found = [r for one in pool if (r := one.ratios.get(way)) is not None]
            if found:
                ratio = np.concatenate(found)
                ratio = ratio[np.isfinite(ratio)]  # some points have no neighbours
                error = errors(ratio, np.ones_like(ratio))
                size = len(ratio)
                rows.append(Row(chip=chip, key=key, way=way, points=size, **error))
    return rows


def summary(rows: list[Row], missed: list[str]) -> dict[str, object]:
    """Flat keys: chip/key/way/figure."""
    found: dict[str, object] = {"series_without_parameters": missed}
    for row in rows:
        stem = f"{row.chip}/{row.key}/{row.way.replace(' ', '_')}"
        for figure in ("points", "median", "p90", "bias"):
            found[f"{stem}/{figure}"] = getattr(row, figure)
    return found


def show(rows: list[Row]) -> None:
    """Print a line per chip and key: median / P90 of each way."""
    ways = list(dict.fromkeys(row.way for row in rows))
    print(f"{'':38}{'points':>7}" + "".join(f"{way:>16}" for way in ways))
    lines: dict[tuple[str, str], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        lines[row.chip, row.key][row.way] = row
    for (chip, key), own in lines.items():
        cells = [
            f"{own[way].median:7.1%} /{own[way].p90:6.1%}" if way in own else ""
            for way in ways
        ]
        size = max(row.points for row in own.values())
        print(f"{chip:5} {key:32}{size:7}" + "".join(f"{c:>16}" for c in cells))


def draw(points: list[Points], path: Path) -> None:
    """Predicted over measured time by family, against measured time."""
    families: dict[str, list[Points]] = defaultdict(list)
    for one in points:
        families[one.family].append(one)
    across = 4
    down = -(-len(families) // across)
    figure, panels = plt.subplots(
        down, across, figsize=(11, 0.6 + 2.1 * down), sharey=True, squeeze=False
    )
    for axes in panels.flat[len(families) :]:
        axes.set_visible(False)
    chips = list(dict.fromkeys(one.chip for one in points))
    for axes, (family, own) in zip(panels.flat, sorted(families.items()), strict=False):
        for one in own:
            held = one.ratios.get("held out")
            ratio = one.ratios["shipped"] if held is None else held
            if ratio is not None:
                few = len(ratio) < 1000
                axes.plot(
                    one.measured_s,
                    ratio,
                    ".",
                    ms=4 if few else 1.5,
                    alpha=0.7 if few else 0.3,
                    color=f"C{chips.index(one.chip)}",
                    mew=0,
                )
        axes.axhline(1, color="black", lw=0.6)
        axes.set(xscale="log", yscale="log", ylim=(0.4, 2.5))
        axes.set_yticks([0.5, 0.7, 1, 1.4, 2], ["0.5", "0.7", "1", "1.4", "2"])
        axes.minorticks_off()
        axes.set_title(family, fontsize=8)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("measured time, s", fontsize=8)
    figure.supylabel("predicted / measured", fontsize=8)
    dots = [
        Line2D([], [], marker="o", ls="", ms=4, color=f"C{number}", label=chip)
        for number, chip in enumerate(chips)
    ]
    figure.legend(handles=dots, loc="upper right", ncol=3, frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0, 1, 0.97))
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> None:
    """Parse the knobs, predict, print, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="no folds")
    parser.add_argument("--package", action="store_true", help="tables look-up too")
    args = parser.parse_args()
    points = []
    try:
        for one in points_of(args.data, folds=not args.quick, package=args.package):
            print(f"{one.chip} {one.key}: {len(one.measured_s)} points", flush=True)
            points.append(one)
    except ValueError as error:
        parser.error(str(error))
    missed = [f"{p.chip}/{p.key}" for p in points if p.ratios["shipped"] is None]
    rows = rows_of(points)
    show(rows)
    if missed:
        print("without shipped parameters:", ", ".join(missed))
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "errors.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(asdict(rows[0])))
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    text = json.dumps(summary(rows, missed), indent=1)
    (args.out / "summary.json").write_text(text + "\n")
    draw(points, args.out / "ratios.png")


if __name__ == "__main__":
    main()
