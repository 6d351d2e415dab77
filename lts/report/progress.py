"""A progress bar of a running search, on stderr, where that is a terminal."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

_INFEASIBLE = -50.0
"""Below the log of any objective, above the fitness of any infeasible plan."""


@contextmanager
def search_progress(budget: int) -> Iterator[Callable[[int, float], None] | None]:
    """A callback for `search(on_progress=...)` that draws; None outside a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[news]}"),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task("tracing and pricing", total=None, news="")
    started: list[tuple[int, float]] = []

    def on_progress(evaluations: int, fitness: float) -> None:
        # the first batch holds the compilation, so rates are counted from its end
        now_s = time.monotonic()
        if not started:
            started.append((evaluations, now_s))
        before, start_s = started[0]
        rate = (evaluations - before) / max(now_s - start_s, 1e-9)
        bar.update(
            task,
            description="searching",
            total=budget,
            completed=evaluations,
            news=progress_news(evaluations, budget, fitness, rate),
        )

    with bar:
        yield on_progress


def progress_news(evaluations: int, budget: int, fitness: float, rate: float) -> str:
    """What a search has reached.

    Args:
      fitness: log objective of the best plan so far; far below 0 if none is feasible.
      rate: evaluations per second, 0 where unknown.

    >>> progress_news(1000, 4000, 5.0, 0.0)
    '1,000/4,000, best 148.4 tokens/s/GPU'
    """
    speed = f" at {rate:,.0f} per s" if rate else ""
    found = "no feasible plan yet"
    if fitness > _INFEASIBLE:
        found = f"best {math.exp(fitness):,.1f} tokens/s/GPU"
    return f"{evaluations:,}/{budget:,}{speed}, {found}"
