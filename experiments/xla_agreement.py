"""Does XLA emit the collectives that we predict, and hold the bytes?

    python -m experiments.xla_agreement --out DIR [--quick] [--plans N] [--target h100]

Draws random legal plans of blocks of the benchmark's models, shrunk (two layers, small
dims, all features), over meshes of 8 and 16 GPUs: roles of every group of operators and
mesh axis uniformly, 3% of all single layouts overridden, as the searches draw them; and
takes the plan that every method finds. Each plan's prefill and decode are compiled for
forced CPU devices and for H100s, which need not be there (extra `h100`), and their
collectives right after SPMD partitioning stand against the predicted ones: kind, mesh
axes, bytes of the local result, times executed. Bytes of arguments, results and aliases
are compared as well.

Writes to a folder of DIR that is named after the version of jax: plans.csv (a line per
plan, phase and target), mismatches.csv (a line per collective that differs),
summary.json, xla_agreement.md and bytes.png. Two to five seconds a program, most of it
in XLA.
"""

import argparse
import contextlib
import csv
import itertools
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np

import lts
from experiments.xla_blocks import (
    BLOCKS,
    CLUSTERS,
    WORKLOAD,
    block_model,
    drawn,
    lowerable,
    prepared_block,
)
from lts.applied import Lowerable
from lts.compiler import TARGETS, CompiledProgram, Compiler, missing
from lts.cost.predict import predicted_collectives
from lts.hlo import list_collectives
from lts.mesh import Degrees
from lts.methods import METHODS
from lts.verify import Report, compare, compile_step, predicted_bytes

CLOSE = 0.02
"""Relative difference of bytes that counts as equal."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """What was compiled.

    Attributes:
      plan: number of the draw, which gives the plan again; of a searched one, the name
        of the method.
    """

    block: str
    cluster: str
    plan: str
    phase: str
    target: str
    mesh: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """One phase of one plan, compiled for one target; bytes are of one device.

    Attributes:
      kinds: whether all (kind, axes, times) are as predicted, and no more.
      exact: whether the bytes of each are right, too.
      predicted_bytes, emitted_bytes: of all collectives' results, after SPMD.
      final_bytes, final_kinds: likewise in the final program, and how many of which.
      arguments, outputs, aliases: compiled less predicted.
      temporary, peak: compiled, and predicted of a GPU.
      warnings: values that XLA replicated to reshard them.
      failure: why it was not compiled.
    """

    kinds: bool = False
    exact: bool = False
    predicted_bytes: int = 0
    emitted_bytes: int = 0
    final_bytes: int = 0
    final_kinds: str = ""
    arguments: int = 0
    outputs: int = 0
    aliases: int = 0
    temporary: int = 0
    predicted_temporary: int = 0
    peak: int = 0
    predicted_peak: int = 0
    warnings: int = 0
    failure: str = ""

    @property
    def right(self) -> bool:
        """Whether all collectives are as predicted, their bytes to within `CLOSE`."""
        gap = abs(self.predicted_bytes - self.emitted_bytes)
        most = max(self.predicted_bytes, self.emitted_bytes)
        return self.kinds and gap <= CLOSE * most


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """A collective of which more or fewer were emitted than predicted."""

    kind: str
    axes: str
    nbytes: int
    predicted: int
    emitted: int
    source: str


Judged = tuple[Place, Row, list[Mismatch]]


def judged(
    place: Place, found: Lowerable, degrees: Degrees, donated: str, compiler: Compiler
) -> Judged:
    """A phase of a plan, compiled and compared."""
    predicted = predicted_collectives(
        found.graph, found.states, degrees.axes, scatters=False
    )
    held = predicted_bytes(found, degrees, (donated,))
    try:
        program = compile_step(found.step, found.leaves, degrees.mesh_size, compiler)
    except RuntimeError as error:
        return place, Row(failure=str(error)), []
    report = compare(place.phase, program, predicted, held, degrees.shape)
    final = list_collectives(program.final, degrees.shape)
    kinds = Counter[str]()
    for collective in final:
        kinds[collective.kind] += collective.count
    row = Row(
        kinds=_kinds(report, "predicted") == _kinds(report, "emitted"),
        exact=not report.differing,
        predicted_bytes=sum(row.nbytes * row.predicted for row in report.rows),
        emitted_bytes=sum(row.nbytes * row.emitted for row in report.rows),
        final_bytes=sum(c.nbytes * c.count for c in final),
        final_kinds=", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items())),
        arguments=report.argument_bytes - held.argument,
        outputs=report.output_bytes - held.output,
        aliases=report.alias_bytes - held.alias,
        temporary=report.temp_bytes,
        predicted_temporary=held.temp,
        peak=report.peak_bytes,
        predicted_peak=held.peak,
        warnings=len(report.warnings),
    )
    return place, row, _mismatches(report, program, degrees.shape)


def _kinds(report: Report, side: str) -> Counter:
    found: Counter = Counter()
    for row in report.rows:
        found[row.kind, row.axes] += getattr(row, side)
    return +found


def _mismatches(
    report: Report, program: CompiledProgram, shape: dict[str, int]
) -> list[Mismatch]:
    names: dict[Any, set[str]] = {}
    for c in list_collectives(program.after_spmd, shape):
        names.setdefault((c.kind, c.axes, c.nbytes), set()).add(c.op_name)
    return [
        Mismatch(
            kind=row.kind,
            axes=" ".join(row.axes),
            nbytes=row.nbytes,
            predicted=row.predicted,
            emitted=row.emitted,
            source="; ".join(
                [*row.reasons, *names.get((row.kind, row.axes, row.nbytes), ())]
            ),
        )
        for row in report.differing
    ]


def drawn_plans(
    blocks: Sequence[str],
    clusters: Sequence[str],
    plans: int,
    targets: Sequence[str],
    first: int = 0,
) -> Iterator[Judged]:
    """Random plans from number `first` on, judged: as many of each block."""
    each = math.ceil(plans / (len(blocks) * len(clusters)))
    for cluster in clusters:  # a child compiles for one number of devices
        with contextlib.ExitStack() as stack:
            compilers = [stack.enter_context(Compiler(target)) for target in targets]
            for block in blocks:
                problem, prepared = prepared_block(block, cluster)
                for number in range(first, first + each):
                    assignment = drawn(prepared, number)
                    for phase in prepared.graphs:
                        found = lowerable(problem, prepared, assignment, phase)
                        for compiler in compilers:
                            degrees = assignment.degrees
                            place = Place(
                                block=block,
                                cluster=cluster,
                                plan=str(number),
                                phase=phase,
                                target=compiler.target,
                                mesh="x".join(map(str, degrees.shape.values())),
                            )
                            yield judged(place, found, degrees, problem.cache, compiler)


def searched_plans(
    blocks: Sequence[str], clusters: Sequence[str], budget: int, targets: Sequence[str]
) -> Iterator[Judged]:
    """What every method finds, judged."""
    for cluster in clusters:
        with contextlib.ExitStack() as stack:
            compilers = [stack.enter_context(Compiler(target)) for target in targets]
            for block, method in itertools.product(blocks, METHODS):
                problem, prepared = prepared_block(block, cluster)
                plan = lts.search(
                    block_model(block),
                    cluster=lts.Cluster.parse(cluster),
                    workload=WORKLOAD,
                    method=method,
                    budget=budget,
                    max_stages=1,
                )
                for phase, compiler in itertools.product(prepared.graphs, compilers):
                    assignment = plan.phase(phase).assignment
                    degrees = assignment.degrees
                    place = Place(
                        block=block,
                        cluster=cluster,
                        plan=method,
                        phase=phase,
                        target=compiler.target,
                        mesh="x".join(map(str, degrees.shape.values())),
                    )
                    batch = plan.phase(phase).batch
                    found = lowerable(problem, prepared, assignment, phase, batch)
                    yield judged(place, found, degrees, problem.cache, compiler)


def table(found: Sequence[Judged]) -> list[dict[str, Any]]:
    """Shares of plans that are right, by origin, target and block."""
    groups: dict[tuple[str, str, str], dict[tuple[str, str], list[Row]]] = {}
    for place, row, _ in found:
        origin = "random" if place.plan.isdigit() else "searched"
        for block in (place.block, "all"):
            plans = groups.setdefault((origin, place.target, block), {})
            key = f"{place.block} {place.cluster}", place.plan
            plans.setdefault(key, []).append(row)
    return [
        {
            "plans": origin,
            "target": target,
            "block": block,
            "number": len(plans),
            "right": _share(plans, lambda row: row.right),
            "exact": _share(plans, lambda row: row.exact),
            "arguments, outputs, aliases exact": _share(
                plans, lambda row: not (row.arguments or row.outputs or row.aliases)
            ),
            "compiled": _share(plans, lambda row: not row.failure),
            "error of scratch": _error(plans, "temporary"),
            "error of peak": _error(plans, "peak"),
        }
        for (origin, target, block), plans in sorted(groups.items())
    ]


def _share(plans: dict[Any, list[Row]], holds: Callable[[Row], bool]) -> float:
    """Share of the plans that hold in all phases."""
    good = sum(all(map(holds, rows)) for rows in plans.values())
    return round(good / len(plans), 4)


def _error(plans: dict[Any, list[Row]], name: str) -> float:
    """Median over programs of the relative error of predicted bytes."""
    rows = [row for found in plans.values() for row in found if not row.failure]
    errors = [
        abs(getattr(row, f"predicted_{name}") / getattr(row, name) - 1)
        for row in rows
        if getattr(row, name)
    ]
    return round(float(np.median(errors)), 4) if errors else math.nan


def write(out: Path, found: Sequence[Judged]) -> None:
    """All tables and the picture, in a folder of their own."""
    out.mkdir(parents=True, exist_ok=True)
    rows = [{**asdict(place), **asdict(row)} for place, row, _ in found]
    _write_csv(out / "plans.csv", rows)
    wrong = [{**asdict(place), **asdict(one)} for place, _, own in found for one in own]
    _write_csv(out / "mismatches.csv", wrong)
    shares = table(found)
    lines = [
        "# Collectives: predicted and emitted",
        "",
        f"jax {jax.__version__}; written by `experiments/xla_agreement.py`.",
        "",
        "| " + " | ".join(shares[0]) + " |",
        "|---" * len(shares[0]) + "|",
        *("| " + " | ".join(map(str, line.values())) + " |" for line in shares),
    ]
    (out / "xla_agreement.md").write_text("\n".join(lines) + "\n")
    named = ("plans", "target", "block")
    flat: dict[str, Any] = {"jax": jax.__version__}
    for line in shares:
        prefix = "/".join(line[key] for key in named)
        flat |= {f"{prefix}/{k}": v for k, v in line.items() if k not in named}
    (out / "summary.json").write_text(json.dumps(flat, indent=1) + "\n")
    draw(found, out / "bytes.png")


def draw(found: Sequence[Judged], path: Path) -> None:
    """Emitted against predicted bytes of every phase of a plan, by block."""
    blocks = list(dict.fromkeys(place.block for place, _, _ in found))
    figure, panels = plt.subplots(
        1,
        len(blocks),
        figsize=(2.4 * len(blocks) + 0.6, 2.9),
        sharey=True,
        squeeze=False,
    )
    for axes, block in zip(panels.flat, blocks, strict=True):
        own = [row for place, row, _ in found if place.block == block]
        for right in (True, False):
            chosen = [row for row in own if row.right is right and not row.failure]
            axes.plot(
                [max(row.predicted_bytes, 1) for row in chosen],
                [max(row.emitted_bytes, 1) for row in chosen],
                "o" if right else "x",
                ms=3 if right else 5,
                color="C0" if right else "C3",
                alpha=0.6,
                mew=0 if right else 1,
                label="as predicted" if right else "otherwise",
            )
        ends = [1, max((row.predicted_bytes for row in own), default=1)]
        axes.plot(ends, ends, color="0.5", lw=0.6, zorder=0)
        axes.set(xscale="log", yscale="log")
        axes.set_title(f"{block}: {len(own)} programs", fontsize=8)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    panels.flat[0].legend(frameon=False, fontsize=7)
    figure.supxlabel("predicted bytes of collectives per device (1 for none)", size=8)
    figure.supylabel("emitted", size=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        if rows:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


def main() -> None:
    """Parse the knobs, draw, compile, compare, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("results/xla_agreement"))
    parser.add_argument("--plans", type=int, default=300, help="random ones")
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument(
        "--budget", type=int, default=4096, help="of every search; 0: none"
    )
    parser.add_argument("--target", choices=TARGETS, help="default: all there are")
    parser.add_argument("--block", choices=tuple(BLOCKS), help="default: all")
    parser.add_argument("--quick", action="store_true", help="5 plans, no searches")
    args = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    targets = [args.target] if args.target else list(TARGETS)
    for target in targets:
        if (why := missing(target)) is not None:
            if args.target:
                sys.exit(why)
            print(why)
    targets = [target for target in targets if missing(target) is None]
    blocks = [args.block] if args.block else list(BLOCKS)
    clusters = CLUSTERS[:1] if args.quick else CLUSTERS
    plans = len(blocks) if args.quick else args.plans
    found, began = [], time.time()
    draws = drawn_plans(blocks, clusters, plans, targets, args.first)
    searches: Iterator[Judged] = iter(())
    if args.budget and not args.quick:
        searches = searched_plans(blocks, clusters, args.budget, targets)
    out = args.out / f"jax-{jax.__version__}"
    for place, row, wrong in itertools.chain(draws, searches):
        found.append((place, row, wrong))
        if not row.right:
            what = row.failure or "; ".join(
                f"{m.kind} {m.axes} {m.nbytes} B: {m.predicted} predicted, "
                f"{m.emitted} emitted"
                for m in wrong
            )
            print(f"{' '.join(asdict(place).values())}: {what}", flush=True)
        if len(found) % 50 == 0:
            print(f"{len(found)} compiled, {time.time() - began:.0f} s", flush=True)
            write(out, found)
    write(out, found)
    print((out / "xla_agreement.md").read_text())


if __name__ == "__main__":
    main()
