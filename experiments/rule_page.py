"""The page docs/primitives.md: what each version of jax gave, as tables."""

from typing import Any

MEANING = {
    "elementwise": "operands and result have one layout",
    "layout": "dims of the result are dims of the operand; split or cut ones are whole",
    "reduction": "reduced dims may be split, at the price of an all-reduce",
    "contraction": "contracted dims may be split, at the price of an all-reduce",
    "convolution": "batch and features, not the dims that a window slides along",
    "look-up or update": "rows of a table, dims of an updated array, updates that add",
    "sort": "all but the sorted dim",
    "cumulative": "all but the dim that is run along",
    "transform": "all but the transformed dims; runs on each device's part",
    "reduction of one's own": "all but the reduced dims",
    "window": "all but the dims that windows slide along",
    "linear algebra": "batch dims (and free columns); runs on each device's part",
    "randomness": "dims of the keys",
    "pass-through": "every dim",
    "opaque": "nothing, until a rule is registered; replicated with a note",
    "experts": "tokens, experts, their hidden index",
    "call": "its body is read in its place",
    "region": "its body is read once, times its trips",
    "made in place": "depends on no array: every device makes it",
}


REASONS: dict[str, str] = {
    "call_exported": "a compiled program",
    "call_hi_primitive:CustomRoot": "a solver given as a function",
    "call_hi_primitive:Nonzero": "places depend on all values before them",
    "custom_linear_solve": "a solver given as a function",
}
"""Why a primitive that public functions bind is opaque."""


def _row(results: dict[str, dict[str, Any]], versions: list[str], name: str) -> Any:
    """What the newest version that binds a primitive says of it."""
    found = [results[v]["primitives"] for v in versions]
    return [primitives[name] for primitives in found if name in primitives][-1]


def page(results: dict[str, dict[str, Any]]) -> str:
    """The page docs/primitives.md from what each version of jax gave."""
    versions = sorted(results, key=lambda v: [int(n) for n in v.split(".")])
    lines = [
        "# Primitives and their rules",
        "",
        "Written by `experiments/rule_coverage.py`; do not edit. It traces the public",
        "functions of `jax.lax`, `jax.numpy`, `jax.nn` and `jax.scipy.special`, and",
        "beside them `jax.random` and `jax.scipy.linalg`, and lists what they bind.",
        "",
        "| jax | primitives | with a rule | with the extra modules | with a rule |",
        "|---|---|---|---|---|",
    ]
    for version in versions:
        r = results[version]
        lines.append(
            f"| {version} | {r['asked']} | {r['coverage']:.1%} | {r['all']} "
            f"| {r['coverage_all']:.1%} |"
        )
    lines += ["", "## Kinds", "", "| kind | what may be split |", "|---|---|"]
    lines += [f"| {kind} | {meaning} |" for kind, meaning in MEANING.items()]
    lines += [
        "",
        "## Primitives",
        "",
        "| primitive | kind | bound by, for example | jax |",
        "|---|---|---|---|",
    ]
    names = sorted({p for r in results.values() for p in r["primitives"]})
    for name in names:
        where = [v for v in versions if name in results[v]["primitives"]]
        row = _row(results, where, name)
        some = ", ".join(f"`{f}`" for f in row["functions"][:3])
        which = "all" if where == versions else ", ".join(where)
        lines.append(f"| `{name}` | {row['kind'] or '**none**'} | {some} | {which} |")
    lines += ["", "## Exceptions", ""]
    opaque = [n for n in names if _row(results, versions, n)["kind"] == "opaque"]
    lines += [
        f"- `{name}`: replicated, with a note; {REASONS.get(name, 'not looked into')}"
        for name in opaque
    ]
    without = [n for n in names if not _row(results, versions, n)["kind"]]
    lines += [f"- `{name}`: `UnsupportedOpError`" for name in without]
    for version in versions:
        for name, error in results[version]["refused"].items():
            lines.append(f"- `{name}` (jax {version}): {error}")
    if not without and not any(r["refused"] for r in results.values()):
        lines += [
            "",
            "No primitive lacks a rule: `UnsupportedOpError` is raised by none.",
        ]
    lines += ["", "## Functions that were not traced", ""]
    reasons: dict[str, list[str]] = {}
    for version in versions:
        for name, why in results[version]["untraced"].items():
            listed = reasons.setdefault(why, [])
            if name not in listed:
                listed.append(name)
    for why, listed in sorted(reasons.items()):
        lines.append(f"- {why}: {', '.join(f'`{n}`' for n in sorted(listed))}")
    return "\n".join(lines) + "\n"
