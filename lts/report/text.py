"""A plan as text: one screen of what an engineer who serves it wants to know.

Plain ASCII, without colour, so that it reads the same in a terminal, a pipe and a log.
"""

import io
import shutil
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lts.cost.profile import MIDDLE
from lts.report import facts
from lts.report.facts import Data
from lts.report.shapes import shape_rows
from lts.report.units import counted, duration, milliseconds, percent, size

TOP_PARTS = 5
"""Nodes and reshards listed per phase; `full=True` lists all."""

_WIDTHS = 72, 140

_Times = dict[str, tuple[float, float]]  # by phase: seconds, share of its step


def plan_text(data: Data, *, width: int | None = None, full: bool = False) -> str:
    """A plan in words and tables.

    Args:
      data: as `Plan.to_dict` gives it, or a plan.json holds it.
      width: columns to use; None for the terminal's (100 in a pipe).
      full: list every node, argument, result and part of the time.
    """
    width = screen_width() if width is None else width
    blocks = [
        _headline(data),
        _degrees(data, width),
        _predicted(data, width),
        _shapes(data, width),
        _provenance(data, width),
        _operators(data, width, full),
        _arguments(data, width, full),
        _time(data, width, full),
        _notes(data, width),
    ]
    return "\n\n".join(block for block in blocks if block)


def screen_width() -> int:
    """Columns of the terminal, within what reads well; 100 where there is none."""
    low, high = _WIDTHS
    return min(max(shutil.get_terminal_size((100, 24)).columns, low), high)


def table_text(
    rows: Iterable[Sequence[str]],
    width: int,
    *,
    header: Sequence[str] = (),
    right: Sequence[int] = (),
) -> str:
    """Rows in aligned columns, long cells folded.

    Args:
      header: names of the columns; none for a table without a header.
      right: numbers of the columns to align at the right.
    """
    rows = [tuple(row) for row in rows]
    if header:
        rows = [tuple(header), *rows]
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for number in range(max(map(len, rows), default=0)):
        justify = "right" if number in right else "left"
        table.add_column(justify=justify, overflow="fold")
    for row in rows:
        # Text: brackets of a spec are no markup
        table.add_row(*map(Text, row))
    return _rendered(table, width)


def _rendered(renderable: Table | Text, width: int) -> str:
    file = io.StringIO()
    # told that it is no notebook: there it would print past `file`
    console = Console(
        file=file,
        width=width,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
    )
    console.print(renderable)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def indented(text: str, by: int = 2) -> str:
    """Every line moved to the right."""
    return "\n".join((" " * by + line).rstrip() for line in text.splitlines())


def _section(heading: str, body: str) -> str:
    return f"{heading}\n{indented(body)}"


def _headline(data: Data) -> str:
    chip = data["cluster"]["chip"]["name"]
    on = f"{facts.cluster_name(data)} ({facts.num_gpus(data)} x {chip})"
    words = facts.workload_words(data)
    how = ", as pools" if facts.is_pools(data) else ""
    return f"{facts.title(data)} on {on}{how}" + (f"\n{words}" if words else "")


def _degrees(data: Data, width: int) -> str:
    if facts.is_pools(data):
        return _pools(data, width)
    rows = []
    if data["workload"]:
        rows.append(("Degrees", facts.degree_words(data)))
    if stages := facts.stage_words(data):
        rows.append(("Stages", stages))
    rows.append(("Mesh", facts.mesh_words(data)))
    return table_text(rows, width)


def _pools(data: Data, width: int) -> str:
    """Instances, mesh and step of every phase, a column each."""
    columns = [
        {
            "": phase,
            "instances": facts.instance_words(data, phase),
            "degrees": facts.degree_words(data, phase),
            "stages": facts.stage_words(data, phase),
            "mesh": facts.mesh_words(data, phase),
            "batch": facts.batch_words(data, phase),
            "step": duration(data["phases"][phase]["step_time_s"]),
            "serves": f"{data['phases'][phase]['requests_per_s']:,.2f} requests/s",
            "memory": facts.memory_words(data, phase),
        }
        for phase in data["phase_order"]
    ]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    rows = [row for row in rows if any(row[1:])]
    if idle := facts.idle_gpus(data):
        rows.append(["idle", counted(idle, "GPU")])
    return _section("Pools", table_text(rows, width - 2))


def _predicted(data: Data, width: int) -> str:
    metrics, workload = data["metrics"], data["workload"]
    rows: list[tuple[str, str, str]] = []
    if workload is None:
        of = shape_rows(data)
        mean = f"mean of {counted(len(of), 'shape')}" if of else ""
        rows.append(("step time", duration(metrics["step_time_s"]), mean))
    else:
        rate = metrics["tokens_per_s_per_gpu"]
        kind = "read" if workload["output_len"] == 0 else "generated"
        total = f"{rate * facts.num_gpus(data):,.0f} {kind} tokens/s in all"
        rows.append(("tokens/s/GPU", f"{rate:,.1f}", total))
        for name in "ttft", "tpot":
            if metrics[f"{name}_s"] is not None:
                reached_s, limit_ms = metrics[f"{name}_s"], workload[f"{name}_ms"]
                limit = "no limit"
                if limit_ms is not None:
                    share = reached_s * 1e3 / limit_ms
                    limit = f"limit {limit_ms:g} ms, {percent(share)} of it"
                if name == "ttft" and metrics["kv_transfer_s"] is not None:
                    limit += f"; KV transfer {milliseconds(metrics['kv_transfer_s'])}"
                rows.append((name.upper(), milliseconds(reached_s), limit))
        batches = "in all decode instances"
        if not facts.is_pools(data):
            batches = ", ".join(
                f"{phase} {facts.batch_words(data, phase)}"
                for phase in data["phase_order"]
            )
        requests = counted(metrics["concurrency"], "request")
        rows.append(("concurrency", requests, batches))
    if metrics["error"] is not None:
        rows.append(("error bar", f"+-{percent(metrics['error'])}", _error_words(data)))
    peak, usable = metrics["peak_bytes"], facts.usable_bytes(data)
    share = f"limit {size(usable)}, {percent(peak / usable)} of it"
    rows.append(("memory per GPU", size(peak), share))
    rows.append(("", "", facts.memory_words(data)))
    return _section("Predicted", table_text(rows, width - 2, right=[1]))


def _error_words(data: Data) -> str:
    engine = data["metrics"]["engine"]
    if engine is None:
        return "of times, from operators held out of their fits"
    middle = ", the middle of those measured" if engine == MIDDLE else ""
    return f"of times, from published points; engine {engine}{middle}"


def _shapes(data: Data, width: int) -> str:
    """Step time at every shape, and what sharing one plan costs it."""
    rows = [
        (row.label, duration(row.time_s), row.over_alone, "worst" if row.worst else "")
        for row in shape_rows(data)
    ]
    if not rows:
        return ""
    header = ("", "step time", "of its best alone", "")
    if not any(over for _, _, over, _ in rows):
        header = ("", "step time", "", "")
    body = table_text(rows, width - 2, header=header, right=[1, 2])
    return _section("Shapes, one plan for all", body)


def _provenance(data: Data, width: int) -> str:
    if data["workload"] is None:
        mean = " in the mean" if shape_rows(data) else ""
        least = duration(1 / data["bound"])
        bound = f"no plan of this space steps in under {least}{mean}"
    else:
        bound = f"no plan of this space exceeds {data['bound']:,.1f} tokens/s/GPU"
    rows = [
        ("Bound", f"{bound}, by {facts.bound_words(data)}"),
        ("Gap", f"at most {percent(data['gap'])} from the optimum"),
        ("Found by", facts.search_words(data)),
    ]
    return table_text(rows, width)


def _operators(data: Data, width: int, full: bool) -> str:
    phases = data["phase_order"]
    rows = []
    for row in facts.op_rows(data, values=full):
        cells = [facts.sharded_text(row.sharded[phase]) for phase in phases]
        same = ["same" if cell == cells[0] else cell for cell in cells[1:]]
        rows.append((row.label, cells[0], *same))
    kinds = "operators and values" if full else "operators"
    header = (kinds, *(phases if len(phases) > 1 else ["shards"]))
    body = table_text(rows, width - 2, header=header)
    return _section("What the mesh axes shard, factor@axis", body)


def _arguments(data: Data, width: int, full: bool) -> str:
    if full:
        header = ("array", "dims", "PartitionSpec")
        rows = [
            (row.path + _only(row.phases, data), row.named, row.partition_spec)
            for key in ("in_specs", "out_specs")
            for row in facts.argument_rows(data, key)
        ]
        table = table_text(rows, width - 2, header=header)
        return _section("Arguments and results", table)
    folded: dict[tuple[str, str, str], list[str]] = {}
    for row in facts.argument_rows(data):
        if any(row.spec):
            folder, _, name = row.path.rpartition("/")
            shards = ", ".join(facts.at(*pair) for pair in row.sharded)
            key = (folder, f"[{shards}]", row.partition_spec)
            folded.setdefault(key, []).append(name + _only(row.phases, data))
    if not folded:
        return "All arguments are replicated."
    rows = [
        (f"{folder}: {', '.join(names)}" if folder else ", ".join(names), shards, spec)
        for (folder, shards, spec), names in folded.items()
    ]
    header = ("arguments", "shards", "PartitionSpec")
    return _section("Sharded arguments", table_text(rows, width - 2, header=header))


def _only(phases: Sequence[str], data: Data) -> str:
    return "" if len(phases) == len(data["phase_order"]) else f" ({', '.join(phases)})"


def _time(data: Data, width: int, full: bool) -> str:
    """One table for all phases, whose nodes mostly have the same names."""
    found = {phase: facts.time_rows(data, phase) for phase in data["phase_order"]}
    by_kind: dict[str, _Times] = {}
    by_name: dict[str, _Times] = {}
    total: _Times = {}
    shown: set[str] = set()
    for phase, rows in found.items():
        for row in rows:
            for times in (
                total,
                by_kind.setdefault(facts.KINDS[row.kind], {}),
                by_name.setdefault(row.name, {}),
            ):
                time_s, share = times.get(phase, (0.0, 0.0))
                times[phase] = time_s + row.time_s, share + row.share
        longest = sorted(rows, key=lambda row: -row.time_s)
        shown |= {row.name for row in longest[:TOP_PARTS]}
    names = [name for name in by_name if full or name in shown]
    if not full:
        names.sort(key=lambda name: -max(share for _, share in by_name[name].values()))

    def cells(name: str, times: _Times) -> list[str]:
        return [name, *(cell for phase in found for cell in _timed(times.get(phase)))]

    header = ["", *(cell for phase in found for cell in (phase, "share"))]
    rows = [cells("all", total)]
    rows += [cells(*item) for item in by_kind.items()]
    rows.append([])
    rows += [cells(name, by_name[name]) for name in names]
    body = table_text(rows, width - 2, header=header, right=range(1, len(header)))
    shapes = shape_rows(data)
    first = f", at {shapes[0].label}" if shapes else ""
    return _section(f"Time of a step{first}", body)


def _timed(found: tuple[float, float] | None) -> tuple[str, str]:
    return ("-", "-") if found is None else (duration(found[0]), percent(found[1]))


def _notes(data: Data, width: int) -> str:
    if not data["notes"]:
        return ""
    return _section("Notes", table_text([(note,) for note in data["notes"]], width - 2))
