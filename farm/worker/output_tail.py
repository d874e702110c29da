"""Output of a program that a model runs: copied to the worker's log, its last lines kept."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Iterable
from typing import IO

LAST_LINES = 20
LONGEST = 2000
"""Characters that are kept of a line."""


class OutputTail:
    """The last lines of a program's output, for messages.

    copy: whether lines are also written to this process's standard error, the worker's log.
    """

    def __init__(self, *, copy: bool = True) -> None:
        self._copy = copy
        self._lines: deque[str] = deque(maxlen=LAST_LINES)

    def follow(self, stream: IO[bytes]) -> threading.Thread:
        """Read a stream to its end, and close it, in a thread, which is returned."""

        def read() -> None:
            with stream:
                self.take(stream)

        thread = threading.Thread(target=read, name="output", daemon=True)
        thread.start()
        return thread

    def take(self, lines: Iterable[bytes]) -> None:
        """Keep and copy lines."""
        for line in lines:
            text = line.decode(errors="replace").rstrip()
            if self._copy:
                print(text, file=sys.stderr, flush=True)
            if text:
                self._lines.append(text[:LONGEST])

    def text(self) -> str:
        """Return the last lines."""
        return "\n".join(list(self._lines))

    def last(self) -> str:
        """Return the last line that is not empty, or that there is none."""
        return self._lines[-1].strip() if self._lines else "it wrote nothing"
