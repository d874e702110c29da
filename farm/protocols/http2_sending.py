"""HTTP/2, the half that sends: answers, held to the client's windows.

What waits for a window is found without looking at streams that cannot go on: a frame that opens
the connection's window, or all streams' windows at once, costs the same however many wait.
Source: RFC 9113 sections 5.2 and 6.9.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import NamedTuple

from farm.protocols.http2_frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FIRST_FRAME_SIZE,
    FIRST_WINDOW,
    HEAD,
    HEADERS,
    LARGEST_WINDOW,
    LONG,
    NO_ERROR,
    RST_STREAM,
    frame,
)

STREAMS = 4096
"""Requests of one connection at a time; a client waits with more."""

AT_ONCE = 64
"""Frames of one stream that are sent before it is the next one's turn."""

LARGEST_SENT = 64 << 10
"""Bytes of one frame of ours, also where the client would take more."""

PER_STREAM = 8
"""Units of work of an answer that may go on, beside its frames: who writes it is woken."""

PATIENCE = 10_000
"""Frames that carry nothing, and resets at 2 each, before a client that sends only them has to go.

A client that cancels as many calls as it may have open stays within it.
"""

PER_MESSAGE, PER_ANSWER, MORE_PER = 4, 2, 4096
"""What patience grows by: with each message that was sent, and answer that has ended, and these
bytes. A client tells of windows and measures round trips as often as it is sent something."""


class Received(NamedTuple):
    """A part of a request's body."""

    stream: int
    data: bytes


class HalfClosed(NamedTuple):
    """The client has sent all."""

    stream: int


class Reset(NamedTuple):
    """The client wants no answer any more, or may not have one."""

    stream: int


class Drained(NamedTuple):
    """What waited for the client's leave to be sent has gone out."""

    stream: int


class Stream:
    """A request that is open on either side.

    window: bytes that may be sent, beside the first window, which is the same for all streams;
    receivable: bytes that the client may send; missing: of its content-length, or -1.
    """

    __slots__ = ("missing", "pending", "receivable", "receiving", "unacknowledged", "window")

    def __init__(self, receivable: int, missing: int) -> None:
        self.window = 0
        self.receivable = receivable
        self.receiving = True
        self.unacknowledged = 0
        self.missing = missing
        self.pending: deque[tuple[bytes | memoryview, int]] = deque()  # payloads with their kinds


class Sending:
    """Answers of one connection: `send_*` and `end` them, write what `take` gives."""

    def __init__(self) -> None:
        self._streams: dict[int, Stream] = {}
        self._ready: OrderedDict[int, Stream] = OrderedDict()  # could send, had it a turn
        self._blocked: OrderedDict[int, Stream] = OrderedDict()  # wait for their own windows
        self._closed: deque[int] = deque(maxlen=100)  # the last streams that ended
        self._cut_off: OrderedDict[int, None] = OrderedDict()  # those we reset: more may come
        self._window = FIRST_WINDOW
        self._first_window = FIRST_WINDOW
        self._widest = 0  # no stream's own window is larger
        self._frame_size = FIRST_FRAME_SIZE
        self._most = FIRST_FRAME_SIZE  # bytes of a frame that may be sent now
        self._patience = PATIENCE
        self._out: list[bytes | memoryview] = []

    def take(self) -> list[bytes | memoryview]:
        """What is to be sent now; taken away."""
        out, self._out = self._out, []
        return out

    @property
    def open_streams(self) -> int:
        """Requests that are not answered to their end."""
        return len(self._streams)

    @property
    def can_send(self) -> bool:
        """Whether an answer waits for its turn, and for nothing else."""
        return bool(self._ready) and self._window > 0 and self._most > 0

    def hold(self, held: bool) -> None:
        """Send no bodies, or go on: the client does not read what was written."""
        self._most = 0 if held else self._frame_size

    def send_headers(self, stream: int, block: bytes) -> None:
        """The headers of an answer."""
        if stream in self._streams:
            self._out.append(frame(HEADERS, END_HEADERS, stream, block))

    def send_data(self, stream: int, data: bytes | memoryview) -> bool:
        """A part of its body, as soon as the client lets it; whether that is now."""
        of = self._streams.get(stream)
        if of is None:
            return True
        size = len(data)
        if not of.pending:
            if size <= min(of.window + self._first_window, self._window, self._most):
                of.window -= size  # nearly always
                self._window -= size
                self._patience += PER_MESSAGE
                self._out.append(frame(DATA, 0, stream, bytes(data)))
                return True
            of.pending.append((memoryview(data), DATA))
            self._send_pending(stream, of)
        else:
            of.pending.append((memoryview(data), DATA))
        return not of.pending

    def end(self, stream: int, block: bytes) -> None:
        """The end of an answer, with trailers, or without headers before with all it says.

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
        """Send what waits, in about `limit` units of work; those it took, and what has all gone."""
        used, drained = 0, []
        while self.can_send and used < limit:
            stream, of = self._ready.popitem(last=False)
            frames = self._send_pending(stream, of)
            self._patience -= not frames
            used += PER_STREAM + frames
            if not of.pending and stream in self._streams:
                drained.append(Drained(stream))
        return used, drained

    def _send_pending(self, stream: int, of: Stream) -> int:
        """Send what may be sent of one stream that is in no line; gives the frames it took."""
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
                    self._ready[stream] = of
                return frames
            part = payload[:most]
            size = len(part)
            of.window -= size
            self._window -= size
            self._patience += size // MORE_PER
            self._out.append(HEAD.pack(size >> 8, size & 0xFF, DATA, 0, stream))
            self._out.append(part)
            if len(payload) > most:
                pending[0] = (payload[most:], DATA)
                continue
            pending.popleft()
            self._patience += PER_MESSAGE
            if not pending:
                return frames + 1
        self._ready[stream] = of
        return AT_ONCE

    def _finish(self, stream: int, of: Stream, block: bytes) -> None:
        of.pending.clear()
        self._patience += PER_ANSWER
        if block:
            self._out.append(frame(HEADERS, END_HEADERS | END_STREAM, stream, block))
        else:
            self._out.append(frame(DATA, END_STREAM, stream))
        if of.receiving:  # what it still sends is for nobody; section 8.1
            self._cut(stream, NO_ERROR)
        self._forget(stream)

    def _forget(self, stream: int) -> None:
        del self._streams[stream]
        self._closed.append(stream)
        if self._ready or self._blocked:
            self._ready.pop(stream, None)
            self._blocked.pop(stream, None)

    def _cut(self, stream: int, code: int) -> None:
        """Tell the client that a stream is over; what it sent before it hears of it is ignored."""
        self._out.append(frame(RST_STREAM, 0, stream, LONG.pack(code)))
        self._cut_off[stream] = None
        if len(self._cut_off) > STREAMS:  # a client has no more that it has not heard of
            self._cut_off.popitem(last=False)

    # What the client says about its windows

    def _widen(self, stream: int, of: Stream, more: int) -> int:
        """One stream may send more. Gives its window."""
        of.window += more
        self._widest = max(self._widest, of.window)
        window = of.window + self._first_window
        if window > 0 and self._blocked.pop(stream, None) is not None:
            self._ready[stream] = of
        return window

    def _set_first_window(self, size: int) -> int:
        """Another first window for all streams, also open ones. Gives the largest window."""
        if size > self._first_window and self._blocked:
            self._ready.update(self._blocked)
            self._blocked.clear()
        self._first_window = size
        if self._widest + size > LARGEST_WINDOW:  # unless it was that of a stream that has sent
            self._widest = max([0, *(of.window for of in self._streams.values())])
        return self._widest + size

    def _set_frame_size(self, size: int) -> None:
        self._frame_size = min(size, LARGEST_SENT)
        if self._most:
            self._most = self._frame_size
