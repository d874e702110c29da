"""The server's half of HTTP/2 without its sockets: bytes in, events and bytes out.

It covers what gRPC needs: no push, no priorities, and it sends header blocks uncompressed. Bodies
obey both ends' flow control. `receive` bounds the work it does per call, so that a connection full
of frames delays no other connection; a client that sends only frames without a purpose is
disconnected. Source: RFC 9113 (HTTP/2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from farm.grpc.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FIRST_WINDOW,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEAD,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    LARGEST_WINDOW,
    LONG,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    NO_ERROR,
    PADDED,
    PING,
    PREFACE,
    PRIORITISED,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    STREAM_CLOSED,
    WINDOW_UPDATE,
    ConnectionFailed,
    frame,
    settings_frame,
    settings_in,
    without_padding,
)
from farm.grpc.http2.headers import LARGEST_LIST, HeaderReader, Headers
from farm.grpc.http2.sending import (
    STREAMS,
    Drained,
    Received,
    Reset,
    Sending,
    Stream,
)

STREAM_WINDOW, CONNECTION_WINDOW = 256 << 10, 64 << 20
"""Bytes that a client may send ahead, except for a message whose memory is reserved."""

HALF_STREAM_WINDOW, HALF_CONNECTION_WINDOW = STREAM_WINDOW // 2, CONNECTION_WINDOW // 2
"""Consumed bytes after which the client gets a WINDOW_UPDATE."""

FRAME_SIZE = 64 << 10
LONGEST_BLOCK = 32 << 10
"""Bytes of one compressed block of headers: twice the limit of a request's decoded headers."""

# A unit of work is some 2 µs, with the work that follows outside: 8 for DATA, which may be a whole
# message, 10 for HEADERS, which may be a call, 4 for a reset, which ends one, 1 for other frames.
NO_LIMIT = 1 << 60


@dataclass(slots=True)
class Opened:
    """A request begins. oversized: its headers are truncated at the limit."""

    stream: int
    headers: Headers
    oversized: bool = False


Event = Opened | Received | Reset | Drained


class _Block(NamedTuple):
    """A header block that continues in the next frame."""

    stream: int
    flags: int
    parts: list[bytes]


class Http2Connection(Sending):
    """One client's connection: pass received bytes to `receive`, write the bytes from `take`."""

    def __init__(self) -> None:
        super().__init__()
        self._headers_of = HeaderReader()
        self._data = b""  # bytes; from `_position` on they are not handled yet
        self._position = 0
        self._more: list[bytes] = []  # bytes after them
        self._have = 0  # bytes of both that are not handled yet
        self._want = len(PREFACE)
        self._greeted = self._settled = False  # whether the preface and its SETTINGS have arrived
        self._block: _Block | None = None
        self._block_size = 0
        self._last = 0
        self._unacknowledged = 0
        self._ending = False
        self.whole = 0
        """Frames received, except CONTINUATION; it grows while the client makes progress."""
        self.spent = 0
        """Units of work of the last `receive`."""
        self.busy = False
        """Whether `receive` has more to do without new bytes."""
        greeting = settings_frame(
            (MAX_CONCURRENT_STREAMS, STREAMS),
            (INITIAL_WINDOW_SIZE, STREAM_WINDOW),
            (MAX_FRAME_SIZE, FRAME_SIZE),
            (MAX_HEADER_LIST_SIZE, LARGEST_LIST),
        )
        more = LONG.pack(CONNECTION_WINDOW - FIRST_WINDOW)
        self.out += [greeting, frame(WINDOW_UPDATE, 0, 0, more)]

    @property
    def has_waiting(self) -> bool:
        """Whether an answer waits for a window."""
        return bool(self.ready or self._blocked)

    @property
    def is_partial(self) -> bool:
        """Whether the client has begun a preface, frame or header block and not completed it."""
        return not self._settled or self._have > 0 or self._block is not None

    # Receiving

    def receive(
        self, data: bytes = b"", limit: int = NO_LIMIT, *, alone: bool = True
    ) -> list[Event]:
        """Return the events of these bytes, and of earlier bytes that were left for later.

        limit: units of work after which the rest is left and `busy` is set; 0 leaves everything.
        alone: the first frame is read even if it exceeds the limit. `spent` is the work done.
        Raises ConnectionFailed; the events before the error are lost then.
        """
        events: list[Event] = []
        if data:
            if self._have:
                self._more.append(data)
            else:
                self._data, self._position = data, 0
            self._have += len(data)
        self.spent = 0
        if not limit:
            self.busy = True
            return events
        if self._have >= self._want:
            self._frames(limit, alone, events)
        elif not self._greeted:
            self._greet(self._joined())  # another protocol may send less than a preface
        if self.ready and self.can_send:
            used, drained = self.flush(limit)
            self.spent += used
            events += drained
        self.busy = self._have >= self._want or (bool(self.ready) and self.can_send)
        return events

    def _joined(self) -> bytes:
        if self._more:
            self._data = b"".join((self._data[self._position :], *self._more))
            self._position = 0
            self._more.clear()
        return self._data

    def _frames(self, limit: int, alone: bool, events: list[Event]) -> None:
        data = self._joined() if self._more else self._data
        position, end, spent, want = self._position, len(data), 0, 0
        if not self._greeted:
            self._greet(data)
            self._greeted = True
            position = len(PREFACE)
        read_frame = self._READ_FRAME
        try:
            while True:
                start = position + 9
                if start > end:
                    want = 9
                    break
                high, low, kind, flags, stream = HEAD.unpack_from(data, position)
                size = high << 8 | low
                if size > FRAME_SIZE:
                    raise ConnectionFailed(FRAME_SIZE_ERROR, f"a frame has {size} bytes")
                after = start + size
                if after > end:
                    want = 9 + size
                    break
                if kind == DATA:
                    cost = 8 + (size >> 14)
                elif kind == HEADERS or kind == CONTINUATION:  # noqa: SIM109  # the faster way
                    cost = 10 + (self._block_size + size >> 4)
                else:
                    cost = 4 if kind == RST_STREAM else 1
                if spent + cost > limit and (spent or not alone):
                    break
                spent += cost
                position = after
                if self._block is not None:
                    if kind != CONTINUATION:
                        raise ConnectionFailed(PROTOCOL_ERROR, "a header block was interrupted")
                elif self._settled:
                    self.whole += 1
                else:
                    self._settle(kind, flags)
                if kind < 10:
                    read_frame[kind](
                        self, flags, stream & LARGEST_WINDOW, data[start:after], events
                    )
                else:  # unknown kinds must be ignored
                    self._asks_nothing(1)
        finally:
            self.spent, self._want, self._position = spent, want, position
            self._have = end - position
            if not self._have:
                self._data = b""

    def _greet(self, data: bytes) -> None:
        if not data.startswith(PREFACE[: len(data)]):
            raise ConnectionFailed(PROTOCOL_ERROR, "this is not HTTP/2")

    def _settle(self, kind: int, flags: int) -> None:
        if kind != SETTINGS or flags & ACK:
            raise ConnectionFailed(PROTOCOL_ERROR, "the first frame is not SETTINGS")
        self._settled = True

    def acknowledge(self, stream: int, size: int) -> None:
        """Count `size` body bytes as consumed, and let the client send as many more."""
        of = self._streams.get(stream)
        if of is None or not of.receiving:
            return
        of.unacknowledged += size
        if of.unacknowledged >= HALF_STREAM_WINDOW:
            self.out.append(frame(WINDOW_UPDATE, 0, stream, LONG.pack(of.unacknowledged)))
            of.receivable += of.unacknowledged
            of.unacknowledged = 0

    def expect(self, stream: int, size: int) -> None:
        """Let the client send `size` bytes of a request's body beyond its regular window."""
        of = self._streams.get(stream)
        if of is not None and of.receiving:
            self.out.append(frame(WINDOW_UPDATE, 0, stream, LONG.pack(size)))
            of.receivable += size

    def _fail(self, stream: int, code: int, events: list[Event]) -> None:
        """Reset one stream because of the client's error on it; section 5.4.2."""
        self._asks_nothing(2)
        self._cut(stream, code)
        if stream in self._streams:
            self._forget(stream)
            events.append(Reset(stream))

    def _check_known(self, stream: int, what: str) -> None:
        if not 0 < stream <= self._last or stream % 2 == 0:
            raise ConnectionFailed(PROTOCOL_ERROR, f"{what} for a stream that was never opened")

    def _check_cut_off(self, stream: int, what: str) -> None:
        """Raise ConnectionFailed unless the client may not know yet that the stream has ended."""
        if stream in self._cut_off:
            return
        code = STREAM_CLOSED if stream in self._closed else PROTOCOL_ERROR
        raise ConnectionFailed(code, f"{what} for a stream that has ended or cannot exist")

    # Requests

    def _read_data(self, flags: int, stream: int, payload: bytes, events: list[Event]) -> None:
        # The connection's window never closes: the streams' windows bound the memory.
        size = len(payload)
        self._unacknowledged += size
        if self._unacknowledged >= HALF_CONNECTION_WINDOW:
            self.out.append(frame(WINDOW_UPDATE, 0, 0, LONG.pack(self._unacknowledged)))
            self._unacknowledged = 0
        if flags & PADDED:
            payload = without_padding(payload)
        if stream not in self._streams:
            self._check_known(stream, "data")
            self._check_cut_off(stream, "data")
            return
        of = self._streams[stream]
        if not of.receiving:
            self._fail(stream, STREAM_CLOSED, events)
            return
        of.receivable -= size
        if of.receivable < 0:
            self._fail(stream, FLOW_CONTROL_ERROR, events)
            return
        if flags & PADDED:
            self.acknowledge(stream, size - len(payload))
        if of.missing >= 0:
            of.missing -= len(payload)
            if of.missing < 0 or (of.missing and flags & END_STREAM):
                self._fail(stream, PROTOCOL_ERROR, events)
                return
        if flags & END_STREAM:
            of.receiving = False
            events.append(Received(stream, payload, True))
        elif payload:
            events.append(Received(stream, payload))
        else:
            self._asks_nothing(1)

    def _half_close(self, stream: int, of: Stream, events: list[Event]) -> None:
        of.receiving = False
        events.append(Received(stream, b"", True))

    def _headers(self, flags: int, stream: int, payload: bytes, events: list[Event]) -> None:
        if stream % 2 == 0:
            raise ConnectionFailed(PROTOCOL_ERROR, "headers of a stream that cannot exist")
        if flags & PADDED:
            payload = without_padding(payload)
        if flags & PRIORITISED:
            if len(payload) < 5:
                raise ConnectionFailed(FRAME_SIZE_ERROR, "a priority has 5 bytes")
            if LONG.unpack_from(payload)[0] & LARGEST_WINDOW != stream:
                flags &= ~PRIORITISED  # kept by a stream that depends on itself
            payload = payload[5:]
        if flags & END_HEADERS:
            self._block_complete(flags, stream, payload, events)
        else:
            self._block = _Block(stream, flags, [payload])
            self._block_size = len(payload)

    def _continuation(self, flags: int, stream: int, payload: bytes, events: list[Event]) -> None:
        if self._block is None or self._block.stream != stream:
            raise ConnectionFailed(PROTOCOL_ERROR, "CONTINUATION without a header block")
        self._asks_nothing(1)
        self._block_size += len(payload)
        if self._block_size > LONGEST_BLOCK:
            raise ConnectionFailed(ENHANCE_YOUR_CALM, "a header block is too long")
        if payload:
            self._block.parts.append(payload)
        if flags & END_HEADERS:
            block, self._block = self._block, None
            self._block_size = 0
            self._block_complete(block.flags, stream, b"".join(block.parts), events)

    def _block_complete(self, flags: int, stream: int, block: bytes, events: list[Event]) -> None:
        if stream in self._streams:
            of = self._streams[stream]
            fault = self._headers_of.trailers(block)
            if not of.receiving:
                self._fail(stream, STREAM_CLOSED, events)
            elif fault or not flags & END_STREAM or flags & PRIORITISED or of.missing > 0:
                self._fail(stream, PROTOCOL_ERROR, events)
            else:
                self._half_close(stream, of, events)
            return
        headers, fault, oversized, length = self._headers_of.head(block)
        if stream <= self._last:
            self._check_cut_off(stream, "headers")
            return
        self._last = stream
        if self._ending or len(self._streams) >= STREAMS:
            self._fail(stream, REFUSED_STREAM, events)
            return
        if fault or flags & PRIORITISED or (flags & END_STREAM and length > 0):
            self._fail(stream, PROTOCOL_ERROR, events)
            return
        of = self._streams[stream] = Stream(STREAM_WINDOW, length)
        events.append(Opened(stream, headers, oversized))
        if flags & END_STREAM:
            self._half_close(stream, of, events)

    # Other frames

    def _priority(self, flags: int, stream: int, payload: bytes, events: list[Event]) -> None:
        self._asks_nothing(1)
        if stream == 0:
            raise ConnectionFailed(PROTOCOL_ERROR, "PRIORITY without a stream")
        if len(payload) != 5:
            code = FRAME_SIZE_ERROR
        elif LONG.unpack_from(payload)[0] & LARGEST_WINDOW == stream:
            code = PROTOCOL_ERROR
        else:
            return
        if stream not in self._streams:
            raise ConnectionFailed(code, "PRIORITY is malformed")
        self._fail(stream, code, events)

    def _reset(self, flags: int, stream: int, payload: bytes, events: list[Event]) -> None:
        if len(payload) != 4:
            raise ConnectionFailed(FRAME_SIZE_ERROR, "RST_STREAM has 4 bytes")
        self._check_known(stream, "a reset")
        self._asks_nothing(2)
        if stream in self._streams:
            self._forget(stream)
            events.append(Reset(stream))

    def _settings(self, flags: int, stream: int, payload: bytes, events: list[Event]) -> None:
        self._asks_nothing(1)
        if stream:
            raise ConnectionFailed(PROTOCOL_ERROR, "SETTINGS of a stream")
        if flags & ACK and payload:
            raise ConnectionFailed(FRAME_SIZE_ERROR, "SETTINGS are malformed")
        if flags & ACK:
            return
        for name, value in settings_in(payload):
            if name == INITIAL_WINDOW_SIZE and self._set_first_window(value) > LARGEST_WINDOW:
                raise ConnectionFailed(FLOW_CONTROL_ERROR, "the first window is too large")
            if name == MAX_FRAME_SIZE:
                self._set_frame_size(value)
        self.out.append(frame(SETTINGS, ACK, 0))

    def _ping(self, flags: int, stream: int, payload: bytes, events: list[Event]) -> None:
        if stream:
            raise ConnectionFailed(PROTOCOL_ERROR, "PING of a stream")
        if len(payload) != 8:
            raise ConnectionFailed(FRAME_SIZE_ERROR, "PING has 8 bytes")
        self._asks_nothing(1)
        if not flags & ACK:
            self.out.append(frame(PING, ACK, 0, payload))

    def _window_update(self, flags: int, stream: int, payload: bytes, events: list[Event]) -> None:
        if len(payload) != 4:
            raise ConnectionFailed(FRAME_SIZE_ERROR, "WINDOW_UPDATE has 4 bytes")
        self._asks_nothing(1)
        more = LONG.unpack(payload)[0] & LARGEST_WINDOW
        if stream == 0:
            self._window += more
            if not more:
                raise ConnectionFailed(PROTOCOL_ERROR, "WINDOW_UPDATE of 0 bytes")
            if self._window > LARGEST_WINDOW:
                raise ConnectionFailed(FLOW_CONTROL_ERROR, "a window is too large")
        elif (of := self._streams.get(stream)) is None:
            self._check_known(stream, "WINDOW_UPDATE")
        elif not more:
            self._fail(stream, PROTOCOL_ERROR, events)
        elif self._widen(stream, of, more) > LARGEST_WINDOW:
            self._fail(stream, FLOW_CONTROL_ERROR, events)

    def _refused(self, flags: int, stream: int, payload: bytes, events: list[Event]) -> None:
        raise ConnectionFailed(PROTOCOL_ERROR, "a client must not push")

    def _going(self, flags: int, stream: int, payload: bytes, events: list[Event]) -> None:
        """GOAWAY: a client that leaves still takes its answers."""
        self._asks_nothing(1)
        if stream:
            raise ConnectionFailed(PROTOCOL_ERROR, "GOAWAY of a stream")
        if len(payload) < 8:
            raise ConnectionFailed(FRAME_SIZE_ERROR, "GOAWAY has 8 bytes and more")

    def go_away(self, code: int = NO_ERROR) -> None:
        """Refuse new requests; open ones continue."""
        self._ending = True
        self.out.append(frame(GOAWAY, 0, 0, LONG.pack(self._last) + LONG.pack(code)))

    # Plain functions: bound methods would be cycles, which only the garbage collector frees.
    _READ_FRAME: tuple[Callable[[Http2Connection, int, int, bytes, list[Event]], None], ...] = (
        _read_data,
        _headers,
        _priority,
        _reset,
        _settings,
        _refused,
        _ping,
        _going,
        _window_update,
        _continuation,
    )
