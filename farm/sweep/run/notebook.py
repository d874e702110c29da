"""Shows a sweep that runs in a thread: below a notebook's cell, otherwise in the terminal."""

from __future__ import annotations

import queue
import secrets
import sys
from collections.abc import Iterable
from html import escape
from typing import Any, Self

from farm.sweep.file.journal import Row
from farm.sweep.file.progress import Progress
from farm.sweep.run.display import Display, facts, line
from farm.sweep.run.run import RunHost


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
