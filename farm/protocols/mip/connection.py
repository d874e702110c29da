"""A MIP connection: runs its requests concurrently and answers them in order."""

from __future__ import annotations

import asyncio
import logging
import math
import select
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from enum import IntEnum, unique
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from farm.bodies.body import HEAVY_BYTES, QUICK_BYTES
from farm.bodies.reading import Reading, is_long
from farm.call import Call, CancelCall, ModelInfo, Operation, Result, named
from farm.dispatcher.partition import of_rows
from farm.errors import INTERNAL_ERROR, FarmError
from farm.http1.turns import PORTION_BYTES, Portions
from farm.protocols.mip.address import only
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
from farm.transitions import TransitionTable

if TYPE_CHECKING:
    from farm.protocols.mip.service import MipServed

logger = logging.getLogger(__name__)

SENT_AHEAD = 16
"""Open requests of one connection; further ones stay in the network's buffers."""

BYTES_AHEAD = 8 << 20
"""The same limit in bytes; a single request may be larger."""

FEW_VALUES = 16
"""A request with more values is decoded in a later turn of the loop."""

MANY_VALUES = 256
"""A reader process handles requests with more values and answers with more rows: a millisecond."""


@unique
class MipPhase(IntEnum):
    """The phase of a connection.

    OPEN: it takes requests. BROKEN: it reads none after a fatal error, and drains once the earlier
    ones are answered; DRAINING: all is sent, and what the client still sends is discarded. LAST: it
    takes no more requests, and closes once the open ones are answered.
    """

    OPEN = 1
    BROKEN = 2
    DRAINING = 3
    LAST = 4


OPEN, BROKEN, DRAINING, LAST = MipPhase

CONNECTIONS = TransitionTable(
    "MIP connection",
    ((OPEN,), "breaks", BROKEN),
    ((LAST,), "breaks", LAST),
    ((BROKEN,), "answered", DRAINING),
    ((OPEN, BROKEN, LAST), "ends", LAST),
    ((DRAINING,), "ends", DRAINING),
    begins={"connected": OPEN},
)
BREAKS = CONNECTIONS.event("breaks")
ANSWERED = CONNECTIONS.event("answered")
ENDS = CONNECTIONS.event("ends")


class _Open:
    """A request, and its answer once it is known."""

    __slots__ = ("packet", "size", "undo")

    def __init__(self, size: int, packet: bytes | None = None) -> None:
        self.size = size
        self.packet = packet
        self.undo: CancelCall | None = None

    def runs(self, undo: CancelCall | None) -> None:
        """Note what cancels it; None: nothing any more."""
        self.undo = undo

    def answer(self, packet: bytes) -> None:
        """Note its answer."""
        self.packet, self.undo = packet, None

    def cancel(self) -> None:
        """Cancel what runs for it."""
        if self.undo is not None:
            self.undo()
            self.undo = None


class MipConnection(Portions):
    """One client's connection, in `served.connections` until it closes."""

    let_in = True

    def __init__(self, served: MipServed) -> None:
        super().__init__(served.buffer)
        self._served = served
        self.since = asyncio.get_running_loop().time()
        self._phase = OPEN
        self._rests = False  # until its next turn to read
        self._model = served.model
        self._framer = MipFramer(served.limit)
        self._open: deque[_Open] = deque()
        self._bytes_open = 0
        self._paused = False  # reading is paused
        self._stuck = False  # the client does not read, so writing waits
        self._ahead = 0  # bytes of the next packet that were sent early
        self._drained = 0  # bytes
        self._draining_ends: asyncio.TimerHandle | None = None
        self._stage: tuple[object, ...] = ()
        self._due = math.inf

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport: Any = transport  # uvloop's and asyncio's have no useful common type
        peer = self._served.access.peer(transport)
        self._hints = named(peer.host, str(peer))
        if peer.closed:
            self.abort()
            return
        self._served.connections.add(self)
        if (reason := self._served.access.refusal(peer)) is not None:
            self.turn_away(reason)

    @property
    def owes_nothing(self) -> bool:
        """Whether this connection may be closed to make room for others."""
        return not self._open

    def turn_away(self, message: str) -> None:
        """Answer with an error at once, and read none of the client's data."""
        self._framer.stop()
        self._phase = BREAKS[self._phase]
        self._open.append(_Open(0, encode_error(ErrorCode.INTERNAL, message)))
        self._answered()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed: cancel its calls."""
        self._served.connections.discard(self)
        for request in self._open:
            request.cancel()
        if self._draining_ends is not None:
            self._draining_ends.cancel()

    # Requests

    def received(self, data: bytes) -> None:
        """Handle bytes from the client, split anywhere."""
        if len(data) >= PORTION_BYTES and not self._rests:
            self._rests = True
            self._served.turns.later(self._rested)
        if self._phase != OPEN:
            self._drained += len(data)
            if self._drained > self._served.timeouts.drain_bytes:
                self._transport.abort()
            self._settle()
            return
        self._framer.feed(data)
        self._advance()

    def eof_received(self) -> bool:
        """The client sends no more. True keeps the connection open: answers are still due."""
        if self._phase is DRAINING:
            return False
        self._phase = ENDS[self._phase]
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
        if not self._open:
            self._end_if_over()

    def _rested(self) -> None:
        self._rests = False
        self._settle()

    def _settle(self) -> None:
        """Pause or resume reading, according to the current state."""
        # After a fatal error, read nothing until all answers are sent, then discard the rest.
        phase = self._phase
        full = not self._may_take() if phase is OPEN else bool(self._open)
        full = full or self._rests
        if full != self._paused and phase is not LAST and not self._transport.is_closing():
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
            request = _Open(0, encode_error(asked.code, asked.text))
            if self._framer.broken:
                self._phase = BREAKS[self._phase]
        elif asked.kind is PacketKind.PING:
            request = _Open(0, PONG)
        else:
            request = _Open(len(asked.payload))
            self._start(asked.payload, request)
        self._open.append(request)
        self._bytes_open += request.size

    def _start_later(self, payload: bytes | bytearray, request: _Open) -> None:
        """Start a request that waited for the first models."""
        request.runs(None)
        self._start(payload, request, waited=True)
        self._answered()

    def _start(self, payload: bytes | bytearray, request: _Open, *, waited: bool = False) -> None:
        if not self._model:
            self._model = only(self._served.backend.models())
        backend = self._served.backend
        info = backend.description(self._model)
        if info is None:
            models, first = backend.models(), backend.first_worker
            if not waited and (not models or first.expected.incomplete):
                go = partial(self._start_later, payload, request)
                request.runs(first.when_known(go, lambda: (self._model or only(models)) in models))
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
            readers, about = self._served.readers, (payload, info)
            request.runs(reading.begin(readers, decode_call, *about, hints=self._hints))
        elif len(payload) > QUICK_BYTES or values > FEW_VALUES:
            self._served.turns.later(lambda: self._read_in_turn(payload, info, request))
        else:
            self._read(payload, info, request)

    def _read(self, payload: bytes | bytearray, info: ModelInfo, request: _Open) -> None:
        try:
            self._call(decode_call(bytes(payload), info), info, request)
        except Exception as error:
            request.answer(self._error(error))

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
            try:
                if isinstance(outcome, FarmError):
                    rows, row = call.rows or 1, outcome.row
                    if info is None or not 1 < rows <= info.max_batch:
                        raise outcome  # with several parts, it names the rows already
                    raise of_rows(outcome, row or 0, rows if row is None else row + 1)
                assert info is not None, "else there is no result"
                if is_long(outcome) or (call.rows or 1) > MANY_VALUES:
                    self._write(call, outcome, info, request)
                    return
                request.answer(encode_result(call, outcome, info))
            except Exception as error:
                request.answer(self._error(error))
            self._answered()

        try:
            backend = self._served.backend
            task_id = backend.start_call(call, self._hints, done)
            request.runs(partial(backend.cancel, task_id))
        except Exception as error:
            request.answer(self._error(error))

    def _write(self, call: Call, result: Result, info: ModelInfo, request: _Open) -> None:
        """Encode a long answer in a reader process."""
        writing = Reading(
            lambda packet: self._finish(bytes(packet), request),
            lambda error: self._finish(self._error(error), request),
        )
        inputs = (np.empty(0),) * len(call.inputs)  # only their number is needed
        about = (replace(call, inputs=inputs), result, info)
        readers = self._served.readers
        request.runs(writing.begin(readers, encode_result, *about, hints=self._hints))

    def _finish(self, packet: bytes, request: _Open) -> None:
        request.answer(packet)
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
            held_up = self._paused or self._stuck or self._phase != OPEN
            if not held_up and self._framer.is_empty:
                return  # the usual case
            self._advance()

    def _send(self) -> None:
        """Send the first answer, and those behind it that are known too."""
        sent = self._open.popleft()
        self._bytes_open -= sent.size
        packet = sent.packet or b""
        if self._open and self._open[0].packet is not None:
            packet = b"".join((packet, *self._answers()))
        if self._ahead:
            packet = packet[self._ahead :]
            self._ahead = 0
        if not self._transport.is_closing():
            self._transport.write(packet)

    def _answers(self) -> Iterator[bytes]:
        """Take the answers at the front of the queue that are known."""
        while self._open and (packet := self._open[0].packet) is not None:
            self._bytes_open -= self._open.popleft().size
            yield packet

    def _end_if_over(self) -> None:
        if self._open or self._transport.is_closing():
            return
        if self._phase is BROKEN and not self._stuck:
            self._drain()
        elif self._phase is LAST:
            self._transport.close()

    def _drain(self) -> None:
        """Stop sending and let the client finish: closing while it sends would lose the answer."""
        self._phase = ANSWERED[self._phase]
        self._transport.write_eof()
        loop, limit_s = asyncio.get_running_loop(), self._served.timeouts.drain_s
        self._draining_ends = loop.call_later(limit_s, self._transport.abort)

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
        timeouts, framer = self._served.timeouts, self._framer
        awaited = framer.awaited
        allowed = timeouts.idle_s
        if self._stuck or self._transport.is_closing() or (awaited is None and not self._open):
            unsent = self._transport.get_write_buffer_size()
            stage: tuple[object, ...] = (unsent, self._transport.is_closing(), framer.heads)
        elif awaited is None or self._paused or self._phase != OPEN:
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
        elif self._open and (self._phase is LAST or self._paused) and self._has_left():
            self._transport.abort()

    def _has_left(self) -> bool:
        """Whether the client has disconnected; reading does not show it while reading is paused."""
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), 0)
        return any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))

    # Shutdown

    def end(self) -> None:
        """Take no more requests; close once the open ones are answered."""
        self._phase = ENDS[self._phase]
        self._end_if_over()

    def give_up(self) -> None:
        """Answer the open requests with an error now, because the server stops."""
        text = "the farm shut down before the call finished"
        for request in self._open:
            request.cancel()
            if request.packet is None:
                request.answer(encode_error(ErrorCode.INTERNAL, text))
        if self._open:
            self._send()
        self.end()

    def abort(self) -> None:
        """Close at once, without sending what is buffered."""
        self._transport.abort()
