"""A progress bar of a running search, on stderr, where that is a terminal."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from lts.report.units import duration

_INFEASIBLE = -50.0
"""Below the log of any objective, above the fitness of any infeasible plan."""


@contextmanager
def search_progress(
    budget: int, *, served: bool = True
) -> Iterator[Callable[[int, float], None] | None]:
    """A callback for `search(on_progress=...)` that draws; None outside a terminal.

    Args:
      served: whether a model is served, not a function called.
    """
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
            news=progress_news(evaluations, budget, fitness, rate, served),
        )

    with bar:
        yield on_progress


def progress_news(
    evaluations: int, budget: int, fitness: float, rate: float, served: bool = True
) -> str:
    """What a search has reached.

    Args:
      fitness: log objective of the best plan so far; far below 0 if none is feasible.
      rate: evaluations per second, 0 where unknown.
      served: whether the objective is tokens/s/GPU; else it is steps per second.

    >>> progress_news(1000, 4000, 5.0, 0.0)
    '1,000/4,000, best 148.4 tokens/s/GPU'
    >>> progress_news(1000, 4000, 5.0, 0.0, served=False)
    '1,000/4,000, best step 6.7 ms'
    """
    speed = f" at {rate:,.0f} per s" if rate else ""
    found = "no feasible plan yet"
    if fitness > _INFEASIBLE:
        found = f"best {math.exp(fitness):,.1f} tokens/s/GPU"
        if not served:
            found = f"best step {duration(math.exp(-fitness))}"
    return f"{evaluations:,}/{budget:,}{speed}, {found}"
