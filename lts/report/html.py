"""A plan as self-contained HTML, for Jupyter.

Text takes its colour from the page and all fills are mid-tones or see-through, so the
same markup is right on a light page, on a dark one, and in every theme of JupyterLab
(whatever the system prefers), without a script or a query for the theme.
"""

from collections.abc import Sequence
from html import escape

from lts.report import facts
from lts.report.facts import Data, OpRow, Sharded
from lts.report.picture import STAGE_COLOUR, axis_colour, mesh_svg
from lts.report.shapes import shape_rows
from lts.report.units import counted, duration, milliseconds, percent, size

KIND_COLOURS = {
    "op": "#3f6fb5",
    "value": "#3a857c",
    "reshard": "#c25a2b",
    "hand-over": "#8a55a8",
    "engine": "#6b7280",
}
_LABELLED_SHARE = 0.09  # narrower segments of a bar have no room for a name

_STYLE = """
.lts-plan{color:inherit;font:14px/1.45 system-ui,sans-serif;max-width:980px;
 margin:4px 0 12px}
.lts-plan .lts-title{font-size:17px;font-weight:600}
.lts-plan .lts-dim{opacity:.72}
.lts-plan .lts-head{font-weight:600;margin:16px 0 6px}
.lts-plan .lts-cards{display:flex;flex-wrap:wrap;gap:8px;margin-top:10px}
.lts-plan .lts-card{border:1px solid rgba(128,128,128,.4);border-radius:8px;
 padding:7px 12px;min-width:96px;max-width:200px}
.lts-plan .lts-card b{display:block;font-size:18px;font-weight:600;
 white-space:nowrap}
.lts-plan .lts-meter{height:4px;border-radius:2px;margin:4px 0 3px;
 background:rgba(128,128,128,.28);overflow:hidden}
.lts-plan .lts-meter i{display:block;height:100%;background:#3f7fd6}
.lts-plan .lts-small{font-size:12px}
.lts-plan .lts-rows{display:grid;gap:3px 14px;align-items:center;
 justify-content:start}
.lts-plan .lts-rows>div{overflow-wrap:anywhere}
.lts-plan .lts-column{font-size:12px;opacity:.72}
.lts-plan .lts-chip{display:inline-block;border-radius:5px;padding:0 0 0 7px;
 margin:1px 4px 1px 0;vertical-align:middle;
 background:rgba(128,128,128,.18);font-size:13px;overflow:hidden;white-space:nowrap}
.lts-plan .lts-axis{display:inline-block;color:#fff;padding:0 7px;font-weight:600}
.lts-plan .lts-chip .lts-axis:first-of-type{margin-left:7px}
.lts-plan .lts-legend{display:flex;flex-wrap:wrap;gap:4px 16px;margin:6px 0}
.lts-plan .lts-legend .lts-axis{border-radius:4px;margin-right:5px}
.lts-plan .lts-swatch{display:inline-block;width:11px;height:11px;
 border-radius:3px;margin-right:5px}
.lts-plan .lts-bar{display:flex;height:26px;border-radius:5px;overflow:hidden;
 margin:3px 0 8px}
.lts-plan .lts-bar>span{color:#fff;font-size:12px;line-height:26px;
 text-align:center;overflow:hidden;white-space:nowrap;text-overflow:ellipsis;
 box-shadow:inset -1px 0 rgba(255,255,255,.4);min-width:0}
.lts-plan .lts-bar>span.lts-named{padding:0 6px}
.lts-plan svg{max-width:100%;height:auto;display:block}
.lts-plan code{font:12.5px ui-monospace,monospace;color:inherit;background:none;
 padding:0}
"""


def plan_html(data: Data) -> str:
    """A plan as a fragment of HTML; no scripts, nothing fetched, all names escaped.

    Args:
      data: as `Plan.to_dict` gives it, or a plan.json holds it.
    """
    sections = [
        _headline(data),
        _cards(data),
        _shapes(data),
        _meshes(data),
        _operators(data),
        _arguments(data),
        _time(data),
        _footer(data),
    ]
    return f'<div class="lts-plan"><style>{_STYLE}</style>{"".join(sections)}</div>'


def _div(css: str, content: str) -> str:
    return f'<div class="{css}">{content}</div>'


def _headline(data: Data) -> str:
    chip = data["cluster"]["chip"]["name"]
    cluster = f"{facts.cluster_name(data)} ({facts.num_gpus(data)} x {chip})"
    lines = [facts.workload_words(data)]
    if data["workload"] and not facts.is_pools(data):
        lines.append(facts.degree_words(data))
    words = "<br>".join(escape(line) for line in lines if line)
    how = ", as pools" if facts.is_pools(data) else ""
    head = f"{escape(facts.title(data))} on {escape(cluster)}{how}"
    return _div("lts-title", head) + (_div("lts-dim", words) if words else "")


def _card(name: str, value: str, note: str = "", share: float | None = None) -> str:
    meter = ""
    if share is not None:
        width = f"{min(share, 1.0) * 100:.1f}%"
        meter = _div("lts-meter", f'<i style="width:{width}"></i>')
    below = _div("lts-small lts-dim", escape(note)) if note else ""
    label = f'<span class="lts-small lts-dim">{escape(name)}</span>'
    return _div("lts-card", f"{label}<b>{escape(value)}</b>{meter}{below}")


def _cards(data: Data) -> str:
    metrics, workload = data["metrics"], data["workload"]
    cards = []
    if workload is None:
        shapes = shape_rows(data)
        mean = f"mean of {counted(len(shapes), 'shape')}" if shapes else ""
        cards.append(_card("Step time", duration(metrics["step_time_s"]), mean))
    else:
        rate = metrics["tokens_per_s_per_gpu"]
        total = f"{rate * facts.num_gpus(data):,.0f} in all"
        cards.append(_card("Tokens/s/GPU", f"{rate:,.1f}", total))
        for name in "ttft", "tpot":
            reached_s, limit_ms = metrics[f"{name}_s"], workload[f"{name}_ms"]
            if reached_s is None:
                continue
            share = None if limit_ms is None else reached_s * 1e3 / limit_ms
            note = "no limit" if limit_ms is None else f"limit {limit_ms:g} ms"
            if name == "ttft" and metrics["kv_transfer_s"] is not None:
                note += f"; KV transfer {milliseconds(metrics['kv_transfer_s'])}"
            cards.append(_card(name.upper(), milliseconds(reached_s), note, share))
        requests = counted(metrics["concurrency"], "request")
        cards.append(_card("Concurrency", requests, "in flight"))
    peak, usable = metrics["peak_bytes"], facts.usable_bytes(data)
    note = f"of {size(usable)}: {facts.memory_words(data)}"
    cards.append(_card("Memory per GPU", size(peak), note, peak / usable))
    note = "from a proven bound"
    cards.append(_card("Gap at most", percent(data["gap"]), note))
    return _div("lts-cards", "".join(cards))


def _shapes(data: Data) -> str:
    """Step time at every shape, if the plan is for several."""
    cells = []
    for row in shape_rows(data):
        worst = " <b>worst</b>" if row.worst else ""
        cells += [
            f"<code>{escape(row.label)}</code>",
            duration(row.time_s),
            escape(row.over_alone) + worst,
        ]
    if not cells:
        return ""
    head = _div("lts-head", "Shapes, one plan for all")
    return head + _grid(
        "auto auto auto", ("arguments", "step time", "of its best alone"), cells
    )


def _badge(name: str, data: Data, phase: str) -> str:
    names = [axis["name"] for axis in facts.assignment(data, phase)["axes"]]
    colour = axis_colour(names.index(name))
    return f'<span class="lts-axis" style="background:{colour}">{escape(name)}</span>'


def _meshes(data: Data) -> str:
    """The mesh, or that of an instance of every pool."""
    if not facts.is_pools(data):
        return _mesh(data, facts.main_phase(data), "Mesh")
    parts = []
    for phase in data["phase_order"]:
        found = data["phases"][phase]
        words = (
            facts.degree_words(data, phase),
            f"{facts.batch_words(data, phase)} in {duration(found['step_time_s'])}",
            f"{found['requests_per_s']:,.2f} requests/s in all",
            f"{facts.memory_words(data, phase)} per GPU",
        )
        head = f"{phase}: {facts.instance_words(data, phase)}"
        parts.append(_mesh(data, phase, head, "; ".join(words)))
    if idle := facts.idle_gpus(data):
        parts.append(_div("lts-dim", f"{counted(idle, 'GPU')} idle"))
    return "".join(parts)


def _mesh(data: Data, phase: str, head: str, words: str = "") -> str:
    assignment = facts.assignment(data, phase)
    entries = [
        (_badge(axis["name"], data, phase), axis["size"], axis["inside"])
        for axis in assignment["axes"]
    ]
    if assignment["stages"] > 1:
        badge = f'<span class="lts-axis" style="background:{STAGE_COLOUR}">stage</span>'
        entries.insert(0, (badge, assignment["stages"], assignment["stages_inside"]))
    legend = "".join(
        f"<span>{badge}{size} {escape(facts.link_words(inside, data))}</span>"
        for badge, size, inside in entries
    )
    heading = _div("lts-head", escape(head)) + _div("lts-dim", escape(words))
    return heading + _div("lts-legend", legend) + mesh_svg(data, phase)


def _chips(found: Sharded | None, data: Data, phase: str) -> str:
    if found is None:
        return "-"
    if not found:
        return '<span class="lts-dim">replicated</span>'
    return "".join(
        f'<span class="lts-chip">{escape(name)}'
        + "".join(_badge(axis, data, phase) for axis in axes)
        + "</span>"
        for name, axes in found
    )


def _grid(widths: str, header: Sequence[str], cells: Sequence[str]) -> str:
    names = "".join(_div("lts-column", escape(name)) for name in header)
    body = "".join(f"<div>{cell}</div>" for cell in cells)
    style = f'style="grid-template-columns:{widths}"'
    return f'<div class="lts-rows" {style}>{names}{body}</div>'


def _operators(data: Data) -> str:
    phases = data["phase_order"]
    cells = []
    for row in facts.op_rows(data):
        cells.append(_op_label(row))
        cells += [_chips(row.sharded[phase], data, phase) for phase in phases]
    columns = f"minmax(120px,300px) repeat({len(phases)},auto)"
    head = _div("lts-head", "What each mesh axis shards")
    return head + _grid(columns, ("operators", *phases), cells)


def _op_label(row: OpRow) -> str:
    names = escape(", ".join(row.names))
    return f"<b>{escape(row.group)}</b> {names}" if row.group else names


def _arguments(data: Data) -> str:
    rows = [row for row in facts.argument_rows(data) if any(row.spec)]
    if not rows:
        return ""
    cells = []
    for row in rows:
        partial = len(row.phases) < len(data["phase_order"])
        only = f" ({', '.join(row.phases)})" if partial else ""
        cells.append(f"<code>{escape(row.path + only)}</code>")
        cells.append(_chips(row.sharded, data, row.phases[-1]))
        cells.append(f"<code>{escape(row.partition_spec)}</code>")
    summary = f"Sharded arguments: {counted(len(rows), 'spec')}"
    header = ("path", "shards", "PartitionSpec")
    return (
        f'<details><summary class="lts-head">{summary}</summary>'
        f"{_grid('auto auto auto', header, cells)}</details>"
    )


def _time(data: Data) -> str:
    parts = [_div("lts-head", "Where the time of a step goes")]
    used: dict[str, None] = {}
    for phase in data["phase_order"]:
        rows = facts.time_rows(data, phase)
        total_s = sum(row.time_s for row in rows)
        words, segments = [], []
        for kind, name in facts.KINDS.items():
            own = [row for row in rows if row.kind == kind]
            if not own:
                continue
            used[kind] = None
            words.append(f"{name} {percent(sum(row.share for row in own))}")
            segments += [
                _segment(row, kind) for row in sorted(own, key=lambda row: -row.time_s)
            ]
        label = f"<b>{escape(phase)}</b> {duration(total_s)}: {', '.join(words)}"
        parts.append(_div("lts-small", label) + _div("lts-bar", "".join(segments)))
    legend = "".join(
        f'<span><span class="lts-swatch" style="background:{KIND_COLOURS[kind]}">'
        f"</span>{facts.KINDS[kind]}</span>"
        for kind in used
    )
    return "".join(parts) + _div("lts-legend lts-small", legend)


def _segment(row: facts.TimeRow, kind: str) -> str:
    name = escape(row.name)
    css, label = "", ""
    if row.share >= _LABELLED_SHARE:
        css, label = ' class="lts-named"', name
    tip = f"{name}: {duration(row.time_s)}, {percent(row.share)}"
    style = f"flex:{row.share:.5f} 0 0;background:{KIND_COLOURS[kind]}"
    return f'<span{css} style="{style}" title="{tip}">{label}</span>'


def _footer(data: Data) -> str:
    lines = [
        f"Bound by {facts.bound_words(data)}.",
        f"Found by {facts.search_words(data)}.",
        *data["notes"],
    ]
    return _div("lts-small lts-dim", "<br>".join(map(escape, lines)))
