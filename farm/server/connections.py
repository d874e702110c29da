"""The connections of a server: only so many at once, and none for longer than its client may take.

One timer looks after all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Protocol

LOOK_EVERY_S = 1.0
"""How often connections are looked after; times are kept as exactly as that."""

LOOKS_A_TURN = 32
"""Connections that are looked after in one turn of the event loop. There may be thousands, and all
of them may have to be cut off, which takes 0.1 ms each."""

CLOSED_AT_ONCE = 16
"""The part of the spare connections that is closed when there are too many: finding them takes a
look at each, which nobody should pay for every single connection."""


class Watched(Protocol):
    """A connection. since: the time from which it has been in its present state.

    let_in: its client needs no token, or has shown it.
    """

    since: float
    let_in: bool

    @property
    def owes_nothing(self) -> bool:
        """Whether it may be closed for others to have its place."""

    def look(self, now: float) -> None:
        """Part with a client that takes too long."""

    def turn_away(self, message: str) -> None:
        """Answer that there is no place."""

    def end(self) -> None:
        """Take no more requests; leave when the open one is answered."""

    def give_up(self) -> None:
        """Answer what is open with an error now."""

    def abort(self) -> None:
        """Cut off."""


class Connections:
    """The connections that are there. most: how many there may be.

    Where a new one is too many, those whose clients have not been let in are closed, whatever they
    do, and otherwise those that are idle: of either kind the oldest. Where there are none, the new
    one is turned away. So whoever has no token does not keep out those who have it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int) -> None:
        self._loop = loop
        self._most = most
        self._all: dict[Watched, None] = {}
        self._all_busy = False  # as of the last look
        self._to_look_at: list[Watched] = []
        self._empty = asyncio.Event()
        self._empty.set()
        self._timer = loop.call_later(LOOK_EVERY_S, self._look)

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Watched]:
        return iter(self._all)

    def add(self, connection: Watched) -> None:
        """One more is there."""
        self._all[connection] = None
        self._empty.clear()
        if len(self._all) > self._most and not self._has_room(connection):
            connection.turn_away(f"all of the {self._most} connections that may be open are busy")

    def discard(self, connection: Watched) -> None:
        """It has gone."""
        self._all.pop(connection, None)
        if not self._all:
            self._empty.set()

    def _has_room(self, new: Watched) -> bool:
        if self._all_busy:
            return False
        others = [one for one in self._all if one is not new]
        spare = [one for one in others if not one.let_in]
        spare = spare or [one for one in others if one.owes_nothing]
        spare.sort(key=lambda one: one.since)
        for one in spare[: 1 + len(spare) // CLOSED_AT_ONCE]:
            one.abort()
        self._all_busy = not spare
        return bool(spare)

    def _look(self) -> None:
        self._timer = self._loop.call_later(LOOK_EVERY_S, self._look)
        self._all_busy = False
        if not self._to_look_at:
            self._to_look_at = list(self._all)
            self._look_at_some()

    def _look_at_some(self) -> None:
        now = self._loop.time()
        some = self._to_look_at[-LOOKS_A_TURN:]
        del self._to_look_at[-LOOKS_A_TURN:]
        for connection in some:
            if connection in self._all:
                connection.look(now)
        if self._to_look_at:
            self._loop.call_soon(self._look_at_some)

    # The end

    def end(self) -> None:
        """Take no more requests."""
        for connection in list(self._all):
            connection.end()

    def give_up(self) -> None:
        """Answer what is open with an error now."""
        for connection in list(self._all):
            connection.give_up()

    async def wait_gone(self, limit_s: float) -> None:
        """Until none is left, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._empty.wait()

    def close(self) -> None:
        """Cut off those that are left."""
        self._timer.cancel()
        self._to_look_at = []
        for connection in list(self._all):
            connection.abort()
