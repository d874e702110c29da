"""The answers to one call as they come, for doors that send each of them on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from farm.call import Call, Hints, Operation, Result
from farm.errors import FarmError, Overloaded
from farm.scheduler.state import TaskId

MOST_WAITING_BYTES = 256 << 20
"""Answers that wait for a client to read those before: beyond, it hears no more of them."""

ANSWER_BYTES = 1000
"""What an answer takes beside its arrays' entries."""


class StartsCalls(Protocol):
    """What is needed of whatever runs calls."""

    def start_call(
        self, call: Call, hints: Hints, on_done: Callable[[Result | FarmError], None]
    ) -> TaskId:
        """Take a call in; `on_done` gets its outcomes. Raises FarmError instead."""

    def cancel(self, task_id: TaskId) -> None:
        """Take a call back."""


class Answers:
    """Iterates over the answers to a call: those of a stream, or the one of any other.

    Iterating raises the FarmError that ends them. end: the last word, which of a stream holds no
    answer but its time; None before. To be closed, which takes back what has not ended.
    """

    def __init__(self, backend: StartsCalls, call: Call, hints: Hints) -> None:
        """Raises FarmError when the call cannot be taken."""
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

    def __aiter__(self) -> Answers:
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
        """Nobody waits any more."""
        if not self._over:
            self._over = True
            self._backend.cancel(self._task_id)


def bytes_of(outcome: Result | FarmError) -> int:
    """What an outcome takes in memory, about."""
    if isinstance(outcome, FarmError):
        return 0
    return ANSWER_BYTES + sum(
        sum(map(len, array.flat)) if array.dtype.hasobject else array.nbytes
        for array in outcome.outputs
    )
