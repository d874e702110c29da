"""One client's connection: turns its bytes into calls, and their answers into bytes."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from farm.bodies.held import HeldBytes
from farm.bodies.unpacking import Refused
from farm.grpc.call import NO_CALLER, Caller, GrpcCall, Service
from farm.grpc.http2.connection import Event, Http2Connection, Opened
from farm.grpc.http2.frames import ENHANCE_YOUR_CALM, NO_ERROR, ConnectionFailed
from farm.grpc.http2.headers import LARGEST_LIST, Headers
from farm.grpc.http2.sending import Drained, Received, Reset
from farm.grpc.messages import HEADERS_TOO_LARGE, NOT_GRPC, NOT_GRPC_TEXT, GrpcFailure
from farm.http1.access import Access
from farm.http1.call_ids import NOTHING_NAMED, Naming
from farm.http1.connections import Connections
from farm.http1.exchange import COPIED_BYTES
from farm.http1.turns import Buffer, Portions, Turns
from farm.machine.peer import Peer

logger = logging.getLogger(__name__)

STEP, LONGEST_STEP, ALL_STEPS = 160, 640, 1280
"""Units of work, as `Http2Connection.receive` counts them, that a connection does at a time: STEP
at least, some eight calls or a quarter of a millisecond of frames that need no answer. With few
connections each does more, its share of ALL_STEPS up to LONGEST_STEP, because answers that are sent
together cost less."""

FIRST_STEP = 64
"""Units of work done at once while other connections wait for their turn: a call or two."""

PER_CALL = 16
"""Units of work for a call that ends early, or for each further message of a stream."""


@dataclass(frozen=True, slots=True)
class GrpcTimeouts:
    """Time limits for a client, in seconds.

    frame: for its preface, and for each frame and block of headers, from its first byte. body: for
    each `progress` bytes of a message. stuck: until it reads some of the bytes sent to it. idle:
    until it starts another call, or lets an answer through. closing: until it has read why the
    connection closes.
    """

    frame: float = 10.0
    body: float = 30.0
    stuck: float = 60.0
    idle: float = 1800.0
    closing: float = 5.0
    progress: int = 64 << 10


@dataclass(frozen=True, slots=True)
class GrpcServerState:
    """State shared by all connections of a server. limit: largest message, in bytes."""

    service: Service
    access: Access
    limit: int
    held: HeldBytes
    turns: Turns
    connections: Connections
    timeouts: GrpcTimeouts
    naming: Naming = NOTHING_NAMED
    buffer: Buffer = field(default_factory=Buffer)
    heavy: set[GrpcConnection] = field(default_factory=set)
    """The connection that read a long block of headers in this turn; only one may per turn."""

    @property
    def step(self) -> int:
        """Units of work that a connection does at a time, at present."""
        return max(STEP, min(ALL_STEPS // max(1, len(self.connections)), LONGEST_STEP))


class GrpcConnection(Portions):
    """Reads HTTP/2, keeps the open calls and writes their answers."""

    def __init__(self, served: GrpcServerState) -> None:
        """The connection is in `served.connections` while it is open."""
        super().__init__(served.buffer)
        self.http2 = Http2Connection()
        self.served = served
        self._calls: dict[int, GrpcCall] = {}
        self._known: tuple[Headers, str, Caller] = {}, "", NO_CALLER
        """The headers of a call as `HeaderReader` keeps them, and what they mean."""
        self._overdue: deque[GrpcCall] = deque()
        self._backlog: deque[asyncio.Future[None]] = deque()  # messages that wait for their turn
        self._lost = self._ending = False
        self._flushes_soon = self._has_turn = False
        self._stuck = False  # the client does not read what was written
        self._reads = True
        self._units = served.step
        # Set when the connection is made.
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._peer = Peer("")
        self.let_in = False
        # For `look`: the client's last state, and the time at which it entered that state.
        self.since = self._loop.time()
        self._seen: tuple[object, ...] = ()
        self._bodies_since = self.since

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast(asyncio.Transport, transport)
        self._peer = self.served.access.peer(transport)
        if self._peer.closed:
            self._transport.abort()
            return
        self.let_in = self.served.access.trusts(self._peer)
        self._flush()
        self.served.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed: cancel its calls."""
        self._lost = True
        self._overdue.clear()
        self._step()

    def received(self, data: bytes) -> None:
        """Handle bytes from the client: a part now, the rest in later turns."""
        if self._has_turn or self._stuck:
            units = 0
        elif self.served.turns.are_wanted:
            units = FIRST_STEP
        else:
            units = self._units
        self._receive(data, units)
        if self._much:
            self._next_turn()

    def pause_writing(self) -> None:
        """The client reads too slowly: do not read or answer it until it has caught up."""
        self._stuck = True
        self.http2.hold(True)
        self._read(False)

    def resume_writing(self) -> None:
        """The transport may be written to again."""
        self._stuck = False
        self.http2.hold(False)
        self._next_turn()

    def _read(self, reads: bool) -> None:
        if reads != self._reads and not self._transport.is_closing():
            self._reads = reads
            if reads:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # Work in steps

    def _next_turn(self) -> None:
        if not self._has_turn:
            self._has_turn = True
            self._read(False)
            self.served.turns.later(self._step)

    def _step(self) -> None:
        """Do a part of the pending work, and ask for another turn if some is left."""
        self._has_turn = False
        for _ in range(STEP // PER_CALL):
            if self._lost and self._calls:
                self._calls.popitem()[1].cancel()
            elif self._overdue:
                self._overdue.popleft().expire()
            elif self._backlog:
                message = self._backlog.popleft()
                if not message.done():
                    message.set_result(None)
        if not self._lost:
            if not self._transport.is_closing():
                heavy = self.served.heavy
                self._receive(b"", 0 if self._stuck else self._units, alone=not heavy)
                if self.http2.spent > 2 * self._units:
                    heavy.add(self)
                    self._loop.call_soon(heavy.clear)
        elif self._calls:
            self._next_turn()
        else:
            self.served.connections.discard(self)

    def _receive(self, data: bytes, limit: int, *, alone: bool = False) -> None:
        """alone: this is a turn of its own, so a single frame may take longer."""
        try:
            events = self.http2.receive(data, limit, alone=alone)
            # A call that is reset in the same bytes is not started: a start costs more than an end.
            reset = {e.stream for e in events if type(e) is Reset} if events[2:] else ()
            for event in events:
                if event.stream not in reset or type(event) is Reset:
                    self._take(event)
        except ConnectionFailed as failed:
            self._fail(failed.code, str(failed))
            return
        if self.http2.out or self._ending:
            self._flush()
        if self._overdue or self._backlog or (self.http2.busy and not self._stuck):
            self._next_turn()
        elif not self._reads and not self._stuck and not self._has_turn:
            self._read(True)

    def _fail(self, code: int, reason: str) -> None:
        """Close the connection because of an error of the client."""
        if not self._transport.is_closing():
            logger.debug("connection of %s: %s", self._peer.host, reason)
            self.http2.go_away(code)
            self._flush()
            self._transport.close()

    # Calls

    def _take(self, event: Event) -> None:
        if type(event) is Opened:
            if event.headers is self._known[0]:  # the usual case
                self._calls[event.stream] = GrpcCall(self, event.stream, *self._known[1:])
            else:
                self._open(event)
            return
        if event.stream not in self._calls:
            return
        call = self._calls[event.stream]
        try:
            if type(event) is Received:
                call.received(event.data, ended=event.ended)
            elif type(event) is Drained:
                call.drained()
            else:
                call.cancel()
        except GrpcFailure as failed:
            call.fail(failed.status, failed.text)

    def _open(self, opened: Opened) -> None:
        stream, headers, oversized = opened.stream, opened.headers, opened.oversized
        if not headers.get(b"content-type", b"").startswith(b"application/grpc"):
            self._refuse(stream, oversized)
            return
        call = self._calls[stream] = GrpcCall(self, stream, "", NO_CALLER)
        try:
            if oversized:
                text = f"the metadata is larger than {LARGEST_LIST} bytes, the limit here"
                raise GrpcFailure("RESOURCE_EXHAUSTED", text)
            if b":authority" in headers:
                headers = {**headers, b"host": headers[b":authority"]}
            access = self.served.access
            user = access.user(self._peer, headers)
            self.let_in = True
            path = headers[b":path"].decode("latin-1")
            is_owner_here = partial(access.is_owner_here, self._peer, headers)
            about = (self._peer.host, user, headers, None, is_owner_here, str(self._peer))
            if caller := call.begin(path, Caller(*about)):
                self._known = opened.headers, path, caller
        except Refused as refused:
            status = "PERMISSION_DENIED" if refused.status == 403 else "UNAUTHENTICATED"
            call.fail(status, refused.message)
        except GrpcFailure as failed:
            call.fail(failed.status, failed.text)

    def _refuse(self, stream: int, oversized: bool) -> None:
        """Answer a request that is not a gRPC call."""
        if oversized:
            self.http2.end(stream, HEADERS_TOO_LARGE)
            return
        self.http2.send_headers(stream, NOT_GRPC)
        self.http2.send_data(stream, NOT_GRPC_TEXT)
        self.http2.end(stream, b"")

    def call_ended(self, stream: int) -> None:
        """The stream has ended."""
        if stream in self._calls:
            del self._calls[stream]
        if self._calls:
            self.flush_soon()
        else:
            self._flush()  # no other call is open whose answer could be sent along

    def overdue(self, call: GrpcCall) -> None:
        """Expire a call in a later step: thousands of deadlines may pass at once."""
        self._overdue.append(call)
        self._next_turn()

    async def turn(self) -> None:
        """Wait for a turn of this connection: one client's burst must not delay the others."""
        waiting = self._loop.create_future()
        self._backlog.append(waiting)
        self._next_turn()
        await waiting

    # Sending

    def flush_soon(self) -> None:
        """Flush in the next turn of the loop, so that simultaneous answers are sent together."""
        if not self._flushes_soon:
            self._flushes_soon = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushes_soon = False
        if self._transport.is_closing() or self._stuck:
            return
        if parts := self.http2.take():
            first, *others = parts
            if not others:
                self._transport.write(first)
            elif sum(map(len, parts)) <= COPIED_BYTES:
                self._transport.write(b"".join(parts))
            else:
                self._transport.writelines(parts)
        if self.http2.ready and self.http2.can_send:
            self._next_turn()
        elif self._ending and not self.http2.open_streams:
            self._transport.close()

    # Time

    def look(self, now: float) -> None:
        """Close the connection of a client that is too slow; called about once a second."""
        timeouts = self.served.timeouts
        if self._transport.is_closing():
            doing, most = "closing", timeouts.closing
        elif self._stuck:
            size = self._transport.get_write_buffer_size()
            doing, most = f"stuck with {size} bytes", timeouts.stuck
        elif self._has_turn:
            doing, most = "waiting for us", float("inf")
        elif self.http2.is_partial:
            doing, most = f"in the middle of frame {self.http2.whole}", timeouts.frame
        else:
            doing = f"idle after frame {self.http2.whole}"
            works = self.http2.open_streams and not self.http2.has_waiting
            most = float("inf") if works else timeouts.idle
        if self._seen != (doing,):
            self._seen, self.since = (doing,), now
        elif now - self.since > most:
            self._part(doing)
            return
        if now - self._bodies_since > timeouts.body:
            if not (self._stuck or self._has_turn):
                for call in list(self._calls.values()):
                    try:
                        call.look(timeouts.progress)
                    except GrpcFailure as failed:
                        call.fail(failed.status, failed.text)
            self._bodies_since = now
        self.http2.grow_patient(1.0)
        self._units = self.served.step

    def _part(self, doing: str) -> None:
        if doing.startswith("idle"):
            self._fail(NO_ERROR, doing)
        elif doing.startswith("in the middle"):
            self._fail(ENHANCE_YOUR_CALM, doing)
        else:
            self.abort()

    @property
    def owes_nothing(self) -> bool:
        """Whether this connection may be closed to make room for others."""
        return not self.http2.open_streams

    # Shutdown

    def turn_away(self, message: str) -> None:
        """Close the connection because there are too many."""
        self._fail(ENHANCE_YOUR_CALM, message)

    def end(self) -> None:
        """Take no new calls, and close when all open ones are answered."""
        self._ending = True
        self.http2.go_away(NO_ERROR)
        self._flush()

    def give_up(self) -> None:
        """Answer the open calls with UNAVAILABLE."""
        for call in list(self._calls.values()):
            call.fail("UNAVAILABLE", "the farm shut down before the call finished")

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()
