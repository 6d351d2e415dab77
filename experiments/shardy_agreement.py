"""Are our sharding rules Shardy's, and does XLA move what we call free?

    python -m experiments.shardy_agreement [--out DIR] [--quick]

Takes every case of tests/tracing/primitive_cases.py: small programs of nearly every
primitive of jax. First judge: Shardy's rule of the operation, or its propagation where
the primitive becomes several. Second judge, left out by --quick: XLA compiles the case
for CPU devices with each class of dims that our rule lets be sharded, and its
collectives are read.

Writes agreement.csv and xla.csv, agreement.md and summary.json to a folder of DIR that
is named after the version of jax. Half a minute with --quick, one or two without.

Found: seven of ten cases are the same, all contractions, look-ups and reductions among
them. Most others keep a dim whole along which shards would exchange elements, or are
linear algebra. XLA keeps 99% of nearly 500 claims.
"""

import argparse
import csv
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax

from lts.shardy import Shardy, available
from tests.tracing.primitive_cases import cases, traced
from tests.tracing.rule_verdicts import REASONS, Verdict, judge
from tests.tracing.xla_findings import XlaFinding, xla_findings


def summary(verdicts: Sequence[Verdict], findings: Sequence[XlaFinding]) -> dict:
    """Counts of both judgements."""
    outcomes = Counter(verdict.outcome for verdict in verdicts)
    reasons = Counter(name for verdict in verdicts for name in verdict.reasons)
    found: dict[str, Any] = {
        "jax": jax.__version__,
        "primitives": len({verdict.primitive for verdict in verdicts}),
        "cases": len(verdicts),
        "outcomes": dict(sorted(outcomes.items())),
        "reasons": dict(sorted(reasons.items())),
    }
    if findings:
        found["xla"] = {
            "classes_of_dims": len(findings),
            "claims_that_hold": sum(finding.holds for finding in findings),
            "claims_that_do_not": sorted(
                {finding.primitive for finding in findings if not finding.holds}
            ),
        }
    return found


def markdown(verdicts: Sequence[Verdict], findings: Sequence[XlaFinding]) -> str:
    """The table as a page: reasons first, then one line per case."""
    used = {name for verdict in verdicts for name in verdict.reasons}
    broken = [finding for finding in findings if not finding.holds]
    lines = [
        "# Agreement with Shardy",
        "",
        f"jax {jax.__version__}; written by `experiments/shardy_agreement.py`.",
        "",
        "## Reasons",
        "",
        "| reason | what differs |",
        "|---|---|",
        *(f"| {r.name} | {r.text} |" for r in REASONS if r.name in used),
        "",
        *(_broken_claims(broken) if findings else []),
        "## Cases",
        "",
        "| primitive | shapes | outcome | why | by |",
        "|---|---|---|---|---|",
        *(
            f"| {v.primitive} | {v.shapes} | {v.outcome} | {', '.join(v.reasons)} | "
            f"{v.how} |"
            for v in verdicts
        ),
    ]
    return "\n".join(lines) + "\n"


def _broken_claims(findings: Sequence[XlaFinding]) -> list[str]:
    """The section on claims that XLA does not keep."""
    rows = [
        f"| {f.name} | {f.shapes} | {f.places} | {f.claim} | {f.collectives} | "
        f"{f.why} |"
        for f in findings
    ]
    return [
        "## Claims that XLA does not keep",
        "",
        "| case | shapes | sharded | our claim | XLA moves | why |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
    ]


def write_csv(path: Path, rows: Sequence[Any]) -> None:
    """Dataclasses as lines of a table."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(asdict(rows[0])))
        writer.writeheader()
        for row in rows:
            line = asdict(row)
            if "reasons" in line:
                line["reasons"] = ", ".join(line["reasons"])
            writer.writerow(line)


def main() -> None:
    """Parse the knobs, judge, print, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("results/shardy_agreement"))
    parser.add_argument("--quick", action="store_true", help="without XLA")
    args = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_disable_most_optimizations", True)  # nothing is run
    if (why := available()) is not None:
        sys.exit(why)
    programs = [traced(case) for case in cases()]
    with Shardy() as shardy:
        verdicts = [judge(shardy, program) for program in programs]
    findings: list[XlaFinding] = []
    if not args.quick:
        findings = [found for program in programs for found in xla_findings(program)]
    out: Path = args.out / f"jax-{jax.__version__}"
    out.mkdir(parents=True, exist_ok=True)
    write_csv(out / "agreement.csv", verdicts)
    if findings:
        write_csv(out / "xla.csv", findings)
    (out / "agreement.md").write_text(markdown(verdicts, findings))
    text = json.dumps(summary(verdicts, findings), indent=1)
    (out / "summary.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
