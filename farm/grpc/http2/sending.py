"""The sending half of HTTP/2: answers, within the client's flow-control windows.

Streams that cannot send are kept apart: a frame that opens the connection's window, or the windows
of all streams at once, costs the same however many streams wait. Source: RFC 9113 sections 5.2 and
6.9.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import NamedTuple

from farm.grpc.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FIRST_FRAME_SIZE,
    FIRST_WINDOW,
    HEAD,
    HEADERS,
    LARGEST_WINDOW,
    LONG,
    MESSAGE,
    NO_ERROR,
    PREFIX,
    RST_STREAM,
    ConnectionFailed,
    frame,
)

STREAMS = 4096
"""Concurrent requests of one connection; a client delays further ones."""

AT_ONCE = 64
"""Frames of one stream that are sent before the next stream's turn."""

LARGEST_SENT = 64 << 10
"""Largest frame that is sent, in bytes, even if the client accepts larger ones."""

PER_STREAM = 8
"""Units of work to continue an answer, in addition to its frames: its writer is woken."""

TIMEOUTS = 10_000
"""Frames without content, and resets, which count 2, before a client that sends only these is
disconnected.

A client that cancels as many calls as it may have open stays below it.
"""

PER_SECOND = 100
"""Patience that a connection regains per second, up to TIMEOUTS."""

PER_MESSAGE, PER_ANSWER, MORE_PER = 4, 2, 4096
"""Patience regained for each message sent, for each answer ended, and for this many bytes sent. A
client updates windows and measures round trips as often as it receives something."""


@dataclass(slots=True)
class Received:
    """A part of a request's body. ended: it is the last one, which may be empty."""

    stream: int
    data: bytes
    ended: bool = False


class Reset(NamedTuple):
    """The client no longer wants the answer, or its stream has failed."""

    stream: int


class Drained(NamedTuple):
    """All data that waited for a window has been sent."""

    stream: int


class Stream:
    """A request that is open on either side.

    window: bytes that may be sent in addition to the initial window, which is the same for all
    streams; receivable: bytes that the client may send; missing: bytes left of its content-length,
    or -1.
    """

    __slots__ = ("missing", "pending", "receivable", "receiving", "unacknowledged", "window")

    def __init__(self, receivable: int, missing: int) -> None:
        self.window = 0
        self.receivable = receivable
        self.receiving = True
        self.unacknowledged = 0
        self.missing = missing
        self.pending: deque[tuple[bytes | memoryview, int]] = deque()  # payloads and frame types


class Sending:
    """Answers of one connection: pass them to `send_*` and `end`, write the bytes from `take`."""

    def __init__(self) -> None:
        self._streams: dict[int, Stream] = {}
        self.ready: OrderedDict[int, Stream] = OrderedDict()  # can send when their turn comes
        self._blocked: OrderedDict[int, Stream] = OrderedDict()  # wait for their own windows
        self._closed: deque[int] = deque(maxlen=100)  # the last streams that ended
        self._cut_off: OrderedDict[int, None] = OrderedDict()  # reset by us: more frames may arrive
        self._window = FIRST_WINDOW
        self._first_window = FIRST_WINDOW
        self._widest = 0  # upper bound of all streams' own windows
        self._frame_size = FIRST_FRAME_SIZE
        self._most = FIRST_FRAME_SIZE  # largest frame that may be sent now, in bytes
        self._timeouts = TIMEOUTS
        self.out: list[bytes | memoryview] = []
        """The bytes to send now."""

    def take(self) -> list[bytes | memoryview]:
        """Remove and return the bytes to send now."""
        out, self.out = self.out, []
        return out

    @property
    def open_streams(self) -> int:
        """Number of requests whose answers have not ended."""
        return len(self._streams)

    @property
    def can_send(self) -> bool:
        """Whether an answer can be sent as soon as its turn comes."""
        return bool(self.ready) and self._window > 0 and self._most > 0

    def grow_patient(self, seconds: float) -> None:
        """Restore the allowance for the time that has passed."""
        self._timeouts = min(self._timeouts + int(PER_SECOND * seconds), TIMEOUTS)

    def _asks_nothing(self, cost: int) -> None:
        """Count frames without a purpose. Raises ConnectionFailed after too many."""
        self._timeouts -= cost
        if self._timeouts < 0:
            raise ConnectionFailed(ENHANCE_YOUR_CALM, "too many frames that ask for nothing")

    def hold(self, held: bool) -> None:
        """Stop or resume sending bodies: the client does not read what was written."""
        self._most = 0 if held else self._frame_size

    def send_headers(self, stream: int, block: bytes) -> None:
        """Send the headers of an answer."""
        if stream in self._streams:
            self.out.append(frame(HEADERS, END_HEADERS, stream, block))

    def send_data(self, stream: int, data: bytes | memoryview) -> bool:
        """Send a part of its body when the window allows; return whether it was sent at once."""
        of = self._streams.get(stream)
        if of is None:
            return True
        size = len(data)
        if not of.pending:
            if size <= min(of.window + self._first_window, self._window, self._most):
                of.window -= size  # the usual case
                self._window -= size
                self._timeouts += PER_MESSAGE
                self.out.append(frame(DATA, 0, stream, bytes(data)))
                return True
            of.pending.append((memoryview(data), DATA))
            self._send_pending(stream, of)
        else:
            of.pending.append((memoryview(data), DATA))
        return not of.pending

    def answer(self, stream: int, headers: bytes, end: bytes, message: bytes) -> bool:
        """Send a whole answer of one gRPC message; False: it does not fit into the windows.

        headers, end: the frames before and after the message, of stream 0.
        """
        size = PREFIX + len(message)
        if stream not in self._streams or size > self._window or size > self._most:
            return False
        of = self._streams[stream]
        if of.pending or of.receiving or size > of.window + self._first_window:
            return False
        self._window -= size
        self._timeouts += PER_MESSAGE + PER_ANSWER
        data = MESSAGE.pack(size >> 8, size & 0xFF, DATA, 0, stream, 0, size - PREFIX)
        number = data[5:9]
        data = headers[:5] + number + headers[9:] + data + message
        self.out.append(data + (end[:5] + number + end[9:]))
        self._forget(stream)
        return True

    def end(self, stream: int, block: bytes) -> None:
        """End an answer with trailers; without headers before, the block is the whole answer.

        An empty block ends it without trailers.
        """
        of = self._streams.get(stream)
        if of is None:
            return
        if of.pending:
            of.pending.append((block, HEADERS))
        else:
            self._finish(stream, of, block)

    def flush(self, limit: int) -> tuple[int, list[Drained]]:
        """Send queued data in about `limit` units; return units used and drained streams."""
        used, drained = 0, []
        while self.can_send and used < limit:
            stream, of = self.ready.popitem(last=False)
            frames = self._send_pending(stream, of)
            self._timeouts -= not frames
            used += PER_STREAM + frames
            if not of.pending and stream in self._streams:
                drained.append(Drained(stream))
        return used, drained

    def _send_pending(self, stream: int, of: Stream) -> int:
        """Send what a stream may send that is in no queue; return the number of frames."""
        pending = of.pending
        for frames in range(AT_ONCE):
            payload, kind = pending[0]
            if kind == HEADERS:
                self._finish(stream, of, bytes(payload))
                return frames + 1
            most = min(of.window + self._first_window, self._window, self._most)
            if most <= 0:
                if of.window + self._first_window <= 0:
                    self._blocked[stream] = of
                else:
                    self.ready[stream] = of
                return frames
            part = payload[:most]
            size = len(part)
            of.window -= size
            self._window -= size
            self._timeouts += size // MORE_PER
            self.out.append(HEAD.pack(size >> 8, size & 0xFF, DATA, 0, stream))
            self.out.append(part)
            if len(payload) > most:
                pending[0] = (payload[most:], DATA)
                continue
            pending.popleft()
            self._timeouts += PER_MESSAGE
            if not pending:
                return frames + 1
        self.ready[stream] = of
        return AT_ONCE

    def _finish(self, stream: int, of: Stream, block: bytes) -> None:
        of.pending.clear()
        self._timeouts += PER_ANSWER
        if block:
            self.out.append(frame(HEADERS, END_HEADERS | END_STREAM, stream, block))
        else:
            self.out.append(frame(DATA, END_STREAM, stream))
        if of.receiving:  # the rest of its request is not needed; section 8.1
            self._cut(stream, NO_ERROR)
        self._forget(stream)

    def _forget(self, stream: int) -> None:
        del self._streams[stream]
        self._closed.append(stream)
        if self.ready or self._blocked:
            self.ready.pop(stream, None)
            self._blocked.pop(stream, None)

    def _cut(self, stream: int, code: int) -> None:
        """Reset a stream; frames that the client sent before it knows are ignored."""
        self.out.append(frame(RST_STREAM, 0, stream, LONG.pack(code)))
        self._cut_off[stream] = None
        if len(self._cut_off) > STREAMS:  # a client can have no more open
            self._cut_off.popitem(last=False)

    # The client's windows

    def _widen(self, stream: int, of: Stream, more: int) -> int:
        """Enlarge one stream's window and return it."""
        of.window += more
        self._widest = max(self._widest, of.window)
        window = of.window + self._first_window
        if window > 0 and self._blocked.pop(stream, None) is not None:
            self.ready[stream] = of
        return window

    def _set_first_window(self, size: int) -> int:
        """Change the initial window of all streams, also open ones; return the largest window."""
        if size > self._first_window and self._blocked:
            self.ready.update(self._blocked)
            self._blocked.clear()
        self._first_window = size
        if self._widest + size > LARGEST_WINDOW:  # the widest stream may have sent since
            self._widest = max([0, *(of.window for of in self._streams.values())])
        return self._widest + size

    def _set_frame_size(self, size: int) -> None:
        self._frame_size = min(size, LARGEST_SENT)
        if self._most:
            self._most = self._frame_size
