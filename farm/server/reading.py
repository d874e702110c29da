"""How doors have long requests read and long answers written by reader processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from farm.call import Result
from farm.server.body import HEAVY_BYTES
from farm.server.door import TakeBack
from farm.server.readers import Outcome, Reads

MANY_TEXTS = 4096
"""Texts in an answer from which it is long, however short each is."""


RAW_BYTES = 8 << 20
"""Numbers that are copied in some milliseconds."""


class Reading:
    """A request that is read elsewhere, and then what its door does with it.

    go: continues with what was read, and gives what takes that back; fail: answers with what was
    raised instead, by the codec or by `go`.
    """

    __slots__ = ("_fail", "_go", "_undo")

    def __init__(
        self, go: Callable[[Any], TakeBack | None], fail: Callable[[Exception], None]
    ) -> None:
        self._go = go
        self._fail = fail
        self._undo: TakeBack | None = None

    def begin(
        self, readers: Reads, function: Callable[..., Any], *arguments: Any, client: str
    ) -> TakeBack:
        """Have `function` run; gives what takes back whatever is under way."""
        self._undo = readers.perform(function, *arguments, client=client, done=self._done)
        return self._take_back

    def _done(self, outcome: Outcome) -> None:
        self._undo = None
        try:
            if isinstance(outcome, Exception):
                raise outcome
            self._undo = self._go(outcome)
        except Exception as error:
            self._fail(error)

    def _take_back(self) -> None:
        if self._undo is not None:
            self._undo()


async def carried_out(
    readers: Reads, function: Callable[..., Any], *arguments: Any, client: str
) -> Any:
    """What `function` gives elsewhere, for coroutines. Raises what it raises.

    Cancelling takes it back.
    """
    came: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def done(outcome: Outcome) -> None:
        if not came.done():
            came.set_result(outcome)

    take_back = readers.perform(function, *arguments, client=client, done=done)
    try:
        outcome = await came
    except asyncio.CancelledError:
        take_back()
        raise
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def is_long(result: Result) -> bool:
    """Whether to write this answer takes long, as text or in another form that looks at entries."""
    size = 0
    for array in result.outputs:
        size += array.nbytes
        if array.dtype.hasobject:
            if array.size > MANY_TEXTS:
                return True
            size += sum(map(len, array.flat))
    return size > HEAVY_BYTES


def is_long_raw(result: Result) -> bool:
    """The same for a form in which numbers are only copied."""
    if any(array.dtype.hasobject for array in result.outputs):
        return is_long(result)
    return sum(array.nbytes for array in result.outputs) > RAW_BYTES
