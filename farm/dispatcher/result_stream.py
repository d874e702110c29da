"""Streams the results of one call to endpoints that forward each result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from farm.call import Call, Hints, Operation, Result
from farm.errors import FarmError, Overloaded
from farm.scheduler.state import TaskId

MOST_WAITING_BYTES = 256 << 20
"""Most bytes of results that the client has not read; beyond, the stream ends with an error."""

ANSWER_BYTES = 1000
"""Assumed size of a result without its arrays."""


class StartsCalls(Protocol):
    """The part of a Backend that a stream needs."""

    def start_call(
        self, call: Call, hints: Hints, on_done: Callable[[Result | FarmError], None]
    ) -> TaskId:
        """Start a call; `on_done` receives its outcomes. Raises FarmError instead."""

    def cancel(self, task_id: TaskId) -> None:
        """Cancel a call."""


class ResultStream:
    """Iterates over the results of a call: many of a streaming call, one of any other.

    Iterating raises the FarmError that ends the stream. end: the last result, which for a streaming
    call has times but no outputs; None before the end. Always `close` a stream: this cancels a call
    that is still running.
    """

    def __init__(self, backend: StartsCalls, call: Call, hints: Hints) -> None:
        """Start the call. Raises FarmError if it cannot be accepted."""
        self.end: Result | None = None
        self._backend = backend
        self._streams = call.operation is Operation.STREAM
        self._came: asyncio.Queue[Result | FarmError] = asyncio.Queue()
        self._waiting_bytes = 0
        self._over = False
        self._task_id = backend.start_call(call, hints, self._take)

    def _take(self, outcome: Result | FarmError) -> None:
        self._waiting_bytes += bytes_of(outcome)
        if self._waiting_bytes > MOST_WAITING_BYTES and self._came.qsize():
            self._backend.cancel(self._task_id)
            outcome = Overloaded("the model answers faster than the client reads; ask for less")
        self._came.put_nowait(outcome)

    def __aiter__(self) -> ResultStream:
        return self

    async def __anext__(self) -> Result:
        if self._over:
            raise StopAsyncIteration
        outcome = await self._came.get()
        self._waiting_bytes -= bytes_of(outcome)
        self._over = isinstance(outcome, FarmError) or not outcome.more
        if isinstance(outcome, FarmError):
            raise outcome
        if self._over:
            self.end = outcome
            if self._streams:
                raise StopAsyncIteration
        return outcome

    def close(self) -> None:
        """Cancel the call if it has not ended."""
        if not self._over:
            self._over = True
            self._backend.cancel(self._task_id)


def bytes_of(outcome: Result | FarmError) -> int:
    """Return the approximate size of an outcome in memory."""
    if isinstance(outcome, FarmError):
        return 0
    return ANSWER_BYTES + sum(
        sum(map(len, array.flat)) if array.dtype.hasobject else array.nbytes
        for array in outcome.outputs
    )
