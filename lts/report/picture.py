"""The mesh as an inline SVG: nodes, their GPUs, and every GPU's place on each axis."""

from html import escape

from lts.report.facts import Data, assignment, is_pools, main_phase
from lts.report.units import counted

AXIS_COLOURS = ("#3f7fd6", "#d9622b", "#2f9e6b", "#b04fc0", "#b8860b", "#c23f5e")
"""Mid-tones that read on white and on black."""

STAGE_COLOUR = "#808080"
"""Of the stripe that says which pipeline stage a GPU belongs to."""

_CELL, _GAP, _STRIPE, _MARGIN, _LABEL = 62, 6, 9, 10, 18
_CELLS_PER_ROW = 8
_MAX_CELLS = 32

Stripe = tuple[str, int, str]
"""Name, size and colour of a mesh axis or of the stages."""


def axis_colour(number: int) -> str:
    """Colour of the mesh axis at a place in the mesh."""
    return AXIS_COLOURS[number % len(AXIS_COLOURS)]


def mesh_svg(data: Data, phase: str | None = None) -> str:
    """Boxes of nodes with a cell per GPU, in the order of the devices.

    A cell has a stripe per mesh axis (and one for the pipeline stage), as far along as
    the GPU is on that axis. Large clusters are cut off after some nodes; a line below
    says so.

    Args:
      phase: whose instance to draw, where every phase has its own; None for the main.
    """
    phase = phase or main_phase(data)
    nodes, gpus = data["cluster"]["nodes"], data["cluster"]["gpus_per_node"]
    if is_pools(data):
        whole = data["phases"][phase]["gpus"]
        nodes, gpus = max(1, whole // gpus), min(whole, gpus)
    stripes = _stripes(assignment(data, phase))
    shown = min(nodes, max(1, _MAX_CELLS // gpus))
    columns = min(gpus, _CELLS_PER_ROW)
    rows = -(-gpus // columns)
    cell_height = 22 + (_STRIPE + 3) * len(stripes)
    node_width = columns * (_CELL + _GAP) + 2 * _MARGIN - _GAP
    node_height = rows * (cell_height + _GAP) + 2 * _MARGIN - _GAP + _LABEL
    per_line = 2 if shown > 1 and columns <= 4 else 1
    parts = []
    for node in range(shown):
        left = (node % per_line) * (node_width + _MARGIN) + 1
        top = (node // per_line) * (node_height + _MARGIN) + 1
        parts.append(
            f'<rect x="{left}" y="{top}" width="{node_width}" height="{node_height}" '
            'rx="8" fill="none" stroke="currentColor" stroke-opacity=".35"/>'
            f'<text x="{left + _MARGIN}" y="{top + _LABEL}" font-size="12" '
            f'fill="currentColor" opacity=".7">node {node}</text>'
        )
        for gpu in range(gpus):
            x = left + _MARGIN + gpu % columns * (_CELL + _GAP)
            y = top + _MARGIN + _LABEL + gpu // columns * (cell_height + _GAP)
            parts.append(_cell(stripes, node * gpus + gpu, x, y, cell_height))
    lines = -(-shown // per_line)
    width = per_line * (node_width + _MARGIN) - _MARGIN + 2
    height = lines * (node_height + _MARGIN) - _MARGIN + 2
    words = f"{counted(nodes, 'node')} of {counted(gpus, 'GPU')}"
    picture = (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(words)}">{"".join(parts)}</svg>'
    )
    if shown < nodes:
        more = counted(nodes - shown, "more node")
        picture += f'<div class="lts-dim">and {more}, laid out alike</div>'
    return picture


def _stripes(found: Data) -> list[Stripe]:
    """What places a GPU in the mesh of an assignment, outermost first."""
    stages = found["stages"]
    axes = [
        (axis["name"], axis["size"], axis_colour(number))
        for number, axis in enumerate(found["axes"])
    ]
    return [("stage", stages, STAGE_COLOUR), *axes] if stages > 1 else axes


def _cell(stripes: list[Stripe], device: int, x: int, y: int, height: int) -> str:
    rest, places = device, []
    for _, size, _ in reversed(stripes):
        rest, place = divmod(rest, size)
        places.insert(0, place)
    where = ", ".join(
        f"{name}={place}" for (name, *_), place in zip(stripes, places, strict=True)
    )
    parts = [
        f"<title>GPU {device}: {escape(where)}</title>"
        f'<rect x="{x}" y="{y}" width="{_CELL}" height="{height}" rx="5" '
        'fill="currentColor" fill-opacity=".06"/>'
        f'<text x="{x + _CELL / 2}" y="{y + 14}" font-size="11" text-anchor="middle" '
        f'fill="currentColor">GPU {device}</text>'
    ]
    for number, ((_, size, colour), place) in enumerate(
        zip(stripes, places, strict=True)
    ):
        top = y + 19 + number * (_STRIPE + 3)
        room = _CELL - 12
        part = room / size
        parts.append(
            f'<rect x="{x + 6}" y="{top}" width="{room}" height="{_STRIPE}" rx="2" '
            f'fill="{colour}" fill-opacity=".18"/>'
            f'<rect x="{x + 6 + place * part:.2f}" y="{top}" width="{part:.2f}" '
            f'height="{_STRIPE}" rx="2" fill="{colour}"/>'
        )
    return f"<g>{''.join(parts)}</g>"
