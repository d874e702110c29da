"""When a worker reports the memory and processors that it uses, and what it reports."""

from __future__ import annotations

from collections.abc import Sequence

from farm.machine.usage import UsageMeter
from farm.wire.usage import Used

REPORT_EVERY_S = 5.0
"""Interval of reports of the memory and processors that this worker uses, while it has calls."""

REPORT_IDLE_S = 60.0
"""Longest interval of the same while it is idle: hundreds of idle workers cost next to nothing."""


class UseReports:
    """The reports of one worker; at: when the next one is due, by the monotonic clock.

    pids: the processes of this machine that work for it.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self._meter = UsageMeter(pids)
        self.at = self._last_at = 0.0
        self._after_s = REPORT_EVERY_S

    def has_calls(self) -> None:
        """Note that the worker is about to run calls: it reports more often then."""
        if self._after_s > REPORT_EVERY_S:
            self._after_s = REPORT_EVERY_S
            self.at = min(self.at, self._last_at + REPORT_EVERY_S)

    def next(self, now: float, *, busy: bool) -> Used | None:
        """Return what is to be reported now; None: nothing."""
        if now < self.at:
            return None
        self._last_at, self.at = now, now + self._after_s
        if not busy:
            self._after_s = min(2 * self._after_s, REPORT_IDLE_S)
        return Used(*self._meter.read())
