"""How a running sweep looks: a live bar in a terminal or notebook, else a line a minute."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from farm.sweep.progress import Progress, duration

LINE_EVERY_S = 60.0


class Display:
    """Shows progress on a console, as often as it is told. A context manager.

    clock: monotonic seconds.
    """

    def __init__(
        self, console: Console | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console or Console(stderr=True)
        self._clock = clock
        self._live = self._console.is_terminal or self._console.is_jupyter
        self._line_at = clock()
        self._told_cost = False
        self._message = ""
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
            console=self._console,
            disable=not self._live,
        )
        self._task = self._bar.add_task("sweep", total=None, facts="")

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()

    def show(self, progress: Progress) -> None:
        """Bring the display up to date; lines appear a minute apart, messages at once."""
        self._bar.update(
            self._task,
            description=progress.title or "sweep",
            total=progress.total,
            completed=progress.finished,
            facts=facts(progress),
        )
        if progress.message != self._message:
            self._message = progress.message
            self.say(progress.message or "the sweep goes on")
        if not self._told_cost and progress.expected_work_s is not None and progress.eta_s:
            self._told_cost = True
            self.say(cost(progress))
        if not self._live and self._clock() - self._line_at >= LINE_EVERY_S:
            self._line_at = self._clock()
            self.say(line(progress))

    def say(self, text: str) -> None:
        """Print one line above the bar."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def facts(progress: Progress) -> str:
    """What stands right of the bar: failures, rate, expected end."""
    parts = []
    if progress.unsuccessful:
        parts.append(f"{progress.unsuccessful} failed")
    if progress.rate_per_s is not None:
        parts.append(rate(progress.rate_per_s))
    if progress.pending:
        parts.append(f"{duration(progress.eta_s)} left")
    return ", ".join(parts)


def line(progress: Progress) -> str:
    """Progress as one line of a log."""
    share = progress.finished / progress.total if progress.total else 1.0
    return (
        f"{progress.title}: {progress.finished}/{progress.total} points ({share:.0%}), "
        + (facts(progress) or progress.state)
        + (f"; {progress.message}" if progress.message else "")
    )


def cost(progress: Progress) -> str:
    """What the whole sweep is expected to take, from the points that have finished."""
    expected = progress.expected_work_s or 0.0
    return (
        f"a point takes {duration(progress.run_mean_s)} on average, so {progress.total} points "
        f"take about {hours(expected)} core hours (times the cores of a worker); "
        f"expected end in {duration(progress.eta_s)}"
    )


def rate(per_s: float) -> str:
    """Points a second, a minute or an hour, whichever is readable."""
    for unit, seconds in (("s", 1), ("min", 60)):
        if per_s * seconds >= 1:
            number = per_s * seconds
            return f"{number:,.0f}/{unit}" if number >= 100 else f"{number:.3g}/{unit}"
    return f"{per_s * 3600:.3g}/h"


def hours(seconds: float) -> str:
    """Seconds as hours, two digits that mean something."""
    return f"{seconds / 3600:.2g}" if seconds < 36_000 else f"{seconds / 3600:,.0f}"
