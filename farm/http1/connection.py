"""An HTTP/1.1 connection: its requests one after another, and time limits for each step."""

from __future__ import annotations

import asyncio
import logging
import math
import select
from typing import TYPE_CHECKING, Any

from farm.bodies.held import Share
from farm.http1.connections import (
    CLIENT_ENDS,
    CLOSES,
    HEARD_ALL,
    LINGERING,
    LINGERS,
    OPEN,
    SERVER_ENDS,
    TAKE_NO_MORE,
    Stage,
)
from farm.http1.exchange import Beginning, Exchange
from farm.http1.reader import HttpFault, Reader, RequestHead
from farm.http1.request import Destination
from farm.http1.turns import PORTION_BYTES, Portions
from farm.machine.peer import Peer

if TYPE_CHECKING:
    from farm.http1.server import HttpServerState

logger = logging.getLogger(__name__)

AHEAD_BYTES = 4 * 1024
"""Pause reading when more unprocessed bytes than this are buffered: of thousands of clients, the
kernel's buffers keep the rest."""

TINY_BYTES, MOST_TINY_PARTS = 64, 16
REST_S = 0.05
"""A client that sends a request in more than `MOST_TINY_PARTS` parts, each below `TINY_BYTES`, is
from then on read only once every `REST_S` seconds: hundreds of them would take all of the loop."""

STEPS = 64
"""Steps of a connection in one turn of the loop. A part of a body is one: a chunk may have a byte,
and costs some microseconds."""

REQUEST_STEPS = 32
"""Steps that a whole request counts as."""

STEPS_AT_ONCE = 40
"""Steps that a connection takes as soon as its bytes arrive: a request and a few parts of its body.
The others come in later turns, as hundreds of connections may receive bytes in one."""

PASSED_OVER_BYTES = 1 << 20
"""Bytes of an unwanted body that are read and discarded so that the next request can follow."""

LINGER_BYTES = 64 << 20
"""Bytes that a client may still send on a connection that closes. Closing at once would reset it,
and the client would lose the answer that explains why."""

AHEAD_OF_ANSWER = b"HTTP/1.1 "
"""The first bytes of every answer. Sent early to a client that has closed its sending half, they
show whether it still reads: a closed socket responds with a reset."""

LOOK_AGAIN_S = 0.02
"""Seconds until the first check for that reset; later checks run in each round of `Connections`."""


class HttpConnection(Portions):
    """One client's connection. It is in `served.connections` while it is open."""

    def __init__(self, served: HttpServerState) -> None:
        super().__init__(served.buffer)
        self.served = served
        self.peer = Peer("")
        self.client = ""  # the peer in words
        self.let_in = False
        self.phase = OPEN
        self.paused = False  # reading is paused
        # Start time of the stage in which it was last seen.
        self.since = asyncio.get_running_loop().time()
        self.transport: Any  # uvloop's and asyncio's transports have no useful common type
        self._reader = Reader()
        self._exchange: Exchange | None = None
        self._alike: Beginning | None = None  # of a request with the last one's head
        self._advancing = False
        self._queued = False  # waits for another turn of the loop
        self._tiny_parts = 0  # in the current request
        self._rests = False
        self._sent_ahead = False
        self._wants_input = True  # nothing can be done until the client sends more
        self._lingered = 0
        self._unsent: _Unsent | None = None  # while the client does not read
        self._seen: tuple[object, ...] = ()

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self.transport = transport
        access = self.served.front.access
        self.peer = access.peer(transport)
        if self.peer.closed:  # thousands may have connected and left while others were accepted
            self.abort()
            return
        self.client = str(self.peer)
        self.let_in = access.trusts(self.peer)
        self.served.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed: cancel its running request."""
        self.phase = CLOSES[self.phase]
        self.served.connections.discard(self)
        if self._exchange is not None:
            self._exchange.client_left()
        self._exchange = self._alike = None
        self._reader.close()
        self.resume_writing()

    def received(self, data: bytes) -> None:
        """Handle bytes from the client."""
        self.served.traffic.receives(size := len(data))
        if size >= PORTION_BYTES and not self._rests:
            self._rests = True
            self.served.turns.later(self._rested)
        if self.phase >= LINGERING:
            self._lingered += size
            if self._lingered > LINGER_BYTES:
                self.transport.abort()
            else:
                self._pause(self._rests)
            return
        alike = self._alike
        if alike is not None and self._exchange is None and not (self._rests or self._queued):
            body = self._reader.alike(data) if self.phase == OPEN and self._unsent is None else None
            if body is not None:
                self._tiny_parts = 0
                self._wants_input = False
                self._exchange = Exchange(*alike, body)
                self._exchange.complete()
                return
        self._reader.feed(data)
        if size < TINY_BYTES:
            self._tiny_parts += 1
            if self._tiny_parts > MOST_TINY_PARTS and not self._rests:
                self._rests = True
                asyncio.get_running_loop().call_later(REST_S, self._rested)
        if self._queued:
            self._settle()
        else:
            self.advance()

    @property
    def takes_long(self) -> bool:
        """Whether the next bytes belong to a long body, which is not kept in this buffer."""
        exchange = self._exchange
        if exchange is None or self.phase >= LINGERING:
            return self.phase >= LINGERING
        return self._reader.run > PORTION_BYTES and not exchange.waits_for_room

    def _rested(self) -> None:
        self._rests = False
        if self.phase >= LINGERING:
            self._pause(False)
        else:
            self._settle()

    def eof_received(self) -> bool:
        """The client sends no more. True keeps the connection open because answers are still due.

        Only sending shows whether the client still reads. In the middle of an answer nothing can be
        sent to find out, so the client counts as gone.
        """
        if self.phase >= LINGERING:
            return False
        exchange = self._exchange
        self.phase = CLIENT_ENDS[self.phase]
        if self._wants_input or (exchange is not None and exchange.status):
            return False
        if exchange is not None:
            self._sent_ahead = True
            self.transport.write(AHEAD_OF_ANSWER)
        asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._look_for_reset)
        return True

    def pause_writing(self) -> None:
        """The client reads more slowly than farm writes: take no more of its requests."""
        if self._unsent is None:
            size = self.transport.get_write_buffer_size()
            self._unsent = _Unsent(self.served.held.hold(size))

    def resume_writing(self) -> None:
        """The client has caught up, or has disconnected."""
        if self._unsent is not None:
            self._unsent.is_read()
            self._unsent = None
        if self.phase < LINGERING:
            self.advance()

    async def drained(self) -> None:
        """Wait until the client has read what was sent, or has disconnected."""
        if self._unsent is not None:
            await self._unsent.read.wait()

    # Requests

    def advance_later(self) -> None:
        """Continue in another turn of the loop."""
        if not self._queued:
            self._queued = True
            self.served.turns.later(self._go_on)

    def _go_on(self) -> None:
        self._queued = False
        self.advance(STEPS)

    def advance(self, steps: int = STEPS_AT_ONCE) -> None:
        """Read the requests whose turn has come, in about `steps` steps at most."""
        if self._advancing or self.phase >= LINGERING:
            return
        self._advancing = True
        try:
            self._wants_input = self._advance(steps)
        except HttpFault as fault:
            self._fail(fault)
        finally:
            self._advancing = False
        self._settle()

    def _settle(self) -> None:
        """After some steps: close the connection, or pause or resume reading."""
        phase = self.phase
        if phase != OPEN:
            if phase >= LINGERING:
                return
            left = phase in HEARD_ALL and self._wants_input
            if left or (phase in TAKE_NO_MORE and self._exchange is None):
                self._close()
                return
        paused = self._rests or not (self._wants_input or self._reader.waiting <= AHEAD_BYTES)
        if paused != self.paused:
            self._pause(paused)

    def _pause(self, paused: bool) -> None:
        transport = self.transport
        if paused == self.paused or self.phase in HEARD_ALL or transport.is_closing():
            return
        self.paused = paused
        if paused:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def _advance(self, steps: int) -> bool:
        """Take steps; return whether the next one needs more bytes. Raises Fault."""
        reader = self._reader
        while self.phase < LINGERING:  # any answer may have changed it
            exchange = self._exchange
            if exchange is None:
                if self._unsent is not None or self.phase in TAKE_NO_MORE:
                    return not reader.waiting
                if steps <= 0 and reader.waiting:
                    self.advance_later()
                    return False
                head = reader.head()
                if head is None:
                    return True
                steps -= REQUEST_STEPS
                self._open(head)
            elif not reader.whole:
                if exchange.waits_for_room:
                    return False
                if steps <= 0:
                    self.advance_later()
                    return False
                steps -= 1
                if not self._read_part(exchange):
                    return True
            elif exchange.answered:
                self._exchange = None
                self._seen = ()
            else:
                return False
        return False

    def _read_part(self, exchange: Exchange) -> bool:
        """Read the next part of the body. False: that needs more bytes."""
        part, whole = self._reader.body(), self._reader.whole
        if part is not None:
            exchange.add(part)
            if exchange.passed_over > PASSED_OVER_BYTES and self.phase < LINGERING:
                self._linger()
        if whole:
            exchange.complete()
        return whole or part is not None

    def _open(self, head: RequestHead) -> None:
        self._tiny_parts = 0
        front = self.served.front
        destination = Destination.of(head.method, head.target, front)
        self._exchange = exchange = Exchange(self, head, destination, front.max_body_bytes)
        if exchange.begin(front.access):
            self.let_in = True
        self._alike = exchange.beginning
        if self._reader.whole:
            exchange.complete()

    # Answers

    def write_start(self, data: bytes) -> None:
        """Send the start of an answer."""
        self.served.traffic.sends(len(data))
        if self._sent_ahead:
            self._sent_ahead = False
            data = data[len(AHEAD_OF_ANSWER) :]
        self.transport.write(data)

    def ends_after(self) -> bool:
        """Whether the connection closes after the open request's answer for reasons of its own."""
        left = 0 if self._reader.whole else self._reader.left
        return self.phase in TAKE_NO_MORE or (left is not None and left > PASSED_OVER_BYTES)

    def answered(self) -> None:
        """The answer to the current request has been sent."""
        exchange = self._exchange
        assert exchange is not None, "it has been answered"
        has_more = not self._reader.idle
        if exchange.keep_alive:
            if has_more or self._advancing or self.paused or self.phase != OPEN:
                self.advance()
            else:  # as it would, in the usual case
                self._exchange = None
                self._seen = ()  # a new request is progress
                self._wants_input = True
        elif not has_more:
            self._close()
        else:
            self._linger()

    def _fail(self, fault: HttpFault) -> None:
        """Answer an unreadable request with an error, and close."""
        logger.debug("connection of %s: %s", self.peer, fault)
        if self._exchange is None:
            head = self._reader.beginning()
            destination = Destination.of(head.method, head.target, self.served.front)
            self._exchange = Exchange(self, head, destination, 0)
        if self._exchange.status:
            self.abort()
        else:
            self._exchange.refuse_for_good(fault)

    @property
    def unread(self) -> int:
        """Bytes that are buffered and not read yet."""
        return self._reader.waiting

    # Time

    @property
    def owes_nothing(self) -> bool:
        """Whether this connection may be closed to make room for others."""
        return self._exchange is None and self.phase < LINGERING

    def look(self, now: float) -> None:
        """Close the connection if its client is too slow or has silently disconnected."""
        stage, progress, allowed = self.standing()
        seen = (stage, progress)
        if seen != self._seen:
            self._seen = seen
            self.since = now
        elif now - self.since > allowed:
            self._too_late(stage)
        if self.phase in HEARD_ALL or self.paused:
            self._look_for_reset()

    def standing(self) -> tuple[Stage, int, float]:
        """Return the current stage, a measure of its progress, and its time limit in seconds."""
        timeouts, exchange = self.served.timeouts, self._exchange
        unsent = self.transport.get_write_buffer_size()
        if unsent:
            return Stage.STUCK, unsent // timeouts.progress, timeouts.stuck
        if self.phase >= LINGERING:
            return Stage.LINGER, 0, timeouts.linger
        if exchange is None:
            if self._reader.waiting:
                return Stage.HEAD, 0, timeouts.head
            return Stage.IDLE, 0, timeouts.idle
        if self._reader.whole or exchange.waits_for_room:
            return Stage.BUSY, 0, math.inf
        if exchange.has_share and self.served.held.contended:
            step = max(timeouts.progress, (exchange.head.length or 0) // 100)
            return Stage.BODY, exchange.size // step, timeouts.contended
        done = exchange.size + exchange.passed_over
        return Stage.BODY, done // timeouts.progress, timeouts.body

    def _too_late(self, stage: Stage) -> None:
        exchange = self._exchange
        if stage is Stage.IDLE:
            self._close()
        elif stage is Stage.HEAD:
            message = f"the headers did not come within {self.served.timeouts.head:g} seconds"
            self._fail(HttpFault(408, "RequestTimeout", message))
        elif stage is Stage.BODY and exchange is not None and not exchange.answered:
            self._fail(HttpFault(408, "RequestTimeout", "the body comes too slowly"))
        else:
            self.abort()

    def _look_for_reset(self) -> None:
        """Abort if the client is gone. While reading is paused, only this check detects it."""
        if self.phase >= LINGERING:  # it may be closed, and the transport without a socket
            return
        descriptor = self.transport.get_extra_info("socket").fileno()
        if descriptor < 0:
            return
        poll = select.poll()
        poll.register(descriptor, 0)
        # A paused connection does not read the client's end of file, but the kernel knows of it.
        if poll.poll(0) or (self.paused and self.served.front.access.peer(self.transport).closed):
            self.abort()

    # Shutdown

    def end(self) -> None:
        """Take no more requests; close once the current one is answered."""
        if self.phase < LINGERING:
            self.phase = SERVER_ENDS[self.phase]
            if self._exchange is None:
                self._close()

    def give_up(self) -> None:
        """Answer the open request with an error now, because the server stops."""
        if self._exchange is not None:
            self._exchange.give_up()

    def turn_away(self, message: str) -> None:
        """Answer with 503 before any request is read, and close."""
        self._fail(HttpFault(503, "Overloaded", message))

    def abort(self) -> None:
        """Close at once, without sending what is buffered."""
        self.phase = CLOSES[self.phase]
        self.transport.abort()

    def _close(self) -> None:
        """Close after sending what is buffered."""
        self.phase = CLOSES[self.phase]
        self.transport.close()

    def _linger(self) -> None:
        """Stop sending and let the client finish: closing while it sends would lose the answer."""
        if self.phase in HEARD_ALL:
            self._close()
        if self.phase >= LINGERING:
            return
        self.phase = LINGERS[self.phase]
        self.transport.write_eof()
        self._pause(self._rests)


class _Unsent:
    """The bytes of an answer while its client does not read; read: set once it has, or has left."""

    def __init__(self, share: Share) -> None:
        self.read = asyncio.Event()
        self._share = share

    def is_read(self) -> None:
        """Free the memory, and let those continue that wait."""
        self._share.release()
        self.read.set()
