"""Decoding of long requests and encoding of long answers in reader processes, for endpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from farm.bodies.body import HEAVY_BYTES
from farm.bodies.readers import Outcome, Reads
from farm.call import CancelCall, Hints, Result

MANY_TEXTS = 4096
"""Number of texts in an answer from which it counts as long, even if each is short."""

RAW_BYTES = 8 << 20
"""Bytes of numbers that take a few milliseconds to copy."""


class Reading:
    """A request that is decoded elsewhere, and the endpoint's continuation.

    go: continues with the decoded request, and returns a function that cancels it; fail: does so
    with the exception raised instead, by the codec or by `go`.
    """

    __slots__ = ("_fail", "_go", "_undo")

    def __init__(
        self, go: Callable[[Any], CancelCall | None], fail: Callable[[Exception], CancelCall | None]
    ) -> None:
        self._go = go
        self._fail = fail
        self._undo: CancelCall | None = None

    def begin(
        self, readers: Reads, function: Callable[..., Any], *arguments: Any, hints: Hints
    ) -> CancelCall:
        """Run `function`; return a function that cancels whatever is under way."""
        self._undo = readers.execute(function, *arguments, hints=hints, done=self._done)
        return self._cancel

    def _done(self, outcome: Outcome) -> None:
        self._undo = None
        try:
            if isinstance(outcome, Exception):
                raise outcome
            self._undo = self._go(outcome)
        except Exception as error:
            self._undo = self._fail(error)

    def _cancel(self) -> None:
        if self._undo is not None:
            self._undo()


async def carried_out(
    readers: Reads, function: Callable[..., Any], *arguments: Any, hints: Hints
) -> Any:
    """Return the result of `function`, run in a reader, for coroutines. Raises its exceptions.

    Cancelling the coroutine cancels the job.
    """
    came: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def done(outcome: Outcome) -> None:
        if not came.done():
            came.set_result(outcome)

    cancel = readers.execute(function, *arguments, hints=hints, done=done)
    try:
        outcome = await came
    except asyncio.CancelledError:
        cancel()
        raise
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def is_long(result: Result) -> bool:
    """Whether encoding this answer takes long, as text or another form that visits each entry."""
    size = 0
    for array in result.outputs:
        size += array.nbytes
        if array.dtype.hasobject:
            if array.size > MANY_TEXTS:
                return True
            size += sum(map(len, array.flat))
    return size > HEAVY_BYTES


def is_long_raw(result: Result) -> bool:
    """Whether encoding takes long in a form that only copies numbers."""
    size = 0
    for array in result.outputs:
        if array.dtype.hasobject:
            return is_long(result)
        size += array.nbytes
    return size > RAW_BYTES
