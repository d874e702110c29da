"""A connection of HTTP/1.1: its requests one after another, and how long each step may take."""

from __future__ import annotations

import asyncio
import logging
import math
import select
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import httptools

from farm.machine.peer import Peer
from farm.protocols.http1 import Fault, Head, Reader
from farm.protocols.umbridge import error_body
from farm.server.asgi import Application
from farm.server.door import JSON, Door
from farm.server.exchange import STATUS_LINES, Exchange
from farm.server.held import HeldBytes, Share
from farm.server.http_patience import Patience, Stage
from farm.server.portions import PORTION_BYTES, Buffer, Portions
from farm.server.turns import Turns

if TYPE_CHECKING:
    from farm.server.app import FrontDoor
    from farm.server.connections import Connections

logger = logging.getLogger(__name__)

AHEAD_BYTES = 64 * 1024
"""Unread bytes from which nothing more is taken from the network: a client that sends on before it
is answered fills its own buffers. As long as a head may be, or else none so long could be read."""

TINY_BYTES, MOST_TINY_PARTS = 64, 16
REST_S = 0.05
"""A client that sends a request in more parts than that, each shorter, is read from only so often
from then on. Hundreds of clients that send byte after byte would take all of the loop's time."""

STEPS = 64
"""Steps that a connection takes in one turn of the loop. A part of a body is one; a chunk may be
as short as a byte, and takes some microseconds."""

REQUEST_STEPS = 32
"""Steps that a whole request counts for."""

PASSED_OVER_BYTES = 1 << 20
"""A body that is not wanted is read and thrown away up to this, for the sake of the next request;
above, the connection ends."""

LINGER_BYTES = 64 << 20
"""What a client may go on sending to a connection that ends: to close it at once would reset it,
and the client would lose the answer that says why."""

AHEAD_OF_ANSWER = b"HTTP/1.1 "
"""How every answer begins. Sent early to a client that has closed its sending half, it shows
whether the client still listens: a closed socket answers with a reset."""

LOOK_AGAIN_S = 0.02
"""When that reset is looked for the first time; later once in every round of `Connections`."""


@dataclass(slots=True)
class Served:
    """What all connections of a server share. bodies: turns at which long bodies are read."""

    front: FrontDoor
    held: HeldBytes
    turns: Turns
    bodies: Turns
    connections: Connections
    patience: Patience
    buffer: Buffer = field(default_factory=Buffer)


class Connection(Portions):
    """One client. It is in `served.connections` while it is there."""

    def __init__(self, served: Served) -> None:
        super().__init__(served.buffer)
        self.served = served
        self.peer = Peer("")
        self.let_in = False
        self.paused = False  # reading
        self.since = asyncio.get_running_loop().time()  # of the stage in which it was last seen
        self.transport: Any  # uvloop's and asyncio's share no useful type
        self._reader = Reader()
        self._exchange: Exchange | None = None
        self._requests = 0
        self._advancing = False
        self._queued = False  # for another turn of the loop
        self._tiny_parts = 0  # of the present request
        self._rests = False
        self._heard_all = False  # the client has closed its sending half
        self._sent_ahead = False
        self._wants_input = True  # nothing can be done until the client sends more
        self._ends = False  # no further requests are taken
        self._over = False  # nothing is read or written any more
        self._lingered = 0
        self._unsent: Share | None = None  # of an answer, while the client does not read
        self._drained: asyncio.Future[None] | None = None
        self._seen: tuple[object, ...] = ()

    # For asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self.transport = transport
        access = self.served.front.access
        self.peer = access.peer(transport)
        self.let_in = access.trusts(self.peer)
        self.served.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone: nobody waits for what runs."""
        self._over = True
        self.served.connections.discard(self)
        if self._exchange is not None:
            self._exchange.client_left()
            self._exchange = None
        self._reader.close()
        self.resume_writing()

    def received(self, data: bytes) -> None:
        """Bytes of the client's."""
        if len(data) >= PORTION_BYTES and not self._rests:
            self._rests = True
            self.served.turns.later(self._rested)
        if self._over:
            self._lingered += len(data)
            if self._lingered > LINGER_BYTES:
                self.transport.abort()
            else:
                self._pause(self._rests)
            return
        self._reader.feed(data)
        if len(data) < TINY_BYTES:
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
        """Whether what comes is the rest of a body, which does not stay here."""
        exchange = self._exchange
        if exchange is None:
            return self._over
        return self._reader.run > PORTION_BYTES and not exchange.waits_for_room

    def _rested(self) -> None:
        self._rests = False
        if self._over:
            self._pause(False)
        else:
            self._settle()

    def eof_received(self) -> bool:
        """The client sends no more; True: there are answers for it still.

        Whether it still listens shows when something is sent to it. In the middle of an answer
        nothing can be sent for that, so the client counts as gone.
        """
        self._heard_all = True
        exchange = self._exchange
        if self._over or self._wants_input or (exchange is not None and exchange.begun):
            return False
        if exchange is not None:
            self._sent_ahead = True
            self.transport.write(AHEAD_OF_ANSWER)
        asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._look_for_reset)
        return True

    def pause_writing(self) -> None:
        """The client takes less than is sent: no more of its requests are taken."""
        if self._unsent is None:
            size = self.transport.get_write_buffer_size()
            self._unsent = self.served.held.hold(size)

    def resume_writing(self) -> None:
        """It has caught up, or is gone."""
        if self._unsent is not None:
            self._unsent.release()
            self._unsent = None
        if self._drained is not None:
            self._drained.set_result(None)
            self._drained = None
        if not self._over:
            self.advance()

    async def drained(self) -> None:
        """Until the client has caught up with what was sent, or is gone."""
        if self._unsent is not None:
            if self._drained is None:
                self._drained = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drained)

    # Requests

    def advance_later(self) -> None:
        """Go on in another turn of the loop."""
        if not self._queued:
            self._queued = True
            self.served.turns.later(self._go_on)

    def _go_on(self) -> None:
        self._queued = False
        self.advance()

    def advance(self) -> None:
        """Do what can be done now: read requests, as far as their turn has come."""
        if self._advancing or self._over:
            return
        self._advancing = True
        try:
            self._wants_input = self._advance()
        except Fault as fault:
            self._fail(fault)
        finally:
            self._advancing = False
        self._settle()

    def _settle(self) -> None:
        """Leave, or read on or not, as it stands after some steps."""
        if self._over:
            return
        if (self._heard_all and self._wants_input) or (self._ends and self._exchange is None):
            self._close()
            return
        self._pause(self._rests or self._reader.waiting > AHEAD_BYTES)

    def _pause(self, paused: bool) -> None:
        if paused != self.paused and not self._heard_all and not self.transport.is_closing():
            self.paused = paused
            if paused:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    def _advance(self) -> bool:
        """Take steps; whether more bytes are needed for the next one. Raises Fault."""
        reader, steps = self._reader, STEPS
        while not self._is_over():
            exchange = self._exchange
            if exchange is None:
                if not reader.waiting:
                    return True
                if self._unsent is not None or self._ends:
                    return False
                if steps <= 0:
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
                self._requests += 1
            else:
                return False
        return False

    def _is_over(self) -> bool:
        return self._over  # which any answer may have changed

    def _read_part(self, exchange: Exchange) -> bool:
        """Read the next part of the body; False: more bytes are needed for that."""
        part, whole = self._reader.body(), self._reader.whole
        if part is not None:
            exchange.add(part)
            if exchange.passed_over > PASSED_OVER_BYTES and not self._over:
                self._linger()
        if whole:
            exchange.complete()
        return whole or part is not None

    def _open(self, head: Head) -> None:
        self._tiny_parts = 0
        path, door = self._route(head.target)
        front = self.served.front
        self._exchange = exchange = Exchange(self, door, head, path, front.max_body_bytes)
        exchange.begin(front.access)
        if self._reader.whole:
            exchange.complete()

    def _route(self, target: bytes) -> tuple[str, Door | Application]:
        """The path as its door knows it, and the door or the application. Raises Fault."""
        front = self.served.front
        path = target.decode("latin-1")
        door = front.door(path)
        if door is None:
            # Not in the letters in which clients write it, or not for a door.
            try:
                path = "/" + (httptools.parse_url(target).path or b"").decode("ascii").lstrip("/")
            except httptools.HttpParserInvalidURLError:
                raise Fault(400, "InvalidInput", "the target is not a path") from None
            door = front.door(path)
        if door is None:
            path = "/" + unquote(path).lstrip("/")
            door = front.door(path)
        return path, front.application(path) if door is None else door

    # Answers

    def write_start(self, data: bytes) -> None:
        """Send the start of an answer."""
        if self._sent_ahead:
            self._sent_ahead = False
            data = data[len(AHEAD_OF_ANSWER) :]
        self.transport.write(data)

    def ends_after(self, exchange: Exchange) -> bool:
        """Whether the connection ends with this request's answer, for reasons of its own."""
        left = self._reader.left
        return self._ends or (left is not None and left > PASSED_OVER_BYTES)

    def answered(self) -> None:
        """The answer of the open request has been sent."""
        exchange = self._exchange
        assert exchange is not None, "it has been answered"
        if exchange.keep_alive:
            self.advance()
        elif self._reader.whole and not self._reader.waiting:
            self._close()
        else:
            self._linger()

    def _fail(self, fault: Fault) -> None:
        """Answer what cannot be read, and end."""
        logger.debug("connection of %s: %s", self.peer, fault)
        exchange = self._exchange
        if exchange is None:
            self._send_error(fault)
            self._linger()
        elif exchange.begun:
            self.abort()
        else:
            exchange.keep_alive = False
            exchange.refuse(fault)

    def _send_error(self, fault: Fault) -> None:
        body = error_body(fault.kind, fault.message)
        self.write_start(
            b"%bcontent-type: %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (STATUS_LINES[fault.status], JSON, len(body), body)
        )

    @property
    def unread(self) -> int:
        """Bytes that are here before their turn."""
        return self._reader.waiting

    @property
    def open_exchange(self) -> Exchange | None:
        """The request that is being read or answered."""
        return self._exchange

    # Time

    @property
    def owes_nothing(self) -> bool:
        """Whether it may be closed for others to have its place."""
        return self._exchange is None and not self._over

    def look(self, now: float) -> None:
        """Part with a client that takes too long, or that has gone without a word."""
        stage, progress, allowed = self.standing()
        seen = (stage, self._requests, progress)
        if seen != self._seen:
            self._seen = seen
            self.since = now
        elif now - self.since > allowed:
            self._too_late(stage)
        if self._heard_all or self.paused:
            self._look_for_reset()

    def standing(self) -> tuple[Stage, int, float]:
        """What it waits for, how far that is, and how long it may stay there."""
        patience, exchange = self.served.patience, self._exchange
        unsent = self.transport.get_write_buffer_size()
        if unsent:
            return Stage.STUCK, unsent // patience.progress, patience.stuck
        if self._over:
            return Stage.LINGER, 0, patience.linger
        if exchange is None:
            if self._reader.waiting:
                return Stage.HEAD, 0, patience.head
            return Stage.IDLE, 0, patience.idle
        if self._reader.whole or exchange.waits_for_room:
            return Stage.BUSY, 0, math.inf
        if exchange.has_share and self.served.held.contended:
            step = max(patience.progress, (exchange.head.length or 0) // 100)
            return Stage.BODY, exchange.size // step, patience.contended
        done = exchange.size + exchange.passed_over
        return Stage.BODY, done // patience.progress, patience.body

    def _too_late(self, stage: Stage) -> None:
        exchange = self._exchange
        if stage is Stage.IDLE:
            self._close()
        elif stage is Stage.HEAD:
            seconds = self.served.patience.head
            message = f"the headers did not come within {seconds:g} seconds"
            self._fail(Fault(408, "RequestTimeout", message))
        elif stage is Stage.BODY and exchange is not None and not exchange.answered:
            self._fail(Fault(408, "RequestTimeout", "the body comes too slowly"))
        else:
            self.abort()

    def _look_for_reset(self) -> None:
        """Part with a client that is gone. Where nothing is read, only this shows it."""
        descriptor = self.transport.get_extra_info("socket").fileno()
        if self._over or descriptor < 0:
            return
        poll = select.poll()
        poll.register(descriptor, 0)
        if poll.poll(0):
            self.abort()

    # The end

    def end(self) -> None:
        """Take no more requests; leave when the open one is answered."""
        self._ends = True
        if self._exchange is None and not self._over:
            self._close()

    def give_up(self) -> None:
        """Answer what is open with an error now: the server ends."""
        if self._exchange is not None:
            self._exchange.give_up()

    def turn_away(self, message: str) -> None:
        """Answer with 503 before anything is asked."""
        self._send_error(Fault(503, "Overloaded", message))
        self._close()

    def abort(self) -> None:
        """Cut off."""
        self._over = True
        self.transport.abort()

    def _close(self) -> None:
        """Send what is left to send, and end."""
        self._over = True
        self.transport.close()

    def _linger(self) -> None:
        """Send no more, and let the client finish: to close on what it sends loses the answer."""
        if self._heard_all:
            self._close()
            return
        self._over = True
        self.transport.write_eof()
        self._pause(self._rests)
