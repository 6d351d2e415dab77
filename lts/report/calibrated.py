"""The table of `lts calibrate`: what was measured, how fast, how well it is fitted."""

from collections.abc import Mapping
from typing import Any

from lts.report.text import screen_width, table_text
from lts.report.units import percent


def calibrated_text(data: Mapping[str, Any], *, width: int | None = None) -> str:
    """Operators with their best rates and errors, notes, and the files.

    Args:
      data: the object that `lts calibrate --json` prints.
    """
    width = width or screen_width()
    rows = [
        (
            operator["key"],
            str(len(operator["points"])),
            ", ".join(operator["ways"]),
            rate(operator["best_rate"], operator["unit"]),
            percent(operator["reference_error"]),
            _share(operator["median_error"]),
            _share(operator["p90_error"]),
        )
        for operator in data["operators"]
    ]
    header = ("operator", "sizes", "by", "best rate", "before", "error", "P90")
    cluster = data["cluster"]
    lines = [
        f"{cluster['gpus_per_node']} x {cluster['chip']['name']}",
        "",
        table_text(rows, width, header=header, right=(1, 3, 4, 5, 6)),
        "",
        "before: median error of the values that the fits started from; error, P90: of "
        "sizes that a fit did not see.",
        *(f"note: {note}" for note in data["notes"]),
        f"wrote {' and '.join(data['files'])}; plan with --cluster {data['files'][0]}",
    ]
    return "\n".join(lines)


def rate(per_s: float, unit: str) -> str:
    """FLOP or bytes per second with a prefix that fits.

    >>> rate(7.121e14, "FLOP"), rate(2.74e12, "B"), rate(3.3e8, "B")
    ('712 TFLOP/s', '2740 GB/s', '0.33 GB/s')
    """
    prefix, scale = ("T", 1e12) if unit == "FLOP" else ("G", 1e9)
    value = per_s / scale
    return f"{value:.{0 if value >= 100 else 2}f} {prefix}{unit}/s"


def _share(error: float | None) -> str:
    return "-" if error is None else percent(error)
