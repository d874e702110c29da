"""Awaits the outcomes of many calls on an event loop, with as many in flight as the farm takes."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Generic, TypeVar

from farm.call import Call, Hints, Result
from farm.client.flow import GATHER_S, PAUSE_S, SEND_AT_ONCE
from farm.errors import FarmError, Overloaded
from farm.transports.line import CallFuture, Line, submit_all

T = TypeVar("T")


class _Place(Generic[T]):
    """A call at its place among the others, or the error in place of a call."""

    __slots__ = ("call", "future", "sent")

    def __init__(self, call: Call | FarmError) -> None:
        self.call = call
        self.sent: CallFuture[T] | None = None
        self.future: asyncio.Future[T] | None = None

    def send(self, sent: CallFuture[T]) -> None:
        """Wait for this future of the call from now on."""
        self.sent = sent
        self.future = asyncio.wrap_future(sent)

    def cancel(self) -> None:
        """Cancel the call at once; cancelling the loop's future would take an iteration."""
        if self.sent is not None and self.future is not None:
            self.sent.cancel()
            if not (self.future.cancel() or self.future.cancelled()):
                self.future.exception()  # read it, or asyncio logs it as never retrieved

    def was_refused(self) -> bool:
        """Whether the farm's queue was full."""
        future = self.future
        if future is None or not future.done() or future.cancelled():
            return False
        return isinstance(future.exception(), Overloaded)

    async def outcome(self) -> T | FarmError:
        """Wait for the outcome."""
        if self.future is None:
            assert isinstance(self.call, FarmError), "it is sent otherwise"
            return self.call
        try:
            return await self.future
        except FarmError as error:
            return error


async def outcomes_in_turn(
    line: Line,
    calls: Iterator[Call | FarmError],
    hints: Hints,
    convert: Callable[[Result], T],
    *,
    in_flight: int,
) -> AsyncGenerator[T | FarmError]:
    """Yield the converted outcome of each call, or its error, in the order of the calls.

    calls: consumed as there is room. in_flight: most calls that are sent but whose outcomes are not
    yet taken. Cancelling the task that iterates, and closing the iterator, cancel the open calls.
    If the farm's queue is full, the calls wait.
    """
    hints = hints if hints.chain is not None else replace(hints, chain="")  # bulk
    worth_sending = min(SEND_AT_ONCE, max(1, in_flight // 4))
    window: deque[_Place[T]] = deque()
    at_once = 1
    more = True

    def send(places: Sequence[_Place[T]]) -> None:
        sent = [(place, place.call) for place in places if isinstance(place.call, Call)]
        futures = submit_all(line, [call for _, call in sent], hints, convert)
        for (place, _), future in zip(sent, futures, strict=True):
            place.send(future)

    try:
        while True:
            room = in_flight - len(window)
            idle = not window or not (window[0].future is None or window[0].future.done())
            if more and (room >= worth_sending or (room and idle)):
                limit = time.monotonic() + GATHER_S
                chunk: list[_Place[T]] = []
                wanted = min(room, at_once)
                for call in islice(calls, wanted):
                    chunk.append(_Place(call))
                    if time.monotonic() > limit:
                        break
                else:
                    more = len(chunk) == wanted
                at_once = min(2 * at_once, SEND_AT_ONCE)
                window.extend(chunk)
                send(chunk)
                await asyncio.sleep(0)  # others on the loop have their turn
                continue
            if not window:
                return
            outcome = await window[0].outcome()
            if isinstance(outcome, Overloaded) and window[0].was_refused():
                await asyncio.sleep(PAUSE_S)
                send([place for place in window if place.was_refused()])
                continue
            window.popleft()
            yield outcome
    finally:
        for place in window:
            place.cancel()
