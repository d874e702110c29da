"""A connection of MIP: requests taken as they come, answered in their order, whoever is slow."""

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

from farm.call import Call, ModelInfo, Operation, Result
from farm.errors import FarmError
from farm.protocols.mip import (
    PONG,
    VERSION,
    Asked,
    Code,
    Fault,
    Framer,
    Kind,
    encode_error,
    encode_farm_error,
)
from farm.protocols.mip_calls import decode_call, encode_result, values_in
from farm.server.access import Access
from farm.server.body import HEAVY_BYTES, QUICK_BYTES
from farm.server.door import INTERNAL_ERROR, Backend, TakeBack, named
from farm.server.portions import PORTION_BYTES, Buffer, Portions
from farm.server.readers import READS_HERE, Reads
from farm.server.reading import Reading, is_long
from farm.server.turns import Turns

logger = logging.getLogger(__name__)

SENT_AHEAD = 16
"""Requests of one connection that are open at once; more are left in the network."""

BYTES_AHEAD = 8 << 20
"""The same in bytes, whatever their number; a single request may be larger."""


FEW_VALUES = 16
"""Values of a request that are read at once; more have a turn of the loop of their own."""

MANY_VALUES = 256
"""Values of a request, or rows of an answer, from which another process reads or writes it: in
this one they would take a millisecond."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client may take. head_s: for a header that has begun; body_s: for its payload,
    and one second more for each `rate` bytes; idle_s: between requests, and to take an answer in.
    drain_s, drain_bytes: how long a client that is in error may go on sending before the close.
    look_every_s: how often all this is looked after.
    """

    head_s: float = 10.0
    body_s: float = 30.0
    rate: float = 64 * 1024
    idle_s: float = 60.0
    drain_s: float = 2.0
    drain_bytes: int = 64 << 20
    look_every_s: float = 1.0


PATIENCE = Patience()


class _Open:
    """A request and its answer, once it is there."""

    __slots__ = ("packet", "size", "undo")

    def __init__(self, size: int) -> None:
        self.size = size
        self.packet: bytes | None = None
        self.undo: TakeBack | None = None


class Connection(Portions):
    """One client. `gone` is done when it has left; it is in `connections` until then."""

    def __init__(
        self,
        backend: Backend,
        model: str,
        access: Access,
        limit: int,
        patience: Patience,
        connections: MutableSet[Connection],
        turns: Turns,
        buffer: Buffer,
        readers: Reads = READS_HERE,
    ) -> None:
        super().__init__(buffer)
        self._rests = False  # until its next turn to read
        self._turns = turns
        self._readers = readers
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._backend = backend
        self._model = model
        self._access = access
        self._patience = patience
        self._connections = connections
        self._framer = Framer(limit)
        self._open: deque[_Open] = deque()
        self._bytes_open = 0
        self._paused = False  # reading
        self._stuck = False  # writing: the client does not read
        self._heard_all = False  # no more requests are taken; close when all are answered
        self._ahead = 0  # bytes of the next packet that have been sent already
        self._draining = False
        self._drained = 0
        self._draining_ends: asyncio.TimerHandle | None = None
        self._stage: tuple[object, ...] = ()
        self._due = math.inf

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self._transport: Any = transport  # uvloop's and asyncio's share no useful type
        peer = self._access.peer(transport)
        self._hints = named(peer.host)
        self._connections.add(self)
        self._note_stage()
        if (reason := self._access.refusal(peer)) is not None:
            self._turn_away(reason)

    def _turn_away(self, reason: str) -> None:
        """Answer whatever it will ask with an error, and read none of it."""
        self._framer.broken = True
        refused = _Open(0)
        refused.packet = encode_error(Code.INTERNAL, reason)
        self._open.append(refused)
        self._answered()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone: nobody waits for what runs."""
        self._connections.discard(self)
        self._take_back()
        if self._draining_ends is not None:
            self._draining_ends.cancel()
        if not self.gone.done():
            self.gone.set_result(None)

    # Requests

    def received(self, data: bytes) -> None:
        """Some bytes, wherever they are cut."""
        if len(data) >= PORTION_BYTES and not self._rests:
            self._rests = True
            self._turns.later(self._rested)
        if self._draining or self._framer.broken or self._heard_all:
            self._drained += len(data)
            if self._drained > self._patience.drain_bytes:
                self._transport.abort()
            self._settle()
            return
        self._framer.feed(data)
        self._advance()

    def eof_received(self) -> bool:
        """The client sends no more; True: there are answers for it still."""
        if self._draining:
            return False
        self._heard_all = True
        self._advance()
        if self._transport.is_closing():
            return False
        if not self._stuck:
            # Whether it still listens shows when something is sent to it. All packets begin alike.
            self._ahead = 1
            self._transport.write(bytes([VERSION]))
        return True

    def _advance(self) -> None:
        """Take what requests may be taken, send what answers may be sent."""
        while self._may_take() and (asked := self._framer.next()) is not None:
            self._take(asked)
            if self._open[0].packet is not None:
                self._send()
        self._settle()
        self._end_if_over()
        self._note_stage()

    def _rested(self) -> None:
        self._rests = False
        self._settle()

    def _settle(self) -> None:
        """Read on, or not, as it stands."""
        # Behind what cannot be understood nothing is read, or else all is, to be thrown away.
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

    def _take(self, asked: Asked | Fault) -> None:
        if isinstance(asked, Fault):
            request = _Open(0)
            request.packet = encode_error(asked.code, asked.text)
        elif asked.kind is Kind.PING:
            request = _Open(0)
            request.packet = PONG
        else:
            request = _Open(len(asked.payload))
            self._start(asked.payload, request)
        self._open.append(request)
        self._bytes_open += request.size

    def _start(self, payload: bytes | bytearray, request: _Open) -> None:
        info = self._backend.description(self._model)
        if info is None:  # the farm says itself why there is no such model
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
        """Start a call that was read elsewhere."""
        self._call(call, info, request)
        self._answered()

    def _call(self, call: Call, info: ModelInfo | None, request: _Open) -> None:
        """Start a call; what goes wrong at once is the request's packet."""

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
        """Have a long answer written elsewhere."""
        writing = Reading(
            lambda packet: self._finish(bytes(packet), request),
            lambda error: self._finish(self._error(error), request),
        )
        asked = replace(call, inputs=(np.empty(0),) * len(call.inputs))  # their number is needed
        about = (asked, result, info)
        client = self._hints.client
        request.undo = writing.begin(self._readers, encode_result, *about, client=client)

    def _finish(self, packet: bytes, request: _Open) -> None:
        request.undo = None
        request.packet = packet
        self._answered()

    def _error(self, error: Exception) -> bytes:
        """The packet for what was raised here or in a reader."""
        if isinstance(error, FarmError):
            return encode_farm_error(error)
        logger.error("answering a client of model %r", self._model, exc_info=error)
        return encode_error(Code.INTERNAL, INTERNAL_ERROR)

    # Answers

    def _answered(self) -> None:
        if self._open and self._open[0].packet is not None:
            self._send()
            self._advance()

    def _send(self) -> None:
        """Send the answers that are there, as far as none before them is missing."""
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
        """Say no more, and let the client finish: to close on what it sends loses the answer."""
        self._draining = True
        if self._heard_all:
            self._transport.close()
            return
        self._transport.write_eof()
        loop = asyncio.get_running_loop()
        self._draining_ends = loop.call_later(self._patience.drain_s, self._transport.abort)

    def pause_writing(self) -> None:
        """The client does not read its answers: nothing more is taken from it."""
        self._stuck = True

    def resume_writing(self) -> None:
        """It does."""
        self._stuck = False
        self._advance()

    # Time

    def _note_stage(self) -> None:
        """Give the client its time anew if it has got on; none while it waits for us."""
        patience, framer = self._patience, self._framer
        awaited = framer.awaited
        allowed = patience.idle_s
        if self._stuck or self._transport.is_closing() or (awaited is None and not self._open):
            unsent = self._transport.get_write_buffer_size()
            stage: tuple[object, ...] = (unsent, self._transport.is_closing(), framer.heads)
        elif awaited is None or self._paused or self._heard_all or framer.broken:
            stage, allowed = (), math.inf
        else:
            stage = (framer.heads, framer.in_payload, "packet")
            allowed = patience.head_s
            if framer.in_payload:
                allowed = patience.body_s + awaited / patience.rate
        if stage != self._stage:
            self._stage = stage
            self._due = asyncio.get_running_loop().time() + allowed

    def look(self, now: float) -> None:
        """Part with a client that takes too long, or that has gone without a word."""
        self._note_stage()
        if now > self._due:
            if self._stuck or self._transport.is_closing():
                self._transport.abort()
            else:
                self.end()
                self._note_stage()
        elif self._open and (self._heard_all or self._paused) and self._has_left():
            self._transport.abort()

    def _has_left(self) -> bool:
        """Whether a client that is not read from does not listen either."""
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), 0)
        return any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))

    # The end

    def end(self) -> None:
        """Take no more requests; leave when those taken are answered."""
        self._heard_all = True
        self._end_if_over()

    def give_up(self) -> None:
        """Answer what is open with an error now: the server ends."""
        text = "the farm shut down before the call finished"
        for request in self._open:
            request.packet = request.packet or encode_error(Code.INTERNAL, text)
        self._take_back()
        if self._open:
            self._send()
        self.end()

    def abort(self) -> None:
        """Cut off."""
        self._transport.abort()

    def _take_back(self) -> None:
        for request in self._open:
            if request.undo is not None:
                request.undo()
                request.undo = None
