"""HTTP/2, server's half, without its sockets: bytes in, events and bytes out.

As much of it as gRPC needs: no push, no priorities, header blocks of ours uncompressed, those of
clients read by the package hpack. Bodies are held to both ends' flow control.
Source: RFC 9113 (HTTP/2), RFC 7541 (HPACK).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from farm.protocols.http2_frames import (
    ACK,
    COMPRESSION_ERROR,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FIRST_FRAME_SIZE,
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
    SETTING,
    SETTINGS,
    WINDOW_UPDATE,
    ConnectionFailed,
    frame,
    without_padding,
)

STREAMS = 4096
"""Requests of one connection at a time; a client waits with more."""

STREAM_WINDOW, CONNECTION_WINDOW = 4 << 20, 64 << 20
"""Bytes a client may send ahead: enough for a fast network, little beside what a body may be."""

FRAME_SIZE = 64 << 10
LONGEST_HEADERS = 64 << 10
"""Bytes of one block of headers, packed or not."""

BLOCKS_KEPT = 64
"""Blocks of headers remembered for one connection: a client sends the same again and again."""

Headers = dict[bytes, bytes]
"""By their names in lower case; of a repeated one the last counts."""


class Opened(NamedTuple):
    """A request begins."""

    stream: int
    headers: Headers


class Received(NamedTuple):
    """A part of its body."""

    stream: int
    data: bytes


class HalfClosed(NamedTuple):
    """The client has sent all."""

    stream: int


class Reset(NamedTuple):
    """The client wants no answer any more."""

    stream: int


class Drained(NamedTuple):
    """What waited for the client's leave to be sent has gone out."""

    stream: int


Event = Opened | Received | HalfClosed | Reset | Drained


class _Stream:
    """What is known of a request that is open on either side."""

    __slots__ = ("pending", "receiving", "unacknowledged", "window")

    def __init__(self, window: int) -> None:
        self.window = window  # bytes that may be sent
        self.receiving = True
        self.unacknowledged = 0
        self.pending: deque[tuple[bytes | memoryview, int]] = deque()  # payloads with their kinds


class Http2Connection:
    """One client's connection: `receive` what it sends, write what `take` gives."""

    def __init__(self) -> None:
        from hpack import Decoder

        self._decoder: Any = Decoder(max_header_list_size=LONGEST_HEADERS)
        self._blocks: dict[bytes, Headers] = {}
        # Receiving
        self._greeted = False
        self._rest = b""
        self._block: tuple[int, int, bytes] | None = (
            None  # headers that go on: stream, flags, bytes
        )
        self._streams: dict[int, _Stream] = {}
        self._waiting: dict[int, _Stream] = {}  # those with something that may not be sent yet
        self._last = 0
        self._unacknowledged = 0
        self._ending = False
        # Sending
        self._window = FIRST_WINDOW
        self._first_window = FIRST_WINDOW
        self._frame_size = FIRST_FRAME_SIZE
        settings = b"".join(
            SETTING.pack(*setting)
            for setting in (
                (MAX_CONCURRENT_STREAMS, STREAMS),
                (INITIAL_WINDOW_SIZE, STREAM_WINDOW),
                (MAX_FRAME_SIZE, FRAME_SIZE),
                (MAX_HEADER_LIST_SIZE, LONGEST_HEADERS),
            )
        )
        more = LONG.pack(CONNECTION_WINDOW - FIRST_WINDOW)
        self._out: list[bytes | memoryview] = [
            frame(SETTINGS, 0, 0, settings),
            frame(WINDOW_UPDATE, 0, 0, more),
        ]
        self._read_frame: tuple[Callable[[int, int, bytes, list[Event]], None], ...] = (
            self._data,
            self._headers,
            self._ignored,
            self._reset,
            self._settings,
            self._refused,
            self._ping,
            self._ignored,
            self._window_update,
            self._continuation,
        )

    def take(self) -> list[bytes | memoryview]:
        """What is to be sent now; taken away."""
        out, self._out = self._out, []
        return out

    @property
    def open_streams(self) -> int:
        """Requests that are not answered to their end."""
        return len(self._streams)

    # Receiving

    def receive(self, data: bytes) -> list[Event]:
        """What these bytes say. Raises ConnectionFailed; what goes before it is lost then."""
        if self._rest:
            data = self._rest + data
        position = 0
        if not self._greeted:
            if not data.startswith(PREFACE[: len(data)]):
                raise ConnectionFailed(PROTOCOL_ERROR, "this is not HTTP/2")
            if len(data) < len(PREFACE):
                self._rest = data
                return []
            self._greeted = True
            position = len(PREFACE)
        events: list[Event] = []
        end = len(data)
        while end - position >= 9:
            high, low, kind, flags, stream = HEAD.unpack_from(data, position)
            size = high << 8 | low
            if size > FRAME_SIZE:
                raise ConnectionFailed(FRAME_SIZE_ERROR, f"a frame has {size} bytes")
            after = position + 9 + size
            if after > end:
                break
            if self._block is not None and kind != CONTINUATION:
                raise ConnectionFailed(PROTOCOL_ERROR, "headers were broken off")
            if kind < 10:  # others are to be ignored
                payload = data[position + 9 : after]
                self._read_frame[kind](flags, stream & LARGEST_WINDOW, payload, events)
            position = after
        self._rest = data[position:]
        return events

    def acknowledge(self, stream: int, size: int) -> None:
        """`size` bytes of a request's body are used up: the client may send as many more."""
        of = self._streams.get(stream)
        if of is None or not of.receiving:
            return
        of.unacknowledged += size
        if of.unacknowledged >= STREAM_WINDOW // 2:
            self._out.append(frame(WINDOW_UPDATE, 0, stream, LONG.pack(of.unacknowledged)))
            of.unacknowledged = 0

    def _data(self, flags: int, stream: int, payload: bytes, events: list[Event]) -> None:
        # All that comes counts for the connection, also what is for nobody any more.
        size = len(payload)
        self._unacknowledged += size
        if self._unacknowledged >= CONNECTION_WINDOW // 2:
            self._out.append(frame(WINDOW_UPDATE, 0, 0, LONG.pack(self._unacknowledged)))
            self._unacknowledged = 0
        of = self._streams.get(stream)
        if of is None or not of.receiving:
            if stream > self._last or stream % 2 == 0:
                raise ConnectionFailed(PROTOCOL_ERROR, "data for a stream that was never opened")
            return
        if flags & PADDED:
            payload = without_padding(payload)
            self.acknowledge(stream, size - len(payload))
        if payload:
            events.append(Received(stream, payload))
        if flags & END_STREAM:
            of.receiving = False
            events.append(HalfClosed(stream))

    def _headers(self, flags: int, stream: int, payload: bytes, events: list[Event]) -> None:
        if flags & PADDED:
            payload = without_padding(payload)
        if flags & PRIORITISED:
            payload = payload[5:]
        if flags & END_HEADERS:
            self._block_complete(flags, stream, payload, events)
        else:
            self._block = (stream, flags, payload)

    def _continuation(self, flags: int, stream: int, payload: bytes, events: list[Event]) -> None:
        if self._block is None or self._block[0] != stream:
            raise ConnectionFailed(PROTOCOL_ERROR, "a continuation of nothing")
        _, first_flags, block = self._block
        block += payload
        if len(block) > LONGEST_HEADERS or not (payload or flags & END_HEADERS):
            raise ConnectionFailed(ENHANCE_YOUR_CALM, "headers without end")
        self._block = (stream, first_flags, block)
        if flags & END_HEADERS:
            self._block = None
            self._block_complete(first_flags, stream, block, events)

    def _block_complete(self, flags: int, stream: int, block: bytes, events: list[Event]) -> None:
        headers = self._blocks.get(block)
        if headers is None:
            headers = self._decoded(block)
        of = self._streams.get(stream)
        if of is not None and of.receiving and flags & END_STREAM:  # trailers, which say nothing
            of.receiving = False
            events.append(HalfClosed(stream))
            return
        if stream % 2 == 0 or of is not None:
            raise ConnectionFailed(PROTOCOL_ERROR, "headers of a stream that cannot be")
        if stream <= self._last:
            return  # one that we have closed, as its client will learn
        if self._ending or len(self._streams) >= STREAMS:
            self._out.append(frame(RST_STREAM, 0, stream, LONG.pack(REFUSED_STREAM)))
            self._last = stream
            return
        self._last = stream
        of = self._streams[stream] = _Stream(self._first_window)
        events.append(Opened(stream, headers))
        if flags & END_STREAM:
            of.receiving = False
            events.append(HalfClosed(stream))

    def _decoded(self, block: bytes) -> Headers:
        try:
            headers: Headers = dict(self._decoder.decode(block, raw=True))
        except Exception as error:  # of hpack and of what it does not foresee
            raise ConnectionFailed(COMPRESSION_ERROR, f"headers: {error}") from None
        if all(byte & 0x80 for byte in block):
            # All from the tables, which it leaves as they are: it means the same next time.
            if len(self._blocks) < BLOCKS_KEPT:
                self._blocks[block] = headers
        else:
            self._blocks.clear()
        return headers

    def _reset(self, flags: int, stream: int, payload: bytes, events: list[Event]) -> None:
        if len(payload) != 4:
            raise ConnectionFailed(FRAME_SIZE_ERROR, "RST_STREAM has 4 bytes")
        if stream > self._last or stream == 0:
            raise ConnectionFailed(PROTOCOL_ERROR, "a reset of a stream that was never opened")
        if self._streams.pop(stream, None) is not None:
            self._waiting.pop(stream, None)
            events.append(Reset(stream))

    def _settings(self, flags: int, stream: int, payload: bytes, events: list[Event]) -> None:
        if stream or len(payload) % 6 or (flags & ACK and payload):
            raise ConnectionFailed(FRAME_SIZE_ERROR, "SETTINGS are malformed")
        if flags & ACK:
            return
        for name, value in SETTING.iter_unpack(payload):
            if name == INITIAL_WINDOW_SIZE:
                if value > LARGEST_WINDOW:
                    raise ConnectionFailed(FLOW_CONTROL_ERROR, "the first window is too large")
                for of in self._streams.values():
                    of.window += value - self._first_window
                self._first_window = value
            elif name == MAX_FRAME_SIZE:
                if not FIRST_FRAME_SIZE <= value < 1 << 24:
                    raise ConnectionFailed(PROTOCOL_ERROR, f"a frame size of {value}")
                self._frame_size = value
        self._out.append(frame(SETTINGS, ACK, 0))
        self._flush(events)

    def _ping(self, flags: int, stream: int, payload: bytes, events: list[Event]) -> None:
        if stream or len(payload) != 8:
            raise ConnectionFailed(FRAME_SIZE_ERROR, "PING has 8 bytes")
        if not flags & ACK:
            self._out.append(frame(PING, ACK, 0, payload))

    def _window_update(self, flags: int, stream: int, payload: bytes, events: list[Event]) -> None:
        if len(payload) != 4:
            raise ConnectionFailed(FRAME_SIZE_ERROR, "WINDOW_UPDATE has 4 bytes")
        more = LONG.unpack(payload)[0] & LARGEST_WINDOW
        if not more:
            raise ConnectionFailed(PROTOCOL_ERROR, "WINDOW_UPDATE of nothing")
        of = self._streams.get(stream)
        if stream == 0:
            self._window += more
            window = self._window
        elif of is not None:
            of.window += more
            window = of.window
        else:
            return
        if window > LARGEST_WINDOW:
            raise ConnectionFailed(FLOW_CONTROL_ERROR, "a window is too large")
        if stream == 0:
            self._flush(events)
        elif stream in self._waiting:
            self._flush_stream(stream, events)

    def _refused(self, flags: int, stream: int, payload: bytes, events: list[Event]) -> None:
        raise ConnectionFailed(PROTOCOL_ERROR, "clients push nothing")

    def _ignored(self, flags: int, stream: int, payload: bytes, events: list[Event]) -> None:
        """PRIORITY, and GOAWAY: who leaves takes its answers before."""

    # Sending

    def send_headers(self, stream: int, block: bytes) -> None:
        """The headers of an answer."""
        if stream in self._streams:
            self._out.append(frame(HEADERS, END_HEADERS, stream, block))

    def send_data(self, stream: int, data: bytes) -> bool:
        """A part of its body, as soon as the client lets it; whether that is now."""
        of = self._streams.get(stream)
        if of is None:
            return True
        size = len(data)
        if not of.pending and size <= min(of.window, self._window, self._frame_size):
            of.window -= size  # nearly always
            self._window -= size
            self._out.append(frame(DATA, 0, stream, data))
            return True
        of.pending.append((memoryview(data), DATA))
        self._send_pending(stream, of)
        return not of.pending

    def end(self, stream: int, block: bytes) -> None:
        """The end of an answer, with trailers, or without headers before with all it says."""
        of = self._streams.get(stream)
        if of is None:
            return
        of.pending.append((block, HEADERS))
        self._send_pending(stream, of)

    def go_away(self, code: int = NO_ERROR) -> None:
        """Take no new requests; those that are open go on."""
        self._ending = True
        self._out.append(frame(GOAWAY, 0, 0, LONG.pack(self._last) + LONG.pack(code)))

    def _flush(self, events: list[Event]) -> None:
        for stream in list(self._waiting):
            self._flush_stream(stream, events)

    def _flush_stream(self, stream: int, events: list[Event]) -> None:
        self._send_pending(stream, self._waiting[stream])
        if stream not in self._waiting and stream in self._streams:
            events.append(Drained(stream))

    def _send_pending(self, stream: int, of: _Stream) -> None:
        pending = of.pending
        while pending:
            payload, kind = pending[0]
            if kind == HEADERS:
                pending.popleft()
                self._finish(stream, of, bytes(payload))
                return
            most = min(of.window, self._window, self._frame_size)
            size = len(payload)
            if most <= 0 and size:
                self._waiting[stream] = of
                return
            part = payload[:most]
            of.window -= len(part)
            self._window -= len(part)
            self._out.append(HEAD.pack(len(part) >> 8, len(part) & 0xFF, DATA, 0, stream))
            self._out.append(part)
            if size > most:
                pending[0] = (payload[most:], DATA)
            else:
                pending.popleft()
        self._waiting.pop(stream, None)

    def _finish(self, stream: int, of: _Stream, block: bytes) -> None:
        self._out.append(frame(HEADERS, END_HEADERS | END_STREAM, stream, block))
        if of.receiving:  # what it still sends is for nobody; section 8.1
            self._out.append(frame(RST_STREAM, 0, stream, LONG.pack(NO_ERROR)))
        del self._streams[stream]
        self._waiting.pop(stream, None)
