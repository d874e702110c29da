"""One client's connection: its bytes to calls, and back."""

from __future__ import annotations

import asyncio
import logging
from typing import cast

from farm.machine.peer import Peer
from farm.protocols.grpc import HEADERS_TOO_LARGE, NOT_GRPC, NOT_GRPC_TEXT, Failed
from farm.protocols.http2 import Event, Http2Connection, Opened
from farm.protocols.http2_frames import NO_ERROR, ConnectionFailed
from farm.protocols.http2_headers import LARGEST_LIST
from farm.protocols.http2_sending import Drained, HalfClosed, Received
from farm.server.door import Refused
from farm.server.exchange import COPIED_BYTES, Admits
from farm.server.grpc_call import Call, Caller, Service

logger = logging.getLogger(__name__)


class Connection(asyncio.Protocol):
    """Reads HTTP/2, keeps the calls that are open, writes what they answer."""

    def __init__(
        self, service: Service, access: Admits, limit: int, connections: set[Connection]
    ) -> None:
        """limit: bytes of a message; connections: where it is entered while it is there."""
        self.http2 = Http2Connection()
        self._service = service
        self._access = access
        self._limit = limit
        self._connections = connections
        self._calls: dict[int, Call] = {}
        self._ending = False
        self._flushes_soon = False
        # Set when it is made.
        self._loop = asyncio.get_running_loop()
        self.gone = self._loop.create_future()
        self._transport: asyncio.Transport
        self._peer = Peer("")

    # For asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self._transport = cast(asyncio.Transport, transport)
        self._peer = self._access.peer(transport)
        self._connections.add(self)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone, and nobody waits for what it asked."""
        self._connections.discard(self)
        for call in list(self._calls.values()):
            call.cancel()
        self.gone.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Bytes of the client's."""
        try:
            for event in self.http2.receive(data):
                self._take(event)
        except ConnectionFailed as failed:
            logger.debug("connection of %s: %s", self._peer, failed)
            self.http2.go_away(failed.code)
            self._flush()
            self._transport.close()
            return
        self._flush()

    def pause_writing(self) -> None:
        """The client takes less than is written: it is not heard until it does."""
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """It does."""
        self._transport.resume_reading()

    # Calls

    def _take(self, event: Event) -> None:
        if isinstance(event, Opened):
            self._open(event)
            return
        call = self._calls.get(event.stream)
        if call is None:
            return
        try:
            if isinstance(event, Received):
                call.received(event.data)
            elif isinstance(event, HalfClosed):
                call.half_closed()
            elif isinstance(event, Drained):
                call.drained()
            else:
                call.cancel()
        except Failed as failed:
            call.fail(failed.status, failed.text)

    def _open(self, opened: Opened) -> None:
        stream, headers, oversized = opened
        if not headers.get(b"content-type", b"").startswith(b"application/grpc"):
            self._refuse(stream, oversized)
            return
        call = self._calls[stream] = Call(self, stream, self._service, self._limit)
        try:
            if oversized:
                text = f"the metadata is larger than {LARGEST_LIST} bytes, the limit here"
                raise Failed("RESOURCE_EXHAUSTED", text)
            if b":authority" in headers:
                headers = {**headers, b"host": headers[b":authority"]}
            user = self._access.user(self._peer, headers)
            path = headers[b":path"].decode("latin-1")
            call.begin(path, Caller(self._peer.host, user, headers, None))
        except Refused as refused:
            status = "PERMISSION_DENIED" if refused.status == 403 else "UNAUTHENTICATED"
            call.fail(status, refused.message)
        except Failed as failed:
            call.fail(failed.status, failed.text)

    def _refuse(self, stream: int, oversized: bool) -> None:
        """Answer what is no call of gRPC."""
        if oversized:
            self.http2.end(stream, HEADERS_TOO_LARGE)
            return
        self.http2.send_headers(stream, NOT_GRPC)
        self.http2.send_data(stream, NOT_GRPC_TEXT)
        self.http2.end(stream, b"")

    def call_ended(self, stream: int) -> None:
        """Nothing follows for a stream."""
        self._calls.pop(stream, None)
        if self._calls:
            self.flush_soon()
        else:
            self._flush()  # who is alone need not wait for a turn of the loop

    # Sending

    def flush_soon(self) -> None:
        """Send what there is in the next turn of the loop: answers that come at once go at once."""
        if not self._flushes_soon:
            self._flushes_soon = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushes_soon = False
        parts = self.http2.take()
        if self._transport.is_closing():
            return
        if sum(map(len, parts)) <= COPIED_BYTES:
            self._transport.write(b"".join(parts))
        else:
            self._transport.writelines(parts)
        if self._ending and not self.http2.open_streams:
            self._transport.close()

    # The end

    def end(self) -> None:
        """Take nothing new, and close when all is answered."""
        self._ending = True
        self.http2.go_away(NO_ERROR)
        self._flush()

    def give_up(self) -> None:
        """Answer what is open with UNAVAILABLE."""
        for call in list(self._calls.values()):
            call.fail("UNAVAILABLE", "the farm shut down before the call finished")

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()
