"""The messages of a gRPC call: memory for long ones, and their decompression in a thread."""

from __future__ import annotations

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from farm.bodies.body import Body, HeldBody
from farm.bodies.held import FREE_BYTES, Share
from farm.grpc.messages import LONG, GrpcFailure, Messages, Packed, PackedLong

if TYPE_CHECKING:
    from farm.grpc.connection import GrpcConnection

STRAIGHT = 4
"""Messages of a stream that are handled without a break; then the stream waits for its turn."""

MOST_EXPECTED = 1 << 30
"""Bytes of one message that a client may send unacknowledged: windows end at 2 GiB."""

Message = bytes | HeldBody | Packed | PackedLong


class MessageRoom:
    """Memory for the long message of a call; until it is granted, the client may send little."""

    __slots__ = ("_expected", "_line", "_share", "_stream", "_unacknowledged")

    def __init__(self, line: GrpcConnection, stream: int) -> None:
        self._line = line
        self._stream = stream
        self._share: Share | None = None
        self._unacknowledged = 0
        self._expected = 0  # bytes that the client may send before they are acknowledged

    @property
    def is_waiting(self) -> bool:
        """Whether the client has to wait for memory."""
        return self._share is not None and not self._share.granted

    def ask(self, size: int) -> None:
        """Reserve memory for a message of `size` bytes; -1: its size is not known yet."""
        if size > FREE_BYTES and self._share is None:
            self._share = self._line.served.held.reserve(size, self._grant)
            if self._share.granted:
                self._grant()

    def _grant(self) -> None:
        if self._share is not None:
            self._expected = min(self._share.size, MOST_EXPECTED)
            self._line.http2.expect(self._stream, self._expected)
            self.acknowledge(0)
            self._line.flush_soon()

    def acknowledge(self, size: int) -> None:
        """Count bytes as consumed, and acknowledge them unless memory is missing."""
        self._unacknowledged += size
        if self.is_waiting:
            return
        ahead = min(self._expected, self._unacknowledged)
        self._expected -= ahead
        self._line.http2.acknowledge(self._stream, self._unacknowledged - ahead)
        self._unacknowledged = 0

    def settle(self) -> None:
        """The message is complete: count its memory, whether it was granted or not."""
        if self._share is not None and not self._share.granted:
            self._share.release()
            self._share = self._line.served.held.hold(self._share.size)

    def release(self) -> None:
        """Free the memory of the message."""
        if self._share is not None:
            self._share.release()
            self._share = None


class CallMessages:
    """Iterates over the messages of a call that sends several."""

    def __init__(self, line: GrpcConnection, messages: Messages, room: MessageRoom) -> None:
        self._line = line
        self._messages = messages
        self._room = room
        self._more = asyncio.Event()
        self._ended = False
        self._partly = 0  # bytes received and not acknowledged
        self._straight = 0  # messages taken since the last wait

    def received(self, size: int, whole: bool) -> None:
        """Bytes have arrived; whole: they complete a message."""
        self._partly += size
        if whole:
            self._more.set()
        else:
            self._room.ask(self._messages.size)
            self._acknowledge()  # a message may be longer than the window

    def end(self) -> None:
        """No more messages follow. Raises GrpcFailure."""
        self._messages.end()
        self._ended = True
        self._more.set()

    def __aiter__(self) -> CallMessages:
        return self

    async def __anext__(self) -> Body:
        if self._straight >= STRAIGHT:
            self._straight = 0
            await self._line.turn()
        while (message := self._messages.next()) is None:
            self._room.ask(self._messages.size)
            self._acknowledge()
            if self._ended:
                self._messages.end()
                raise StopAsyncIteration
            self._straight = 0
            self._more.clear()
            await self._more.wait()
        self._straight += 1
        self._room.release()  # the method that takes a message accounts for its memory
        return await unpacked(message)

    def _acknowledge(self) -> None:
        # Grant the client more bytes only as messages are taken.
        self._room.acknowledge(self._partly)
        self._partly = 0
        self._line.flush_soon()


class CallBody:
    """The body of a call that arrives in parts: of one message, or of several."""

    def __init__(self, line: GrpcConnection, stream: int, encoding: bytes) -> None:
        self._messages = Messages(encoding, line.served.limit)
        self._room = MessageRoom(line, stream)
        self._several: CallMessages | None = None
        self._progress = math.inf  # bytes since the last look; infinite if it missed none

    def several(self, line: GrpcConnection) -> CallMessages:
        """Return the messages, for a method that takes several."""
        self._several = CallMessages(line, self._messages, self._room)
        return self._several

    def received(self, part: bytes, *, ended: bool) -> Message | None:
        """Handle a part; return the message, once it is complete, of a method that takes one.

        ended: the last part. Raises GrpcFailure.
        """
        messages, size = self._messages, len(part)
        whole = messages.add(part)
        self._progress += size
        if self._several is not None:
            if size:
                self._several.received(size, whole)
            if ended:
                self._several.end()
            return None
        if messages.has_rest:
            raise GrpcFailure("INTERNAL", "more than one message for a method that takes one")
        if not whole:
            self._room.ask(messages.size)
        self._room.acknowledge(size)
        if not ended:
            return None
        body = messages.next()
        if body is None:
            messages.end()
            raise GrpcFailure("INTERNAL", "no message for a method that takes one")
        self._room.settle()
        return body

    def look(self, progress: int, *, runs: bool) -> None:
        """Raise GrpcFailure if bytes are missing and few have come since the last look.

        runs: whether the method runs.
        """
        waits = not runs if self._several is None else self._messages.is_partial
        if not waits or self._room.is_waiting:
            self._progress = math.inf
        elif self._progress >= progress:
            self._progress = 0
        else:
            raise GrpcFailure("DEADLINE_EXCEEDED", "the request came too slowly")

    def release(self) -> None:
        """Free the memory of the message."""
        self._room.release()


async def unpacked(message: Message) -> Body:
    """Return the message; a thread unpacks it, as zlib releases the interpreter's lock."""
    if isinstance(message, bytes | HeldBody):
        return message
    return await asyncio.get_running_loop().run_in_executor(_thread, _body_of, message)


def _body_of(message: Packed | PackedLong) -> Body:
    if isinstance(message, PackedLong):
        message = Packed(message.collected.read(), message.limit)
    body = message.unpack()
    if len(body) <= LONG:
        return body
    held = HeldBody(len(body))
    held.add(body)
    return held


_thread = ThreadPoolExecutor(1, "unpacking")
"""One thread, so that clients with much to unpack wait for each other."""
