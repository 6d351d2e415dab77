"""Measures probes from the smallest to the largest, for as long as the time allows.

Nothing is known about the speed of a device beforehand: a probe is expected to be as
much slower than its model on a reference chip as the slowest smaller one was, and left
out if that is too long; but never the three smallest of a family.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lts.calibrate.clock import Clock
from lts.calibrate.fit import Series
from lts.calibrate.probes.base import Family, Probe
from lts.calibration import Calibration
from lts.cost.operators.base import Sizes
from lts.cost.operators.collective_levels import inside_sizes
from lts.hardware import Cluster, Link

LEAST_POINTS = 3
"""For a fit."""

_RUNS = 4
"""Of a chain that takes as long as a probe may: to compile, to warm up, to measure."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A probe that was measured: seconds, and the quickest implementation."""

    probe: Probe
    time_s: float
    way: str


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The points of a family, and what kept others from being measured."""

    family: Family
    points: tuple[Point, ...]
    faults: tuple[str, ...] = ()

    @property
    def best_rate(self) -> float:
        """FLOP/s or bytes/s of the best point; 0 without points."""
        return max(
            (point.probe.amount / point.time_s for point in self.points), default=0
        )


def measure(
    families: Sequence[Family],
    clock: Clock,
    helds: Sequence[Calibration],
    cluster: Cluster,
    *,
    budget_s: float,
    slowdown: float = 1.0,
    on_family: Callable[[str], None] | None = None,
) -> Iterator[Measured]:
    """Every family's points.

    Args:
      helds, cluster: fits and chip of a reference, for expectations; the first fit of
        an operator counts.
      budget_s: for all probes together, without compilation.
      slowdown: of the device against the reference, for its smallest probes.
      on_family: called with the key of what is measured next.
    """
    probe_s = budget_s / max(sum(len(family.probes) for family in families), 1)
    for family in families:
        if on_family is not None:
            on_family(family.key)
        sizes = sizes_of(family, family.probes, cluster.intra)
        values, _ = start_of(family, helds)
        expected = family.operator.time_s(sizes, values, cluster.chip)
        yield _measured(family, expected, clock, probe_s, slowdown)


def _measured(
    family: Family, expected: np.ndarray, clock: Clock, probe_s: float, slowdown: float
) -> Measured:
    points, faults = [], {}
    slow: dict[str, float] = {}  # the most so far, by way
    for number in np.argsort(expected, kind="stable"):
        probe, times = family.probes[number], {}
        for way in probe.ways:
            estimate_s = expected[number] * slow.get(way, slowdown)
            if estimate_s * _RUNS > probe_s and len(points) >= LEAST_POINTS:
                continue
            try:
                times[way] = clock(
                    family, probe, way, estimate_s=float(estimate_s), limit_s=probe_s
                )
            except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
                # the first line: XLA appends its stack
                faults.setdefault(f"{family.key}, {way}", _first_line(error))
                continue
            found = times[way] / expected[number]
            slow[way] = max(slow.get(way, 0.0), found)
        if times:
            way = min(times, key=lambda name: times[name])
            points.append(Point(probe=probe, time_s=times[way], way=way))
    said = tuple(f"{what}: {why}" for what, why in faults.items())
    return Measured(family=family, points=tuple(points), faults=said)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


def start_of(
    family: Family, helds: Sequence[Calibration]
) -> tuple[dict[str, float], str]:
    """Values for all parameters of a family, and where they are from.

    The first fit of the operator; without one, the operator's own starts.
    """
    starts = {p.name: p.start for p in family.operator.parameters}
    for held in helds:
        if family.key in held.fits:
            return starts | dict(held.fits[family.key].values), held.chip
    return starts, "the operator model"


def sizes_of(family: Family, probes: Sequence[Probe], link: Link) -> Sizes:
    """Sizes of the operator model, with those of the link where it needs them."""
    names = probes[0].sizes if probes else {}
    sizes = {name: np.array([float(p.sizes[name]) for p in probes]) for name in names}
    if family.linked:
        return inside_sizes(sizes["nbytes"], sizes["members"], link)
    return sizes


def series_of(
    measured: Measured, link: Link, local_s: Callable[[np.ndarray], np.ndarray]
) -> Series:
    """The points for a fit, each a shape of its own.

    Args:
      local_s: seconds by bytes of the kernels that a chain needs besides.
    """
    probes = [point.probe for point in measured.points]
    nbytes = np.array([probe.local_bytes for probe in probes])
    time_s = np.array([point.time_s for point in measured.points])
    own_s = time_s - np.where(nbytes > 0, local_s(nbytes), 0.0)
    return Series(
        key=measured.family.key,
        operator=measured.family.operator,
        sizes=sizes_of(measured.family, probes, link),
        # whatever the copies are thought to take, most of it is the operator's
        time_s=np.maximum(own_s, time_s / 2),
        shapes=np.arange(len(probes)),
    )
