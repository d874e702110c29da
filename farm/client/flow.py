"""Submits many calls as fast as the farm accepts them, and yields outcomes as they arrive."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Generic, TypeVar

from farm.call import Call, Hints, Result
from farm.client.line import CallFuture, Line, Outcome, submit_all
from farm.errors import FarmError, Overloaded

IN_FLIGHT = 4096
"""Default for the most calls of a flow that are sent but whose outcomes are not yet taken.

It is enough for a thousand workers, and small compared with the queue of a farm."""

SEND_AT_ONCE = 256
"""Most calls per message; more do not make a call cheaper."""

GATHER_S = 0.002
"""Longest time to collect calls for a message; calls that arrive more slowly are sent at once."""

START_S = 0.02
"""Longest time for which the flow sends calls before the first outcome is requested."""

PAUSE_S = 0.2
"""Pause of a flow after the farm's queue was full."""


class _Inbox:
    """Passes outcomes from the line's thread to the flow's thread."""

    def __init__(self) -> None:
        self.arrived: deque[tuple[int, Outcome]] = deque()
        self.something = threading.Event()

    def put(self, key: int, outcome: Outcome) -> None:
        self.arrived.append((key, outcome))

    def flush(self) -> None:
        if not self.something.is_set():
            self.something.set()

    def wait(self, timeout_s: float | None) -> None:
        """Wait until an outcome has arrived, or for `timeout_s` seconds."""
        self.something.clear()
        if not self.arrived:
            self.something.wait(timeout_s)


class _Refused:
    """Calls that the farm's full queue refused; they are sent again at the time `until`."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, Call]] = []
        self.until = 0.0

    def add(self, index: int, call: Call) -> None:
        self.calls.append((index, call))
        self.until = time.monotonic() + PAUSE_S


class Flow(Iterator[tuple[int, Outcome]]):
    """Iterates over the outcomes of many calls, as (index, result or error).

    calls: consumed as there is room, on the thread that iterates; an error in place of a call is
    its outcome. ordered: yield outcomes by index, otherwise as they arrive. in_flight: most calls
    that are sent but whose outcomes are not yet taken. An exception, `close` and garbage collection
    of the flow cancel the open calls. If the farm's queue is full, the flow waits.
    """

    def __init__(
        self,
        line: Line,
        calls: Iterable[Call | FarmError],
        hints: Hints,
        *,
        ordered: bool,
        in_flight: int = IN_FLIGHT,
    ) -> None:
        self._line = line
        self._calls: Iterator[tuple[int, Call | FarmError]] | None = enumerate(calls)
        self._hints = hints if hints.chain is not None else replace(hints, chain="")  # bulk
        self._in_flight = in_flight
        self._at_once = 1
        self._worth_sending = min(SEND_AT_ONCE, max(1, in_flight // 4))
        self._open = 0  # calls sent, outcome not yet taken
        self._under_way: dict[int, tuple[int, Call]] = {}  # by index: the line's id, the call
        self._refused = _Refused()
        self._held: dict[int, Outcome] = {}  # arrived out of order
        self._turn = 0 if ordered else None  # the index whose outcome comes next
        self._inbox = _Inbox()
        limit = time.monotonic() + START_S
        while self._room() and time.monotonic() < limit:
            self._send_some()

    def __next__(self) -> tuple[int, Outcome]:
        try:
            if self._room() >= self._worth_sending:
                self._send_some()
            while (taken := self._take()) is None:
                if self._room():
                    self._send_some()
                elif self._open:
                    self._wait()
                else:
                    raise StopIteration
            return taken
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Cancel the open calls; there are no more outcomes."""
        self._calls = None
        under_way, self._under_way = self._under_way, {}
        self._refused, self._held, self._inbox = _Refused(), {}, _Inbox()
        self._open = 0
        if under_way:
            self._line.cancel([call_id for call_id, _ in under_way.values()])

    def __del__(self) -> None:
        if hasattr(self, "_inbox"):
            self.close()

    def _room(self) -> int:
        """Return how many calls may be sent now."""
        if self._refused.calls:
            return len(self._refused.calls) if time.monotonic() >= self._refused.until else 0
        return 0 if self._calls is None else max(0, self._in_flight - self._open)

    def _send_some(self) -> None:
        """Send one message with the calls that can be collected within GATHER_S."""
        if self._refused.calls:
            chunk, self._refused = self._refused.calls, _Refused()
        else:
            chunk = self._gather(min(self._room(), self._at_once))
        if chunk:
            ids = self._line.send(chunk, self._hints, self._inbox)
            for (index, call), call_id in zip(chunk, ids, strict=True):
                self._under_way[index] = call_id, call

    def _gather(self, most: int) -> list[tuple[int, Call]]:
        chunk: list[tuple[int, Call]] = []
        assert self._calls is not None, "only called with room"
        limit = time.monotonic() + GATHER_S
        for index, call in islice(self._calls, most):
            self._open += 1
            if isinstance(call, FarmError):
                self._inbox.put(index, call)
            else:
                chunk.append((index, call))
            if time.monotonic() > limit:
                self._at_once = 1
                return chunk
            most -= 1
        if most:
            self._calls = None
        self._at_once = min(2 * self._at_once, SEND_AT_ONCE)
        return chunk

    def _take(self) -> tuple[int, Outcome] | None:
        """Return the next outcome if it has arrived."""
        turn = self._turn
        if turn is not None and turn in self._held:
            return self._given(turn, self._held.pop(turn))
        arrived = self._inbox.arrived
        while arrived:
            index, outcome = arrived.popleft()
            sent = self._under_way.pop(index, None)
            if sent is not None and isinstance(outcome, Overloaded):
                self._refused.add(index, sent[1])
            elif turn is not None and index != turn:
                self._held[index] = outcome
            else:
                return self._given(index, outcome)
        return None

    def _given(self, index: int, outcome: Outcome) -> tuple[int, Outcome]:
        self._open -= 1
        if self._turn is not None:
            self._turn += 1
        return index, outcome

    def _wait(self) -> None:
        pause_s = self._refused.until - time.monotonic() if self._refused.calls else None
        self._inbox.wait(None if pause_s is None else max(0.0, pause_s))


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
