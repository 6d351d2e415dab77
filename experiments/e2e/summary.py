"""Error tables of one set of predictions: figures by quantity, comparison, profile."""

from collections.abc import Callable, Mapping

import numpy as np

from experiments.e2e.comparisons import (
    Count,
    equal_load,
    equal_size,
    maximum_load,
    under_limit,
)
from experiments.e2e.folds import is_steady
from experiments.e2e.points import Priced
from experiments.e2e.rows import Row

MEASURED_CHIPS = ("H100", "H200", "A100")

Figures = dict[str, float | str]


def _is_tpot(row: Row) -> bool:
    return row.quantity == "tpot_s" and row.load in ("closed", "open")


def _is_ttft(row: Row) -> bool:
    return row.quantity == "ttft_s"


def _is_maximum(row: Row) -> bool:
    known = row.gpu.startswith(MEASURED_CHIPS)
    return known and row.quantity == "tokens_per_s" and row.load in ("max", "static")


def _is_scaled(row: Row) -> bool:
    known = row.gpu.startswith(MEASURED_CHIPS)
    return not known and row.quantity == "tokens_per_s" and row.load == "max"


QUANTITIES: Mapping[str, Callable[[Row], bool]] = {
    "TPOT": _is_tpot,
    "throughput at maximum load": _is_maximum,
    "the same on chips scaled from their sheets": _is_scaled,
    "TTFT, not queueing": _is_ttft,
}
"""Which rows each absolute error is over; only those that `is_steady` holds for."""


def relative_errors(priced: Priced, values: np.ndarray) -> np.ndarray:
    """`|predicted / measured - 1|` of every row."""
    measured = np.array([row.value for row in priced.rows])
    return np.abs(values / measured - 1)


def absolute(priced: Priced, values: np.ndarray) -> dict[str, Figures]:
    """Median and 90th percentile of the relative error, by quantity."""
    errors = relative_errors(priced, values)
    out = {}
    for name, belongs in QUANTITIES.items():
        use = np.array([is_steady(row) and belongs(row) for row in priced.rows], bool)
        out[name] = _quantiles(errors[use])
    at_once = np.array(
        [r.load == "at_once" and r.quantity == "tokens_per_s" for r in priced.rows],
        bool,
    )
    out["throughput, all requests at once (not fitted)"] = _quantiles(errors[at_once])
    return out


def by_profile(priced: Priced, values: np.ndarray) -> dict[str, Figures]:
    """The same by profile and quantity."""
    errors = relative_errors(priced, values)
    keys = np.array([f"{row.profile}: {row.quantity}" for row in priced.rows])
    steady = np.array([is_steady(row) for row in priced.rows], bool)
    return {key: _quantiles(errors[steady & (keys == key)]) for key in np.unique(keys)}


def _quantiles(errors: np.ndarray) -> Figures:
    if not len(errors):
        return {"rows": 0}
    return {
        "rows": len(errors),
        "median": float(np.median(errors)),
        "p90": float(np.quantile(errors, 0.9)),
    }


def comparisons(priced: Priced, values: np.ndarray) -> dict[str, Figures]:
    """Comparisons A, B and C, each with the rules that know nothing."""
    known = [row.gpu.startswith(MEASURED_CHIPS) for row in priced.rows]
    a = maximum_load(priced, values)
    measured = maximum_load(priced, values, np.array(known, bool))
    b = equal_load(priced, values)
    waits = equal_load(priced, values, "ttft_s")
    return {
        "A maximum load": {**a.summary()},
        "A on measured chips": {**measured.summary()},
        "B equal load per GPU": {**b.summary()},
        "B time to first token": {**waits.summary()},
        "C best under a TPOT limit": {**under_limit(priced, values)},
    }


def equal_sizes(priced: Priced, values: np.ndarray) -> dict[str, Figures]:
    """Pairs of one size ordered right, as counts: totals, then by kind and source."""
    counts = equal_size(priced, values)
    totals: dict[str, Count] = {}
    for (kind, source, doubtful), count in sorted(counts.items()):
        sure = "low confidence" if doubtful else "confident"
        for name in (f"total, {sure}", f"{kind}, {sure}", f"{kind}, {source}, {sure}"):
            total = totals.setdefault(name, Count())
            total.right += count.right
            total.pairs += count.pairs
            total.wider_right += count.wider_right
    return {
        name: {
            "right": f"{count.right} of {count.pairs}",
            "share": count.right / count.pairs,
            "wider tensor parallel": f"{count.wider_right} of {count.pairs}",
        }
        for name, count in sorted(totals.items(), key=lambda item: -item[1].pairs)
    }
