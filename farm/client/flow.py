"""Submits many calls as fast as the farm accepts them, and yields outcomes as they arrive."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import replace
from itertools import islice

from farm.call import Call, Hints
from farm.client.line import Line, Outcome
from farm.errors import FarmError, Overloaded

IN_FLIGHT = 4096
"""Default for the most calls of a flow that are sent but whose outcomes are not yet taken.

It is enough for a thousand workers, and small compared with the queue of a farm."""

SEND_AT_ONCE = 256
"""Most calls per message; more do not make a call cheaper."""

GATHER_S = 0.002
"""Longest time to collect calls for a message; calls that arrive more slowly are sent at once."""

START_S = 0.02
"""Longest time for which an eager flow sends calls before the first outcome is requested."""

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


class _LoopInbox(_Inbox):
    """The same for a flow on an event loop."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._arrival = asyncio.Event()

    def flush(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._arrival.set)

    async def come(self, timeout_s: float | None) -> None:
        """Wait until an outcome has arrived, or for `timeout_s` seconds."""
        self._arrival.clear()
        if not self.arrived:
            # Not wait_for, which may lose a cancellation in Python 3.11.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._arrival.wait()


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
    of the flow cancel the open calls. If the farm's queue is full, the flow waits. eager: send
    calls, for START_S at most, before the first outcome is requested.
    """

    def __init__(
        self,
        line: Line,
        calls: Iterable[Call | FarmError],
        hints: Hints,
        *,
        ordered: bool,
        in_flight: int = IN_FLIGHT,
        eager: bool = True,
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
        while eager and self._room() and time.monotonic() < limit:
            self._send_some()

    def __next__(self) -> tuple[int, Outcome]:
        try:
            if self._room() >= self._worth_sending:
                self._send_some()
            while (taken := self._take()) is None:
                if self._room():
                    self._send_some()
                elif self._open:
                    self._inbox.wait(self._pause_s())
                else:
                    raise StopIteration
            return taken
        except BaseException:
            self.close()
            raise

    async def on_loop(self) -> AsyncGenerator[tuple[int, Outcome]]:
        """Yield the same on an event loop, whose other tasks have their turn after each message.

        Cancelling the task that iterates, and closing the iterator, cancel the open calls.
        """
        inbox = self._inbox = _LoopInbox()
        try:
            while True:
                if self._room() >= self._worth_sending:
                    await self._send_in_turn()
                while (taken := self._take()) is None:
                    if self._room():
                        await self._send_in_turn()
                    elif self._open:
                        await inbox.come(self._pause_s())
                    else:
                        return
                yield taken
        finally:
            self.close()

    async def _send_in_turn(self) -> None:
        self._send_some()
        await asyncio.sleep(0)

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

    def _pause_s(self) -> float | None:
        """Return how long to wait for outcomes at most: until refused calls may be sent again."""
        if not self._refused.calls:
            return None
        return max(0.0, self._refused.until - time.monotonic())
