"""One gRPC call: collects its messages, runs its method and sends the answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from farm.bodies.body import Body
from farm.bodies.unpacking import Headers
from farm.call import CancelCall
from farm.errors import INTERNAL_ERROR, FarmError
from farm.grpc.http2.frames import LONG, PREFIX, literal
from farm.grpc.messages import (
    AROUND,
    ERRORS,
    HEADERS,
    OK,
    GrpcFailure,
    framed,
    timeout_s,
    trailers,
)
from farm.grpc.requests import CallBody, Message, unpacked
from farm.http1.call_ids import NAMING, REQUEST_ID, TRACE_PARENT, Naming, call_id_of
from farm.monitoring.tracing import RequestSpan

if TYPE_CHECKING:
    from farm.grpc.connection import GrpcConnection

logger = logging.getLogger(__name__)

WRITTEN_AT_ONCE = 64 << 10
"""Bytes that a method writes before others get a turn; each message counts a sixteenth more."""

OWN_FAULT = frozenset(
    {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
)
"""Statuses that mark a server's span as failed; the others are the client's fault."""

HEALTH = "/grpc.health."
"""The start of paths whose calls come every few seconds and run no model: they get no span."""


class Caller(NamedTuple):
    """The client of a call. peer: host; user: Basic name or ""; remaining_s: to its deadline."""

    peer: str
    user: str
    headers: Headers
    remaining_s: float | None
    is_owner_here: Callable[[], bool] = lambda: False
    end: str = ""


NO_CALLER = Caller("", "", {}, None)

Write = Callable[[bytes | memoryview], Awaitable[None]]


class Noted(NamedTuple):
    """A message with metadata of its own, names in small letters."""

    message: bytes | memoryview
    metadata: Sequence[tuple[bytes, bytes]]


Answer = bytes | memoryview | Noted

Unary = Callable[[Body, Caller], Awaitable[Answer]]
"""Takes one message and returns one; raises FarmError."""

Direct = Callable[[bytes, Caller, Callable[[Answer | Exception], None]], CancelCall | None]
"""Starts a method of one message and one answer without a task, and returns how to cancel it.

Passes the answer or the error to the callback, once. Returns None, and never calls back, if this
call needs the coroutine. Raises FarmError.
"""

Requests = AsyncIterator[Body]
ServerStream = Callable[[Body, Write, Caller], Awaitable[None]]
"""Takes one message and sends several with `Write`."""

Bidirectional = Callable[[Requests, Write, Caller], Awaitable[None]]
"""Takes several messages and sends several."""


class Service:
    """Methods by their paths, such as `/inference.GRPCInferenceService/ModelInfer`.

    direct: for some paths of `unary`; short messages then need no task, which costs two more turns
    of the event loop.
    """

    unary: Mapping[str, Unary] = MappingProxyType({})
    direct: Mapping[str, Direct] = MappingProxyType({})
    server_streams: Mapping[str, ServerStream] = MappingProxyType({})
    bidirectional: Mapping[str, Bidirectional] = MappingProxyType({})

    def end_streams(self) -> None:
        """End all streams because the server stops: they finish running work and close."""


class GrpcCall:
    """An open call; its connection passes it the events of its stream."""

    def __init__(self, line: GrpcConnection, stream: int, path: str, caller: Caller) -> None:
        """path, caller: of an earlier call with equal headers; other calls have to `begin`."""
        self._line = line
        self._stream = stream
        self._call_id = b""  # as the answer's metadata has it
        self._span: RequestSpan | None = None
        self._headers_sent = False
        self._undo: Callable[[], object] | None = None  # while the method runs
        self._timer: asyncio.TimerHandle | None = None
        self._path, self._caller = path, caller
        self._body: CallBody | None = None  # that comes in parts
        self._ended = False
        self._outflow: _Outflow  # of a method that runs in a task

    def begin(self, path: str, caller: Caller) -> Caller | None:
        """Start the call, whose headers have arrived. Raises GrpcFailure.

        Return the caller if further calls with the same headers need nothing but it and the path.
        """
        served = self._line.served
        first, caller = caller, self._named(path, caller, served.naming)
        headers = caller.headers
        body = self._in_parts(headers)
        timeout = headers.get(b"grpc-timeout")
        if timeout is not None:
            remaining_s = timeout_s(timeout)
            caller = caller._replace(remaining_s=remaining_s)
            later = asyncio.get_running_loop().call_later
            self._timer = later(remaining_s, self._line.overdue, self)
        self._path, self._caller = path, caller
        service = served.service
        if path in service.unary or path in service.server_streams:
            return caller if caller is first else None
        if (both_ways := service.bidirectional.get(path)) is None:
            raise GrpcFailure("UNIMPLEMENTED", f"there is no method {path[:200]!r}")
        self._body = body
        requests = body.several(self._line)
        self._start(lambda: both_ways(requests, self._write, caller))
        return None

    def _named(self, path: str, caller: Caller, naming: Naming) -> Caller:
        """Begin the span of the call, and find its id; return the caller with both in the headers.

        They are what an HTTP request has: `traceparent` and `x-request-id`. Source: OpenTelemetry's
        semantic conventions for gRPC spans.
        """
        make_id, tracing = naming
        headers = caller.headers
        if tracing is not None and not path.startswith(HEALTH):
            method = path.removeprefix("/")
            about = {"rpc.system.name": "grpc", "rpc.method": method}
            if caller.peer:
                about["client.address"] = caller.peer
            self._span = tracing.request(method, headers, about)
            headers = {**headers, TRACE_PARENT: self._span.parent}
        if make_id is None and NAMING.isdisjoint(headers):
            return caller
        self._call_id = call_id_of(headers).encode()
        if not self._call_id and make_id is not None:
            self._call_id = make_id()
            headers = {**headers, REQUEST_ID: self._call_id}
        return caller._replace(headers=headers)

    def _id(self) -> bytes:
        """Return the metadata of the answer that names the call; empty if it has no id."""
        return literal(REQUEST_ID, self._call_id) if self._call_id else b""

    def received(self, part: bytes, *, ended: bool = False) -> None:
        """Handle a part of the request's body; ended: the last one. Raises GrpcFailure."""
        if self._body is None:
            size, limit = len(part), self._line.served.limit
            is_plain = ended and PREFIX <= size <= limit and part[0] == 0
            if is_plain and LONG.unpack_from(part, 1)[0] == size - PREFIX:
                self._run(part[PREFIX:])  # the usual case
                return
            self._body = self._in_parts(self._caller.headers)
        if (message := self._body.received(part, ended=ended)) is not None:
            self._run(message)

    def _in_parts(self, headers: Headers) -> CallBody:
        return CallBody(self._line, self._stream, headers.get(b"grpc-encoding", b"identity"))

    def look(self, progress: int) -> None:
        """Raise GrpcFailure if bytes are missing and few have come since the last look."""
        runs = self._undo is not None
        if self._body is None:
            if runs:
                return
            self._body = self._in_parts(self._caller.headers)
        self._body.look(progress, runs=runs)

    def drained(self) -> None:
        """The written messages have been sent."""
        self._outflow.clear.set()

    def cancel(self) -> None:
        """Cancel the call: its client has left."""
        undo = self._undo
        self._over("CANCELLED")
        if undo is not None:
            undo()

    def fail(self, status: str, text: str) -> None:
        """End with an error, whatever is running."""
        undo = self._undo
        block = trailers(status, text, alone=not self._headers_sent)
        self._end(block if self._headers_sent else block + self._id(), status)
        if undo is not None:
            undo()

    # The method

    def _run(self, body: Message) -> None:
        """Start the method with its message, without a task if possible."""
        service, path = self._line.served.service, self._path
        if type(body) is bytes and path in service.direct:
            try:
                undo = service.direct[path](body, self._caller, self._answered)
            except Exception as error:
                self._fail_by(error)
                return
            self._undo = None if self._ended else undo
            if self._ended or undo is not None:
                return
        self._start(lambda: self._answer(body))

    def _answered(self, answer: Answer | Exception) -> None:
        """Send the answer of a method that runs without a task."""
        if self._ended:
            return
        self._undo = None
        http2, stream = self._line.http2, self._stream
        if type(answer) is bytes and not self._call_id and http2.answer(stream, *AROUND, answer):
            self._over("OK")  # the usual case
        elif isinstance(answer, Exception):
            self._fail_by(answer)
        else:
            self._send(answer)
            self._end(OK, "OK")

    def _start(self, method: Callable[[], Awaitable[None]]) -> None:
        self._outflow = _Outflow()
        self._undo = asyncio.get_running_loop().create_task(self._run_task(method)).cancel

    async def _run_task(self, method: Callable[[], Awaitable[None]]) -> None:
        try:
            await method()
            if not self._headers_sent:
                self._line.http2.send_headers(self._stream, HEADERS + self._id())
            self._end(OK, "OK")
        except asyncio.CancelledError:
            self._undo = None  # it is this task
            self.fail("CANCELLED", "the call was cancelled")
            raise
        except Exception as error:
            self._undo = None
            self._fail_by(error)

    def _fail_by(self, error: Exception) -> None:
        """End with the status that stands for this exception."""
        if isinstance(error, FarmError):
            if error.detail:
                logger.debug("%s\n%s", error.message, error.detail)
            self.fail(ERRORS[type(error)], error.message)
        elif isinstance(error, GrpcFailure):
            self.fail(error.status, error.text)
        else:
            logger.error("answering a gRPC call", exc_info=error)
            self.fail("INTERNAL", INTERNAL_ERROR)

    async def _answer(self, message: Message) -> None:
        service, body = self._line.served.service, await unpacked(message)
        if (unary := service.unary.get(self._path)) is not None:
            self._send(await unary(body, self._caller))
        else:
            await service.server_streams[self._path](body, self._write, self._caller)

    def _send(self, answer: Answer) -> None:
        headers = HEADERS + self._id()
        if isinstance(answer, Noted):
            headers += b"".join([literal(name, value) for name, value in answer.metadata])
            answer = answer.message
        http2 = self._line.http2
        http2.send_headers(self._stream, headers)
        self._headers_sent = True
        for part in framed(answer):
            http2.send_data(self._stream, part)

    async def _write(self, message: bytes | memoryview) -> None:
        http2 = self._line.http2
        if not self._headers_sent:
            http2.send_headers(self._stream, HEADERS + self._id())
            self._headers_sent = True
        self._outflow.clear.clear()
        gone = True
        for part in framed(message):
            gone = http2.send_data(self._stream, part)
        self._line.flush_soon()
        await self._outflow.wrote(len(message), gone=gone)

    def expire(self) -> None:
        """Fail the call because its deadline has passed."""
        if not self._ended:
            self.fail("DEADLINE_EXCEEDED", "the deadline passed before the answer came")

    def _end(self, block: bytes, status: str) -> None:
        self._line.http2.end(self._stream, block)
        self._over(status)

    def _over(self, status: str) -> None:
        self._ended = True
        if self._span is not None:
            # It has an id: that of the trace, if the client has given none.
            found = {"rpc.response.status_code": status, "farm.call.id": self._call_id.decode()}
            self._span.end(found, failed=status if status in OWN_FAULT else "")
            self._span = None
        if self._body is not None:
            self._body.release()
        # Break the reference cycle with the task, which only the garbage collector would free.
        self._undo = None
        if self._timer is not None:
            self._timer.cancel()
        self._line.call_ended(self._stream)


class _Outflow:
    """Lets a method write only as fast as its messages are sent.

    clear: set while none of them waits.
    """

    def __init__(self) -> None:
        self.clear = asyncio.Event()
        self._written = 0  # bytes since the last pause

    async def wrote(self, size: int, *, gone: bool) -> None:
        """Return when more may be written. gone: whether the message of `size` bytes is sent."""
        self._written += size + WRITTEN_AT_ONCE // 16
        if not gone:
            await self.clear.wait()
        elif self._written >= WRITTEN_AT_ONCE:
            self._written = 0
            await asyncio.sleep(0)  # it is sent, or found to have to wait
