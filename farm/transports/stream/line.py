"""One ordered line of messages over a connected stream socket, used at both ends.

A message is a sequence of frames. Before each frame come 8 bytes, little-endian: its length, and in
the highest bit whether another frame of the same message follows.
"""

from __future__ import annotations

import itertools
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence

import numpy as np

from farm.call import Buffer

READ_AHEAD = 64 * 1024
"""Bytes per read; one read returns many small messages."""

MOST_SPARE = 16
"""Read buffers kept for the next lines that read. A line has one only while it holds a part of a
message, so that thousands of idle lines share a few.
"""

LARGE = 32 * 1024
"""A larger frame is received directly into its own memory, without another copy."""

WRITE_AT_ONCE = 1024**2
"""Bytes written before other lines have their turn."""

LONGEST_FRAME = 1 << 32
"""A larger announced frame means that the peer does not send farm's messages."""

MOST_FRAMES = 1 << 16
"""Maximum number of frames in a message, for the same reason; a frame is one large array."""

_HEAD = struct.Struct("<Q")
_MORE = 1 << 63
_PARTS_AT_ONCE = 512  # sendmsg takes 1024 (IOV_MAX)
_NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)
UNLIMITED = 1 << 62
_NO_BUFFER = memoryview(b"")
_spare: deque[memoryview] = deque(maxlen=MOST_SPARE)  # of all threads: its methods are atomic


class StreamLine:
    """A line to one peer. For one thread at a time; it never waits, except in `flush`.

    Bytes written survive the death of this process. `queued` holds bytes for which the peer's
    socket had no room; `flush` or `write_some` writes them later. `drained`: the last message was
    all that had arrived.
    """

    may_come_back = False

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        if hasattr(socket, "SO_NOSIGPIPE"):  # macOS
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_NOSIGPIPE, 1)
        self._socket = connected
        # Reading: bytes from `_begin` to `_end` of the buffer are not parsed yet.
        self._view = _NO_BUFFER
        self._begin = self._end = 0
        self._frames: list[Buffer] = []
        self._rest = _NO_BUFFER  # of the last frame, if it is large: the part that has not come
        self._more = False  # another frame follows the last one
        self._may_read = UNLIMITED
        self._is_empty = self.drained = False
        self._over = False
        # Writing
        self._queue: deque[memoryview] = deque()
        self.queued = 0
        self._refuses = False

    def fileno(self) -> int:
        """Return the descriptor: readable when there is something to do; -1 once closed."""
        return self._socket.fileno()

    # Reading

    def receive(self, most: int | None = None) -> list[Buffer] | None:
        """Return the frames of the next message; None if there is none now.

        most: look for more, and read so many bytes until this is given again; unread data keeps
        `fileno` readable. Small frames are bytes; large ones memory that the receiver may modify.
        """
        if most is not None:
            self._may_read, self._is_empty = most, False
        while (self._begin == self._end and not self._frames) or not self._parsed():
            if not self._read():
                return None
        frames, self._frames = self._frames, []
        self.drained = self._is_empty and self._begin == self._end
        if self.drained and self._view:  # as `_share_buffer` does
            _spare.append(self._view)
            self._view = _NO_BUFFER
            self._begin = self._end = 0
        return frames

    def _parsed(self) -> bool:
        """Parse the message as far as its bytes have arrived; return whether it is complete."""
        while not self._rest:
            if self._frames:
                if not self._more:
                    return True
                if len(self._frames) >= MOST_FRAMES:
                    self._give_up()
            at, have = self._begin + 8, self._end - self._begin - 8
            if have < 0:
                return False
            (head,) = _HEAD.unpack_from(self._view, self._begin)
            length = head & ~_MORE
            if length > LARGE:
                self._begin_large(length, at, min(have, length))
            elif have < length:
                return False
            else:
                self._frames += (bytes(self._view[at : at + length]),)
                self._begin = at + length
            self._more = head != length
        return False

    def _begin_large(self, length: int, at: int, have: int) -> None:
        if length > LONGEST_FRAME:
            self._give_up()
            return
        try:
            frame = np.empty(length, np.uint8).data
        except MemoryError:
            self._give_up()
            return
        frame[:have] = self._view[at : at + have]
        self._begin = at + have
        self._frames.append(frame)
        self._rest = frame[have:] or _NO_BUFFER  # an empty part would keep the frame in memory

    def _give_up(self) -> None:
        """Stop reading: the bytes are not a message, or the message is too large."""
        self._over = True
        self._end = self._begin
        self._frames = []

    def _read(self) -> bool:
        """Read once; False if there is nothing to read, or no more is allowed for now."""
        if self._is_empty:  # the last read returned less than it had room for
            self._is_empty = False
            self._share_buffer()
            return False
        if self._over or self._may_read <= 0:
            return False
        if self._rest:
            into = self._rest
        else:
            if not self._view:
                try:
                    self._view = _spare.pop()
                except IndexError:
                    self._view = memoryview(bytearray(READ_AHEAD))
            rest = self._end - self._begin
            if self._begin:
                self._view[:rest] = self._view[self._begin : self._end]
                self._begin, self._end = 0, rest
            into = self._view[rest:]
        room = len(into)
        if room > self._may_read:
            room = self._may_read
            into = into[:room]
        try:
            count = self._socket.recv_into(into)
        except BlockingIOError:
            self._share_buffer()
            return False
        except OSError:  # reset, or closed at this end
            count = 0
        if not count:
            self._over = True
            return False
        self._is_empty = count < room
        self._may_read -= count
        if self._rest:
            self._rest = self._rest[count:] or _NO_BUFFER
        else:
            self._end += count
        return True

    def _share_buffer(self) -> None:
        """Let another line use the buffer, unless it holds a part of a message."""
        if self._begin == self._end and self._view:
            _spare.append(self._view)
            self._view = _NO_BUFFER
            self._begin = self._end = 0

    def ended(self) -> bool:
        """Whether the peer is gone; call it after `receive` returned None, to lose no message."""
        return self._over

    broken = ended  # the line does not come back

    def came_back(self) -> bool:
        """Return False: a line that has ended stays so."""
        return False

    # Writing

    def send(self, frames: Sequence[Buffer]) -> bool:
        """Send a message; False if the peer is gone."""
        if self._refuses:
            return False
        *others, last = frames
        length = len(last)
        size = 8 + length
        parts: list[Buffer] = []
        for frame in others:
            parts += _HEAD.pack(len(frame) | _MORE), frame
            size += 8 + len(frame)
        parts += _HEAD.pack(length), last
        if self._queue:
            self._leave(parts, size, 0)
            return True
        if size > WRITE_AT_ONCE or (others and len(parts) > _PARTS_AT_ONCE):
            self._leave(parts, size, 0)
            return self.write_some()
        try:
            sent = self._socket.sendmsg(parts, (), _NO_SIGNAL)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._refuses = True
            return False
        if sent < size:
            self._leave(parts, size, sent)
        return True

    def _leave(self, parts: Sequence[Buffer], size: int, sent: int) -> None:
        self.queued += size - sent
        for part in parts:
            if sent >= len(part):
                sent -= len(part)
            else:
                self._queue.append(memoryview(part)[sent:])
                sent = 0

    def write_some(self) -> bool:
        """Write queued bytes while there is room, 1 MiB at most; False if the peer is gone."""
        parts: list[memoryview] = []
        room = WRITE_AT_ONCE
        for part in itertools.islice(self._queue, _PARTS_AT_ONCE):
            parts.append(part[:room])
            room -= len(parts[-1])
            if not room:
                break
        try:
            sent = self._socket.sendmsg(parts, (), _NO_SIGNAL)
        except BlockingIOError:
            return True
        except OSError:
            self._refuses = True
            self._queue.clear()
            self.queued = 0
            return False
        self.queued -= sent
        while sent:
            part = self._queue.popleft()
            if sent < len(part):
                self._queue.appendleft(part[sent:])
                break
            sent -= len(part)
        return True

    def flush(self, timeout_s: float) -> bool:
        """Wait until all messages have left this process; return False on timeout."""
        if not self._queue:
            return not self._refuses
        end = time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        while self._queue and self.write_some() and self._queue:
            left_s = end - time.monotonic()
            if not poll.poll(max(0, int(1000 * left_s))) and left_s <= 0:
                return False
        return not self._refuses

    def close(self) -> None:
        """Close the socket; the peer can still read what was written."""
        self._socket.close()
        self._over = self._refuses = True
        self._queue.clear()
        self.queued = 0
