"""Shows a running sweep: a bar in a terminal or below a notebook's cell, or a line a minute."""

from __future__ import annotations

import queue
import secrets
import sys
from collections.abc import Iterable
from html import escape
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from farm.sweep.file.journal import Row
from farm.sweep.file.progress import Progress
from farm.sweep.file.recovery import RUNNING
from farm.sweep.run.run import RunHost
from farm.wording import timespan

LINE_EVERY_S = 60.0


class LiveBar:
    """A live bar in a terminal, otherwise a line a minute; a context manager.

    Messages are printed at once. over: printed when a message no longer applies.
    """

    def __init__(self, console: Console | None = None, *, over: str) -> None:
        self._console = console or Console(stderr=True)
        self._over = over
        self._live = self._console.is_terminal
        self._line_at_s = 0.0
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
        if self._live:  # rich before 14.3 would print an empty line
            self._bar.stop()

    def bring_up_to_date(
        self, title: str, done: int, total: int | None, facts: str, message: str
    ) -> None:
        """Update the bar. facts: text to its right; message: a notice for the user, or ""."""
        self._bar.update(self._task, description=title, total=total, completed=done, facts=facts)
        if message != self._message:
            self._message = message
            self.say(message or self._over)

    def is_line_due(self, elapsed_s: float) -> bool:
        """Whether to print a line, because no bar is shown and the last line is a minute old."""
        if self._live or elapsed_s - self._line_at_s < LINE_EVERY_S:
            return False
        self._line_at_s = elapsed_s
        return True

    def say(self, text: str) -> None:
        """Print one line above the bar."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


class Display(LiveBar):
    """Shows the progress of a sweep on a console; call `show` with each update."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__(console, over="the sweep continues")
        self._told_cost = False

    def show(self, progress: Progress) -> None:
        """Update the display; lines appear a minute apart, messages at once."""
        self.bring_up_to_date(
            progress.title or "sweep",
            progress.finished,
            progress.total,
            facts(progress),
            progress.message if progress.state == RUNNING else self._message,  # it may not be over
        )
        if not self._told_cost and progress.expected_work_s is not None and progress.eta_s:
            self._told_cost = True
            self.say(cost(progress))
        if self.is_line_due(progress.elapsed_s):
            self.say(line(progress))


def facts(progress: Progress) -> str:
    """Return the text to the right of the bar: failures, rate, expected end."""
    parts = []
    if progress.unsuccessful:
        parts.append(f"{progress.unsuccessful} failed")
    if progress.rate_per_s is not None:
        parts.append(rate(progress.rate_per_s))
    if progress.pending:
        parts.append(f"{timespan(progress.eta_s)} left")
    return ", ".join(parts)


def line(progress: Progress) -> str:
    """Return the progress as one line of a log."""
    share = progress.finished / progress.total if progress.total else 1.0
    return (
        f"{progress.title}: {progress.finished}/{progress.total} points ({share:.0%}), "
        + (facts(progress) or progress.state)
        + (f"; {progress.message}" if progress.message else "")
    )


def cost(progress: Progress) -> str:
    """Return the expected cost of the whole sweep, estimated from the finished points."""
    expected = progress.expected_work_s or 0.0
    long = f"about {hours(expected)} core hours (times the cores of a worker)"
    work = long if expected >= 60.0 else f"{timespan(expected)} of a worker"
    return (
        f"a point takes {timespan(progress.run_mean_s)} on average, so {progress.total} points "
        f"take {work}; expected end in {timespan(progress.eta_s)}"
    )


def rate(per_s: float) -> str:
    """Format a rate in points per second, minute or hour, whichever is readable."""
    for unit, seconds in (("s", 1), ("min", 60)):
        if per_s * seconds >= 1:
            number = per_s * seconds
            return f"{number:,.0f}/{unit}" if number >= 100 else f"{number:.3g}/{unit}"
    return f"{per_s * 3600:.3g}/h"


def hours(seconds: float) -> str:
    """Format seconds as hours with two significant digits, or whole hours from 10 on."""
    return f"{seconds / 3600:.2g}" if seconds < 36_000 else f"{seconds / 3600:,.0f}"


def notebook_shell() -> Any:
    """Return IPython's shell if this process is the kernel of a notebook, otherwise None."""
    ipython = sys.modules.get("IPython")  # a kernel has loaded it
    shell = None if ipython is None else ipython.get_ipython()
    return shell if hasattr(shell, "kernel") else None


class NotebookBar:
    """A bar in a notebook, kept up to date from any thread; a context manager like `Display`."""

    def __init__(self, shell: Any, progress: Progress) -> None:
        self._shell = shell
        self._id = f"farm-sweep-{secrets.token_hex(8)}"
        self._last = progress
        self._cell: int | None = None
        self.show_here()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Do nothing: the last state remains in the notebook."""

    def show(self, progress: Progress) -> None:
        """Update the bar wherever it is shown."""
        self._last = progress
        self._publish(update=True)

    def show_here(self) -> None:
        """Show the bar below the cell that runs now, unless it is there."""
        if self._cell != self._shell.execution_count:
            self._cell = self._shell.execution_count
            self._publish(update=False)

    def _publish(self, *, update: bool) -> None:
        self._shell.display_pub.publish(
            {"text/html": html_of(self._last), "text/plain": line(self._last)},
            transient={"display_id": self._id},
            update=update,
        )


class SweepView(RunHost):
    """Shows a run, and keeps what other threads read of it; the run's thread calls its methods.

    progress: the last known. display: the bar, if there is one. rows: outcomes, in order, and
    None at the end; without outcomes unless `stream`.
    """

    progress: Progress

    def __init__(self, *, stream: bool) -> None:
        self.display: Display | NotebookBar | None = None
        self.rows: queue.SimpleQueue[Iterable[Row] | None] = queue.SimpleQueue()
        self._stream = stream

    def begin(self, progress: Progress, *, bar: bool) -> None:
        """Take the progress at the start. bar: show a bar."""
        self.progress = progress
        if bar:
            shell = notebook_shell()
            self.display = Display() if shell is None else NotebookBar(shell, progress)

    def show(self, progress: Progress) -> None:
        """Keep the progress and update the bar."""
        self.progress = progress
        if self.display is not None:
            self.display.show(progress)

    def stored(self, rows: Iterable[Row]) -> None:
        """Keep outcomes for `as_completed`."""
        if self._stream:
            self.rows.put(rows)


def html_of(progress: Progress) -> str:
    """Return the progress of a sweep as HTML, with its counts as text."""
    counts = [f"{progress.finished}/{progress.total} points", facts(progress), progress.state]
    text = ", ".join(filter(None, counts))
    message = f"<br><small>{escape(progress.message)}</small>" if progress.message else ""
    return (
        f"<div><b>{escape(progress.title or 'sweep')}</b> "
        f'<progress value="{progress.finished}" max="{max(progress.total, 1)}"></progress> '
        f"{escape(text)}{message}</div>"
    )
