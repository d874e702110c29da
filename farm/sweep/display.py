"""How a running sweep looks: a live bar in a terminal or notebook, else a line a minute."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from farm.sweep.progress import Progress, duration

LINE_EVERY_S = 60.0


class LiveBar:
    """A bar in a terminal or notebook, else a line a minute; messages at once. A context manager.

    over: what is said when a message is no more. clock: monotonic seconds.
    """

    def __init__(
        self,
        console: Console | None = None,
        *,
        over: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or Console(stderr=True)
        self._over = over
        self._clock = clock
        self._live = self._console.is_terminal or self._console.is_jupyter
        self._line_at = clock()
        self._message = ""
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
            console=self._console,
            disable=not self._live,
        )
        self._task = self._bar.add_task("", total=None, facts="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()

    def bring_up_to_date(
        self, title: str, done: int, total: int | None, facts: str, message: str
    ) -> None:
        """facts: what stands right of the bar; message: what is to be known now, or ""."""
        self._bar.update(self._task, description=title, total=total, completed=done, facts=facts)
        if message != self._message:
            self._message = message
            self.say(message or self._over)

    def line_if_due(self, line: Callable[[], str]) -> None:
        """Print what `line` gives, where there is no bar and the last one is a minute old."""
        if not self._live and self._clock() - self._line_at >= LINE_EVERY_S:
            self._line_at = self._clock()
            self.say(line())

    def say(self, text: str) -> None:
        """Print one line above the bar."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


class Display(LiveBar):
    """Shows progress of a sweep on a console, as often as it is told."""

    def __init__(
        self, console: Console | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(console, over="the sweep goes on", clock=clock)
        self._told_cost = False

    def show(self, progress: Progress) -> None:
        """Bring the display up to date; lines appear a minute apart, messages at once."""
        self.bring_up_to_date(
            progress.title or "sweep",
            progress.finished,
            progress.total,
            facts(progress),
            progress.message,
        )
        if not self._told_cost and progress.expected_work_s is not None and progress.eta_s:
            self._told_cost = True
            self.say(cost(progress))
        self.line_if_due(lambda: line(progress))


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
