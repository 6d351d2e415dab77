"""How do the search methods compare on the core instances of the suite?

    python experiments/headline.py --out DIR [--serving colocated,pools] [--seeds N]
                                   [--methods A,B] [--budget N] [--quick]

Every method gets the same space, evaluator and budget; the two of Megatron are rules,
run once, that need less. Writes summary.json (median tokens/s/GPU per instance, serving
and method, and the bound), results.csv (a row per run) and headline.png. About 1.5
minutes per instance, serving and seed on 2 cores at the default budget; `--quick` runs
the first instance, colocated, with a small one. With `--methods`, or one serving, the
other runs that DIR/results.csv holds are kept.

The objective is predicted by the cost model; nothing was run on GPUs.

Found (budget 10,000, megatron_grid 30,000; 1 seed): see README.md.
"""

import argparse
import csv
import json
import platform
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import matplotlib

import lts
from lts.methods import METHODS
from lts.suite import CORE, WORKLOADS, Instance

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402


@dataclass(frozen=True, kw_only=True)
class Row:
    """One search: rates in tokens/s/GPU; both 0 if it found no feasible plan."""

    instance: str
    serving: str
    method: str
    seed: int
    evaluations: int
    tokens_per_s_per_gpu: float
    bound: float


def run(instance: Instance, serving: str, method: str, seed: int, budget: int) -> Row:
    """Search one instance once."""
    try:
        plan = lts.search(
            instance.model,
            cluster=instance.cluster_of(serving),
            workload=WORKLOADS[instance.workload],
            method=method,
            budget=budget,
            seed=seed,
            serving=serving,
        )
    except lts.NoFeasiblePlanError:
        return Row(
            instance=str(instance),
            serving=serving,
            method=method,
            seed=seed,
            evaluations=0 if method.startswith("megatron") else budget,
            tokens_per_s_per_gpu=0.0,
            bound=0.0,
        )
    return Row(
        instance=str(instance),
        serving=serving,
        method=method,
        seed=seed,
        evaluations=plan.evaluations,
        tokens_per_s_per_gpu=plan.objective,
        bound=plan.bound,
    )


def _earlier(path: Path) -> list[Row]:
    """Rows of an earlier run; none if there was none."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [
            Row(
                instance=row["instance"],
                serving=row["serving"],
                method=row["method"],
                seed=int(row["seed"]),
                evaluations=int(row["evaluations"]),
                tokens_per_s_per_gpu=float(row["tokens_per_s_per_gpu"]),
                bound=float(row["bound"]),
            )
            for row in csv.DictReader(file)
        ]


def _name(row: Row) -> str:
    return f"{row.instance} {row.serving}"


def summary(rows: list[Row]) -> dict[str, object]:
    """Flat keys: medians over seeds, most evaluations, and what they were run on."""
    found: dict[str, object] = {
        "jax": jax.__version__,
        "python": platform.python_version(),
        "backend": jax.default_backend(),
    }
    for method in dict.fromkeys(row.method for row in rows):
        mine = [row for row in rows if row.method == method]
        found[f"{method}/evaluations"] = max(row.evaluations for row in mine)
        found[f"{method}/seeds"] = 1 + max(row.seed for row in mine)
    for name, method in dict.fromkeys((_name(r), r.method) for r in rows):
        mine = [r for r in rows if (_name(r), r.method) == (name, method)]
        rates = [row.tokens_per_s_per_gpu for row in mine]
        found[f"{name}/{method}/median"] = statistics.median(rates)
        found[f"{name}/{method}/min"] = min(rates)
        bounds = [row.bound for row in rows if _name(row) == name]
        found[f"{name}/bound"] = max(bounds)
    return found


def draw(rows: list[Row], path: Path) -> None:
    """Medians as shares of the best method's: a panel per serving."""
    servings = list(dict.fromkeys(row.serving for row in rows))
    instances = list(dict.fromkeys(row.instance for row in rows))
    methods = list(dict.fromkeys(row.method for row in rows))
    size = (1.8 + 3.4 * len(servings), 1.2 + 0.62 * len(instances))
    figure, panels = plt.subplots(
        1, len(servings), figsize=size, sharey=True, squeeze=False
    )
    height = 0.8 / len(methods)
    for axes, serving in zip(panels[0], servings, strict=True):
        for k, instance in enumerate(instances):
            rates: dict[str, list[float]] = {method: [] for method in methods}
            for row in rows:
                if (row.instance, row.serving) == (instance, serving):
                    rates[row.method].append(row.tokens_per_s_per_gpu)
            medians = {m: statistics.median(own or [0.0]) for m, own in rates.items()}
            best = max(medians.values()) or 1.0
            for number, method in enumerate(methods):
                place = k + (number - len(methods) / 2 + 0.5) * height
                label = method if k == 0 else None
                width = medians[method] / best
                axes.barh(place, width, height * 0.92, color=f"C{number}", label=label)
        axes.set_title(serving, fontsize=9)
        axes.set_xlabel("tokens/s/GPU, share of best method", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_yticks(range(len(instances)), instances)
    panels[0][0].set_ylim(len(instances) - 0.5, -0.5)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        ncol=len(methods),
        loc="lower center",
        frameon=False,
        fontsize=8,
    )
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    figure.savefig(path, dpi=150)


def main() -> None:
    """Parse the knobs, run, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--serving", default="colocated,pools")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budget", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    instances, seeds, budget = CORE, args.seeds, args.budget
    servings = args.serving.split(",")
    if args.quick:
        instances, seeds, budget = CORE[:1], 1, min(budget, 300)
        servings = servings[:1]
    args.out.mkdir(parents=True, exist_ok=True)
    methods = args.methods.split(",")
    cases = [(i, s, m) for i in instances for s in servings for m in methods]
    redone = {(str(i), s, m) for i, s, m in cases}
    rows = [
        row
        for row in _earlier(args.out / "results.csv")
        if (row.instance, row.serving, row.method) not in redone
    ]
    for instance, serving, method in cases:
        for seed in range(1 if method.startswith("megatron") else seeds):
            rows.append(run(instance, serving, method, seed, budget))
            last = rows[-1]
            print(
                f"{_name(last):44} {method:15} seed {seed} "
                f"{last.tokens_per_s_per_gpu:9.1f} tokens/s/GPU",
                flush=True,
            )
    order = [str(instance) for instance in CORE]
    rows.sort(
        key=lambda r: (order.index(r.instance), r.serving, [*METHODS].index(r.method))
    )
    with (args.out / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(asdict(rows[0])))
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    text = json.dumps(summary(rows), indent=1)
    (args.out / "summary.json").write_text(text + "\n")
    draw(rows, args.out / "headline.png")


if __name__ == "__main__":
    main()
