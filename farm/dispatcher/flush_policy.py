"""Decides when to flush batched work, counting event-loop iterations instead of time."""

from __future__ import annotations

from typing import Protocol

MOST_ITERATIONS = 8
"""Most event-loop iterations by which a flush is delayed while calls keep arriving."""


class CallCounter(Protocol):
    """Counts the calls that have arrived."""

    calls_taken: int


class FlushPolicy:
    """Delays a flush while calls keep arriving, for at most MOST_ITERATIONS.

    Work per message, as opposed to work per call, should be rare on a busy event loop and immediate
    on an idle one. The count of calls tells the two apart without a clock.
    """

    def __init__(self, counter: CallCounter) -> None:
        self._counter = counter
        self._seen = 0
        self._put_off = 0

    def is_due(self) -> bool:
        """Call once per iteration of the event loop. False means: try again in the next one."""
        calls = self._counter.calls_taken
        busy = calls != self._seen and self._put_off < MOST_ITERATIONS
        self._seen = calls
        self._put_off = self._put_off + 1 if busy else 0
        return not busy
