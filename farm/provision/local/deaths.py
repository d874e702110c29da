"""Logs the deaths of a supervisor's processes, at a bounded rate."""

from __future__ import annotations

import logging
import math
import time

from farm.monitoring.repetitions import Repetitions, shape_of


class Deaths(Repetitions):
    """The warnings about processes that died and are started again.

    A supervisor has no event loop, so it calls `report_if_due` at each look. log: its log.
    """

    def __init__(self, log: logging.Logger) -> None:
        super().__init__(log, "worker processes died %d more times")
        self._report_at = math.inf

    def died(self, number: int, what: str, reason: str, then: str) -> None:
        """Report a death. number: of the process; what, reason: in words; then: the next step."""

        def line(count: int) -> str:
            if count == 1:
                return f"worker process {number} {what}: {reason}; {then}"
            times = f"{count} times: {reason}; the last was process {number}"
            return f"worker processes {what} {times}, {then}"

        self.happened((what, shape_of(reason)), logging.WARNING, 1, line)

    def report_later(self, seconds: float) -> None:
        """Let the deaths that are only counted be due after this number of seconds."""
        self._report_at = time.monotonic() + seconds

    def report_if_due(self, now: float) -> None:
        """Report the deaths that were only counted, if it is time. now: monotonic time."""
        if now >= self._report_at:
            self._report_at = math.inf
            self.report()
