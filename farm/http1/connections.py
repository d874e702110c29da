"""The connections of a server: their limits, and the timer that closes slow ones.

One timer checks all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import Enum, IntEnum, unique
from typing import Protocol

from farm.transitions import TransitionTable


@dataclass(frozen=True, slots=True)
class HttpTimeouts:
    """Time limits for a client, in seconds.

    idle: until a request begins; longer than clients keep connections, so that the clients close
    them and none sends on a connection that farm is closing. head: from its first byte to its last;
    clients send it at once. body, stuck: for each `progress` bytes of a body that is received or an
    answer that is sent; networks in use are faster than 2 kB/s. contended: for each hundredth of a
    large body while other requests wait for its memory. linger: until a client has read the answer
    after which the connection closes.
    """

    idle: float = 75.0
    head: float = 10.0
    body: float = 30.0
    stuck: float = 30.0
    contended: float = 5.0
    linger: float = 5.0
    progress: int = 64 * 1024


@unique
class ConnectionPhase(IntEnum):
    """The phase of a connection.

    OPEN: it takes requests; LAST: none after the current one. HALF_CLOSED, LAST_HALF_CLOSED: the
    client has closed its sending half, so requests that have arrived are answered. LINGERING: all
    is sent, and what the client still sends is discarded; CLOSED: it takes and sends nothing more.
    """

    OPEN = 1
    LAST = 2
    HALF_CLOSED = 3
    LAST_HALF_CLOSED = 4
    LINGERING = 5
    CLOSED = 6


OPEN, LAST, HALF_CLOSED, LAST_HALF_CLOSED, LINGERING, CLOSED = ConnectionPhase

CONNECTIONS = TransitionTable(
    "HTTP connection",
    ((OPEN, LAST), "server ends", LAST),
    ((HALF_CLOSED, LAST_HALF_CLOSED), "server ends", LAST_HALF_CLOSED),
    ((OPEN,), "client ends", HALF_CLOSED),
    ((LAST,), "client ends", LAST_HALF_CLOSED),
    ((OPEN, LAST), "answered while client sends", LINGERING),
    (tuple(ConnectionPhase), "closes", CLOSED),
    begins={"connected": OPEN},
)
SERVER_ENDS = CONNECTIONS.event("server ends")
CLIENT_ENDS = CONNECTIONS.event("client ends")
LINGERS = CONNECTIONS.event("answered while client sends")
CLOSES = CONNECTIONS.event("closes")

TAKE_NO_MORE = (LAST, LAST_HALF_CLOSED)
"""The phases in which a connection closes after its current request."""

HEARD_ALL = (HALF_CLOSED, LAST_HALF_CLOSED)
"""The phases in which the client sends no more, but waits for answers."""


class Stage(Enum):
    """Stages of a connection, named by the event that ends each; BUSY alone has no limit."""

    IDLE = "a request"
    HEAD = "the rest of a head"
    BODY = "the rest of a body"
    BUSY = "an answer, or room for a body"
    STUCK = "the client to read its answer"
    LINGER = "the client to close"


LOOK_EVERY_S = 1.0
"""Interval between two checks, in seconds; time limits are only this precise."""

LOOKS_A_TURN = 32
"""Connections that are checked in one turn of the event loop. There may be thousands, and aborting
one takes 0.1 ms."""

LAST_WORDS_S = 1.0
"""Seconds for answers that are being sent, after everything else has ended."""

CLOSED_AT_ONCE = 16
"""When there are too many connections, one sixteenth of the closable ones is closed. To find
them, all connections are examined, which would be too costly for each new one."""


class Watched(Protocol):
    """A connection. since: the time at which it entered its present state.

    let_in: its client needs no token, or has sent it.
    """

    since: float
    let_in: bool

    @property
    def owes_nothing(self) -> bool:
        """Whether this connection may be closed to make room for others."""

    def look(self, now: float) -> None:
        """Close the connection if its client is too slow."""

    def turn_away(self, message: str) -> None:
        """Answer that there are too many connections."""

    def end(self) -> None:
        """Take no more requests; close once the current one is answered."""

    def give_up(self) -> None:
        """Answer the open request with an error now."""

    def abort(self) -> None:
        """Close at once."""


class Connections:
    """The open connections, at most `most`.

    When a new one exceeds the limit, the oldest connections whose clients have not been authorised
    are closed, whatever they do; if there are none, the oldest idle ones. If there are none of
    these either, the new one is turned away. So clients without a token cannot keep out those that
    have it.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, most: int, look_every_s: float = LOOK_EVERY_S
    ) -> None:
        self._loop = loop
        self._most = most
        self._look_every_s = look_every_s
        self._all: dict[Watched, None] = {}
        self._all_busy = False  # as of the last look
        self._to_look_at: list[Watched] = []
        self._gone: asyncio.Event | None = None  # set when the last one closes; while awaited
        self._timer = loop.call_later(look_every_s, self._look)

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Watched]:
        return iter(self._all)

    def add(self, connection: Watched) -> None:
        """Add a new connection."""
        self._all[connection] = None
        if len(self._all) > self._most and not self._has_room(connection):
            connection.turn_away(f"all of the {self._most} connections that may be open are busy")

    def discard(self, connection: Watched) -> None:
        """Remove a connection that has closed."""
        self._all.pop(connection, None)
        if self._gone is not None and not self._all:
            self._gone.set()

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
        self._timer = self._loop.call_later(self._look_every_s, self._look)
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

    # Shutdown

    async def stop(
        self, grace_s: float, cancel: Callable[[], Collection[asyncio.Task[None]]] = tuple
    ) -> None:
        """Take no more requests, let running ones end within `grace_s` seconds, fail the rest.

        cancel: cancels the tasks that answer requests, and returns those that still have to end.
        """
        for connection in list(self._all):
            connection.end()
        await self._wait_gone(grace_s)
        answering = cancel()
        for connection in list(self._all):
            connection.give_up()
        if answering:
            await asyncio.wait(answering, timeout=LAST_WORDS_S)
        await self._wait_gone(LAST_WORDS_S)
        self.close()

    async def _wait_gone(self, limit_s: float) -> None:
        """Wait until no connection is left, or `limit_s` seconds have passed."""
        if not self._all:
            return
        self._gone = asyncio.Event()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._gone.wait()

    def close(self) -> None:
        """Abort the remaining connections."""
        self._timer.cancel()
        self._to_look_at = []
        for connection in list(self._all):
            connection.abort()
