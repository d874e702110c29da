"""A MIP connection: runs its requests concurrently and answers them in order."""

from __future__ import annotations

import asyncio
import logging
import math
import select
from collections import deque
from collections.abc import MutableSet
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from farm.bodies.body import HEAVY_BYTES, QUICK_BYTES
from farm.bodies.readers import READS_HERE, Reads
from farm.bodies.reading import Reading, is_long
from farm.call import Call, ModelInfo, Operation, Result
from farm.dispatcher.backend import INTERNAL_ERROR, Backend, CancelCall, named
from farm.errors import FarmError
from farm.http.access import Access
from farm.http.portions import PORTION_BYTES, Buffer, Portions
from farm.http.turns import Turns
from farm.protocols.mip.calls import decode_call, encode_result, values_in
from farm.protocols.mip.packets import (
    PONG,
    VERSION,
    ErrorCode,
    MipFault,
    MipFramer,
    PacketKind,
    PacketRequest,
    encode_error,
    encode_farm_error,
)

logger = logging.getLogger(__name__)

SENT_AHEAD = 16
"""Open requests of one connection; further ones stay in the network's buffers."""

BYTES_AHEAD = 8 << 20
"""The same limit in bytes; a single request may be larger."""


FEW_VALUES = 16
"""A request with more values is decoded in a later turn of the loop."""

MANY_VALUES = 256
"""A request with more values, or an answer with more rows, is handled by a reader process: in this
process it would take a millisecond."""


@dataclass(frozen=True, slots=True)
class MipTimeouts:
    """Time limits for a client, in seconds.

    head_s: for a header that has begun; body_s: for its payload, plus one second for each `rate`
    bytes; idle_s: between requests, and to read an answer. drain_s, drain_bytes: time and bytes
    that a client may still send after a fatal error before the connection closes. look_every_s:
    interval between checks.
    """

    head_s: float = 10.0
    body_s: float = 30.0
    rate: float = 64 * 1024
    idle_s: float = 60.0
    drain_s: float = 2.0
    drain_bytes: int = 64 << 20
    look_every_s: float = 1.0


TIMEOUTS = MipTimeouts()


class _Open:
    """A request, and its answer once it is known."""

    __slots__ = ("packet", "size", "undo")

    def __init__(self, size: int) -> None:
        self.size = size
        self.packet: bytes | None = None
        self.undo: CancelCall | None = None


class MipConnection(Portions):
    """One client's connection, in `connections` until it closes; then `gone` is done."""

    def __init__(
        self,
        backend: Backend,
        model: str,
        access: Access,
        limit: int,
        timeouts: MipTimeouts,
        connections: MutableSet[MipConnection],
        turns: Turns,
        buffer: Buffer,
        readers: Reads = READS_HERE,
    ) -> None:
        super().__init__(buffer)
        self._rests = False  # until its next turn to read
        self._turns = turns
        self._readers = readers
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self._backend = backend
        self._model = model
        self._access = access
        self._timeouts = timeouts
        self._connections = connections
        self._framer = MipFramer(limit)
        self._open: deque[_Open] = deque()
        self._bytes_open = 0
        self._paused = False  # reading is paused
        self._stuck = False  # the client does not read, so writing waits
        self._heard_all = False  # takes no more requests; closes when all are answered
        self._ahead = 0  # bytes of the next packet that were sent early
        self._draining = False
        self._drained = 0
        self._draining_ends: asyncio.TimerHandle | None = None
        self._stage: tuple[object, ...] = ()
        self._due = math.inf

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        # uvloop's and asyncio's transports have no useful common type
        self._transport: Any = transport
        peer = self._access.peer(transport)
        self._hints = named(peer.host)
        if peer.closed:
            self.abort()
            return
        self._connections.add(self)
        if (reason := self._access.refusal(peer)) is not None:
            self._turn_away(reason)

    def _turn_away(self, reason: str) -> None:
        """Answer with an error at once, and read none of the client's data."""
        self._framer.broken = True
        refused = _Open(0)
        refused.packet = encode_error(ErrorCode.INTERNAL, reason)
        self._open.append(refused)
        self._answered()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed: cancel its calls."""
        self._connections.discard(self)
        self._cancel()
        if self._draining_ends is not None:
            self._draining_ends.cancel()
        if not self.gone.done():
            self.gone.set_result(None)

    # Requests

    def received(self, data: bytes) -> None:
        """Handle bytes from the client, split anywhere."""
        if len(data) >= PORTION_BYTES and not self._rests:
            self._rests = True
            self._turns.later(self._rested)
        if self._draining or self._framer.broken or self._heard_all:
            self._drained += len(data)
            if self._drained > self._timeouts.drain_bytes:
                self._transport.abort()
            self._settle()
            return
        self._framer.feed(data)
        self._advance()

    def eof_received(self) -> bool:
        """The client sends no more. True keeps the connection open: answers are still due."""
        if self._draining:
            return False
        self._heard_all = True
        self._advance()
        if self._transport.is_closing():
            return False
        if not self._stuck:
            # Only sending shows whether the client still reads. All packets begin with this byte.
            self._ahead = 1
            self._transport.write(bytes([VERSION]))
        return True

    def _advance(self) -> None:
        """Take the requests that may be taken, and send the answers that may be sent."""
        while self._may_take() and (asked := self._framer.next()) is not None:
            self._take(asked)
            if self._open[0].packet is not None:
                self._send()
        self._settle()
        self._end_if_over()

    def _rested(self) -> None:
        self._rests = False
        self._settle()

    def _settle(self) -> None:
        """Pause or resume reading, according to the current state."""
        # After a fatal error, read nothing until all answers are sent, then read and discard
        # everything.
        full = bool(self._open) if self._framer.broken else not self._may_take()
        full = full or self._rests
        if full != self._paused and not self._heard_all and not self._transport.is_closing():
            self._paused = full
            if full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _may_take(self) -> bool:
        if self._stuck or self._transport.is_closing():
            return False
        if not self._open:
            return True
        return len(self._open) < SENT_AHEAD and self._bytes_open < BYTES_AHEAD

    def _take(self, asked: PacketRequest | MipFault) -> None:
        if isinstance(asked, MipFault):
            request = _Open(0)
            request.packet = encode_error(asked.code, asked.text)
        elif asked.kind is PacketKind.PING:
            request = _Open(0)
            request.packet = PONG
        else:
            request = _Open(len(asked.payload))
            self._start(asked.payload, request)
        self._open.append(request)
        self._bytes_open += request.size

    def _start_later(self, payload: bytes | bytearray, request: _Open) -> None:
        """Start a request that waited for the first models."""
        request.undo = None
        self._start(payload, request, waited=True)
        self._answered()

    def _start(self, payload: bytes | bytearray, request: _Open, *, waited: bool = False) -> None:
        info = self._backend.description(self._model)
        if info is None:
            models, first = self._backend.models(), self._backend.first_worker
            if not waited and (not models or first.incomplete()):
                go = partial(self._start_later, payload, request)
                request.undo = first.when_known(go, lambda: self._model in models)
                return
            # The farm answers with the reason why there is no such model.
            self._call(Call(self._model, Operation.EVALUATE), info, request)
            return
        values = values_in(payload)
        if len(payload) > HEAVY_BYTES or values > MANY_VALUES:
            reading = Reading(
                lambda call: self._go(call, info, request),
                lambda error: self._finish(self._error(error), request),
            )
            client = self._hints.client
            request.undo = reading.begin(self._readers, decode_call, payload, info, client=client)
        elif len(payload) > QUICK_BYTES or values > FEW_VALUES:
            self._turns.later(lambda: self._read_in_turn(payload, info, request))
        else:
            self._read(payload, info, request)

    def _read(self, payload: bytes | bytearray, info: ModelInfo, request: _Open) -> None:
        try:
            self._call(decode_call(bytes(payload), info), info, request)
        except Exception as error:
            request.packet = self._error(error)

    def _read_in_turn(self, payload: bytes | bytearray, info: ModelInfo, request: _Open) -> None:
        if request.packet is None and not self._transport.is_closing():
            self._read(payload, info, request)
            self._answered()

    def _go(self, call: Call, info: ModelInfo, request: _Open) -> None:
        """Start a call that a reader process has decoded."""
        self._call(call, info, request)
        self._answered()

    def _call(self, call: Call, info: ModelInfo | None, request: _Open) -> None:
        """Start a call; an immediate error becomes the request's packet."""

        def done(outcome: Result | FarmError) -> None:
            request.undo = None
            try:
                if isinstance(outcome, FarmError):
                    raise outcome
                assert info is not None, "else there is no result"
                if is_long(outcome) or (call.rows or 1) > MANY_VALUES:
                    self._write(call, outcome, info, request)
                    return
                request.packet = encode_result(call, outcome, info)
            except Exception as error:
                request.packet = self._error(error)
            self._answered()

        try:
            task_id = self._backend.start_call(call, self._hints, done)
            request.undo = partial(self._backend.cancel, task_id)
        except Exception as error:
            request.packet = self._error(error)

    def _write(self, call: Call, result: Result, info: ModelInfo, request: _Open) -> None:
        """Encode a long answer in a reader process."""
        writing = Reading(
            lambda packet: self._finish(bytes(packet), request),
            lambda error: self._finish(self._error(error), request),
        )
        # Only their number is needed.
        asked = replace(call, inputs=(np.empty(0),) * len(call.inputs))
        about = (asked, result, info)
        client = self._hints.client
        request.undo = writing.begin(self._readers, encode_result, *about, client=client)

    def _finish(self, packet: bytes, request: _Open) -> None:
        request.undo = None
        request.packet = packet
        self._answered()

    def _error(self, error: Exception) -> bytes:
        """Return the packet of an error that was raised here or in a reader."""
        if isinstance(error, FarmError):
            return encode_farm_error(error)
        logger.error("answering a client of model %r", self._model, exc_info=error)
        return encode_error(ErrorCode.INTERNAL, INTERNAL_ERROR)

    # Answers

    def _answered(self) -> None:
        if self._open and self._open[0].packet is not None:
            self._send()
            if self._framer.is_empty and not (self._paused or self._stuck or self._heard_all):
                return  # the usual case: nothing else was held up
            self._advance()

    def _send(self) -> None:
        """Send the answers at the front of the queue that are known."""
        packets = []
        while self._open and (packet := self._open[0].packet) is not None:
            self._bytes_open -= self._open.popleft().size
            packets.append(packet)
        if self._ahead:
            packets[0] = packets[0][self._ahead :]
            self._ahead = 0
        if not self._transport.is_closing():
            self._transport.write(packets[0] if len(packets) == 1 else b"".join(packets))

    def _end_if_over(self) -> None:
        if self._open or self._draining or self._transport.is_closing():
            return
        if self._framer.broken:
            if not self._stuck:
                self._drain()
        elif self._heard_all:
            self._transport.close()

    def _drain(self) -> None:
        """Stop sending and let the client finish: closing while it sends would lose the answer."""
        self._draining = True
        if self._heard_all:
            self._transport.close()
            return
        self._transport.write_eof()
        abort = self._transport.abort
        self._draining_ends = self._loop.call_later(self._timeouts.drain_s, abort)

    def pause_writing(self) -> None:
        """The client does not read its answers: take no more of its requests."""
        self._stuck = True

    def resume_writing(self) -> None:
        """The transport may be written to again."""
        self._stuck = False
        self._advance()

    # Time

    def _note_stage(self, now: float) -> None:
        """Restart the client's time limit if it made progress; no limit while it waits for farm.

        Only `look` does so, and not each event: a limit may then end one look later.
        """
        timeouts, framer = self._timeouts, self._framer
        awaited = framer.awaited
        allowed = timeouts.idle_s
        if self._stuck or self._transport.is_closing() or (awaited is None and not self._open):
            unsent = self._transport.get_write_buffer_size()
            stage: tuple[object, ...] = (unsent, self._transport.is_closing(), framer.heads)
        elif awaited is None or self._paused or self._heard_all or framer.broken:
            stage, allowed = (), math.inf
        else:
            stage = (framer.heads, framer.in_payload, "packet")
            allowed = timeouts.head_s
            if framer.in_payload:
                allowed = timeouts.body_s + awaited / timeouts.rate
        if stage != self._stage:
            self._stage = stage
            self._due = now + allowed

    def look(self, now: float) -> None:
        """Disconnect a client that is too slow or has silently disconnected."""
        self._note_stage(now)
        if now > self._due:
            if self._stuck or self._transport.is_closing():
                self._transport.abort()
            else:
                self.end()
                self._note_stage(now)
        elif self._open and (self._heard_all or self._paused) and self._has_left():
            self._transport.abort()

    def _has_left(self) -> bool:
        """Whether the client has disconnected; reading does not show it while reading is paused."""
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), 0)
        return any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))

    # Shutdown

    def end(self) -> None:
        """Take no more requests; close once the open ones are answered."""
        self._heard_all = True
        self._end_if_over()

    def give_up(self) -> None:
        """Answer the open requests with an error now, because the server stops."""
        text = "the farm shut down before the call finished"
        for request in self._open:
            request.packet = request.packet or encode_error(ErrorCode.INTERNAL, text)
        self._cancel()
        if self._open:
            self._send()
        self.end()

    def abort(self) -> None:
        """Close at once, without sending what is buffered."""
        self._transport.abort()

    def _cancel(self) -> None:
        for request in self._open:
            if request.undo is not None:
                request.undo()
                request.undo = None
