"""Why an operator of a plan is as it is: its source line, specs, time, collectives."""

import difflib
from typing import Any

from lts.report import facts
from lts.report.facts import Data
from lts.report.text import indented, screen_width, table_text
from lts.report.units import counted, duration, percent, size

_ROOMY = 90
"""Columns from which on shares have room beside times."""


def explain_text(data: Data, name: str | None = None, *, width: int = 0) -> str:
    """All operators in a table, or everything about those of a name.

    Args:
      data: as `Plan.to_dict` gives it, or a plan.json holds it.
      name: of an operator, `file.py:line`, or the path of an argument.
      width: columns to use; 0 for the terminal's.

    Raises:
      ValueError: if there is nothing of that name; with those that are close.
    """
    width = width or screen_width()
    if name is None:
        return _listing(data, width)
    found = operations(data, name)
    if not found:
        return _argument(data, name, width)
    return "\n\n".join(_operation(data, own, width) for own in found)


def operations(data: Data, name: str | None = None) -> list[dict[str, Any]]:
    """Operators, with what they shard and the time that they take.

    Args:
      name: of an operator, the end of its name, or `file.py:line`; None for all. What
        fits best is returned alone.
    """
    every = [_timed(data, own) for own in data.get("operations", ())]
    if name is None:
        return every
    for fits in (
        lambda own: own["name"] == name,
        lambda own: own["source"] == name,
        lambda own: own["name"].endswith("/" + name),
    ):
        if found := [own for own in every if fits(own)]:
            return found
    return []


def _timed(data: Data, own: Data) -> dict[str, Any]:
    """An operator with its states, its time and that of its reshards."""
    phase, name = own["phase"], own["name"]
    rows = facts.time_rows(data, phase)
    total_s = sum(row.time_s for row in rows)
    time_s = sum(row.time_s for row in rows if row.name == name)
    asked = {c["reason"] for c in own["collectives"]}
    reshard_s = {
        row.name: row.time_s
        for row in rows
        if row.kind == "reshard" and row.name in asked
    }
    found = facts.assignment(data, phase)
    states = found["states"][phase].get(name, [None] * len(found["axes"]))
    return {
        **own,
        "shards": facts.sharded_text(facts.sharded(states, found["axes"])),
        "time_s": time_s,
        "share": time_s / total_s if total_s else 0.0,
        "reshard_s": reshard_s,
    }


def _listing(data: Data, width: int) -> str:
    """A table of operators per phase."""
    ops = [own for own in operations(data) if own["primitive"]]
    if not ops:
        raise ValueError(
            "this plan does not say what its operators do (it is one of pools, or of "
            "an earlier version); lts show lists them"
        )
    tables = []
    for phase in data["phase_order"]:
        rows = [_row(own) for own in ops if own["phase"] == phase]
        header = ("operator", "source", "shards", "time", "share", "collectives")
        dropped = {"share"} if width < _ROOMY else set()
        if not any(row[1] for row in rows):
            dropped.add("source")
        keep = [i for i, name in enumerate(header) if name not in dropped]
        shown = [[row[i] for i in keep] for row in (header, *rows)]
        right = [i for i, name in enumerate(shown[0]) if name in ("time", "share")]
        table = table_text(shown[1:], width - 2, header=shown[0], right=right)
        tables.append(f"{phase}\n{indented(table)}")
    return "\n\n".join(tables)


def _row(own: Data) -> tuple[str, ...]:
    kinds = dict.fromkeys(c["kind"] for c in own["collectives"])
    return (
        own["name"],
        "" if own["source"] and own["source"] in own["name"] else own["source"],
        own["shards"],
        duration(own["time_s"]),
        percent(own["share"]),
        ", ".join(kinds),
    )


def _in_phase(data: Data, own: Data) -> str:
    return f" ({own['phase']})" if len(data["phase_order"]) > 1 else ""


def _operation(data: Data, own: Data, width: int) -> str:
    many = f", {own['trips']} times a step" if own["trips"] > 1 else ""
    rows = [("source", own["source"] or "not known")]
    rows.append(("shards", own["shards"] if own["shards"] != "[]" else "nothing"))
    for key, word in (("operands", "reads"), ("results", "writes")):
        for array in own[key]:
            rows.append((word, _array_words(array)))
            word = ""
    share = f"{percent(own['share'])} of the step"
    rows.append(("time", f"{duration(own['time_s'])}, {share}{many}"))
    word = "collectives"
    for found in own["collectives"]:
        rows.append((word, _collective_words(found, own)))
        word = ""
    if not own["collectives"]:
        rows.append((word, "none"))
    what = own["primitive"] or "elementwise"
    head = f"{own['name']} ({what}){_in_phase(data, own)}"
    return f"{head}\n{indented(table_text(rows, width - 2))}"


def _array_words(array: Data) -> str:
    entries = [tuple(e) if isinstance(e, list) else e for e in array["spec"]]
    spec = f"P({', '.join(map(repr, entries))})"
    return f"{array['of']} {list(array['shape'])} as {spec}"


def _collective_words(found: Data, own: Data) -> str:
    times = f" x {found['count']}" if found["count"] > 1 else ""
    words = (
        f"{found['kind']} over {'*'.join(found['axes'])}{times}, "
        f"{size(found['nbytes'])} a device, {_why(found['reason'], own['name'])}"
    )
    if (time_s := own["reshard_s"].get(found["reason"])) is not None:
        words += f", {duration(time_s)}"
    return words


def _why(reason: str, name: str) -> str:
    """The reshard that a collective is for, as its operator sees it."""
    source, arrow, target = reason.partition(" -> ")
    if not arrow:
        return "its own exchange" if reason == name else reason
    if source == name:
        return "writing its result" if target == f"{name}:" else f"writing {target}"
    return f"reading {source}" if target == name else reason


def _argument(data: Data, name: str, width: int) -> str:
    """Spec of an argument, and the operators that use it."""
    rows = [
        row
        for row in facts.argument_rows(data)
        if row.path == name or row.path.startswith(f"{name}/")
    ]
    if not rows:
        raise ValueError(_unknown(data, name))
    users = dict.fromkeys(
        own["name"]
        for own in data.get("operations", ())
        for array in (*own["operands"], *own["results"])
        if array["of"] == name or array["of"].startswith(f"{name}/")
    )
    table = table_text([(r.path, r.named, r.partition_spec) for r in rows], width)
    if not users:
        return table
    return (
        f"{table}\n{indented(table_text([('used by', ', '.join(users))], width - 2))}"
    )


def _unknown(data: Data, name: str) -> str:
    known = dict.fromkeys(
        word
        for own in data.get("operations", ())
        for word in (own["name"], own["source"])
        if word
    )
    known |= dict.fromkeys(row.path for row in facts.argument_rows(data))
    near = difflib.get_close_matches(name, known, n=3)
    within = [word for word in known if name in word or word in name][:3]
    hint = f"did you mean {', '.join(near or within)}?" if near or within else ""
    if not hint:
        hint = f"there are {counted(len(known), 'name')}: lts explain without --op"
    return f"the plan has no operator or argument {name!r}; {hint}"
