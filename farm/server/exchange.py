"""One request and its answer on an HTTP connection: gathered whole, asked, answered."""

from __future__ import annotations

import http
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from farm.machine.peer import Peer
from farm.protocols.http1 import Fault, Head
from farm.protocols.umbridge import error_body
from farm.server.asgi import Application
from farm.server.body import QUICK_BYTES, Gathering
from farm.server.door import (
    INTERNAL_ERROR,
    JSON,
    Door,
    Extra,
    Headers,
    Refused,
    Request,
    SpeaksErrors,
    TakeBack,
    too_large,
)
from farm.server.held import FREE_BYTES, Share

if TYPE_CHECKING:
    from farm.server.http_connection import Connection

logger = logging.getLogger(__name__)

STATUS_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in http.HTTPStatus}

COPIED_BYTES = 64 * 1024
"""A body up to this long is cheaper to copy behind its head than to send apart."""


class Admits(Protocol):
    """Says who may come in."""

    def peer(self, transport: Any) -> Peer:
        """The other end of a new connection."""

    def trusts(self, peer: Peer) -> bool:
        """Whether it needs no token."""

    def user(self, peer: Peer, headers: Headers) -> str:
        """The name the client gives, or "". Raises Refused."""


class Exchange:
    """Gathers a request, has a door or an application answer it, sends the answer.

    begun, answered: whether something of the answer has been sent, and whether all of it.
    keep_alive: whether another request may follow. size, passed_over: bytes of the body so far,
    before and after the answer.
    """

    __slots__ = (
        "_body",
        "_chunked",
        "_connection",
        "_door",
        "_limit",
        "_path",
        "_share",
        "_take_back",
        "_user",
        "answered",
        "begun",
        "head",
        "keep_alive",
        "passed_over",
        "size",
    )

    def __init__(
        self, connection: Connection, door: Door | Application, head: Head, path: str, limit: int
    ) -> None:
        """path: as the door knows it; limit: bytes of the body."""
        self.head = head
        self.keep_alive = head.keep_alive
        self.begun = False
        self.answered = False
        self.size = 0
        self.passed_over = 0
        self._connection = connection
        self._door = door
        self._path = path
        self._limit = limit
        self._body: Gathering | None = None
        self._chunked = False
        self._share: Share | None = None
        self._user = ""
        self._take_back: TakeBack | None = None

    @property
    def waits_for_room(self) -> bool:
        """Whether its body is to be left in the network for now."""
        return self._share is not None and not self._share.granted

    @property
    def has_share(self) -> bool:
        """Whether room is reserved for its body, which others may wait for."""
        return self._share is not None

    # The request

    def begin(self, access: Admits) -> None:
        """Decide whether the body is wanted."""
        head, connection = self.head, self._connection
        try:
            self._user = access.user(connection.peer, head.headers)
            connection.let_in = True
            expectation = head.headers.get(b"expect")
            if expectation is not None and expectation.lower() != b"100-continue":
                raise Refused(417, "InvalidInput", "an expectation other than 100-continue")
            if head.length == 0:
                return
            if head.length is not None and head.length > self._limit:
                raise too_large(self._limit)
        except Refused as refused:
            if head.headers.get(b"expect") is not None:
                self.keep_alive = False  # whether a body follows is for the client to decide
            self.refuse(refused)
            return
        if head.length is None or head.length > FREE_BYTES:
            held = connection.served.held
            if head.length is None:
                self._limit = min(self._limit, held.limit // 2)
            self._share = held.reserve(head.length or self._limit, self._room)
        if not self.waits_for_room:
            self._invite()

    def _room(self) -> None:
        """The body may be read now."""
        self._invite()
        self._connection.advance_later()

    def _invite(self) -> None:
        if self.head.headers.get(b"expect") is not None and self.head.version != "1.0":
            self._connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def add(self, part: bytes) -> None:
        """Another part of the body."""
        if self.answered:
            self.passed_over += len(part)
            return
        self.size += len(part)
        if self.size > self._limit:
            self.refuse(self._too_large())
        else:
            if self._body is None:
                self._body = Gathering(self._limit)
            self._body.add(part)

    def _too_large(self) -> Refused:
        if self._limit == self._connection.served.front.max_body_bytes:
            return too_large(self._limit)
        message = f"the body is longer than {self._limit} bytes, the limit here without a length"
        return Refused(413, "TooLarge", f"{message}; send a Content-Length")

    def complete(self) -> None:
        """The request is whole."""
        if self.answered:
            return
        if self._share is not None:
            self._share.resize(self.size)
        if self.size > QUICK_BYTES:
            self._connection.served.bodies.later(self._ask)
        else:
            self._ask()

    def _ask(self) -> None:
        if self.answered:
            return
        gathered, self._body = self._body, None
        door, head = self._door, self.head
        try:
            body = b"" if gathered is None else gathered.whole(head.headers)
            peer = self._connection.peer.host
            request = Request(head.method, self._path, head.headers, body, peer, self._user)
            if isinstance(door, Application):
                take_back: TakeBack | None = door.start(self, request)
            else:
                take_back = door(request, self.answer)
            if not self.answered:
                self._take_back = take_back
        except Refused as refused:
            self.refuse(refused)
        except Exception:
            logger.exception("answering %s", self._path)
            self.answer(500, self._error_body("InternalError", INTERNAL_ERROR))

    # The answer

    def answer(
        self, status: int, body: bytes | memoryview, headers: Extra = (), content_type: bytes = JSON
    ) -> None:
        """Send the whole answer."""
        if self.answered:
            return
        self.begun = True
        more = b"".join([b"%b: %b\r\n" % header for header in headers])
        if not self._lasts():
            more += b"connection: close\r\n"
        start = b"%bcontent-type: %b\r\ncontent-length: %d\r\n%b\r\n" % (
            STATUS_LINES[status],
            content_type,
            len(body),
            more,
        )
        connection = self._connection
        if self.head.method == "HEAD":
            connection.write_start(start)
        elif len(body) > COPIED_BYTES:
            connection.write_start(start)
            connection.transport.write(body)
        else:
            connection.write_start(b"".join((start, body)))
        self._end()

    def begin_answer(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Send status and headers; the body follows in parts."""
        if self.answered:
            return
        self.begun = True
        start = [STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
        start += [b"%b: %b\r\n" % header for header in headers]
        has_length = any(name.lower() == b"content-length" for name, _ in headers)
        bodiless = self.head.method == "HEAD" or status in (204, 304)
        self._chunked = not has_length and not bodiless and self.head.version != "1.0"
        if self._chunked:
            start.append(b"transfer-encoding: chunked\r\n")
        if not self._lasts():
            start.append(b"connection: close\r\n")
        start.append(b"\r\n")
        self._connection.write_start(b"".join(start))

    def write(self, part: bytes) -> None:
        """Send a part of the body."""
        if self.answered or not part or self.head.method == "HEAD":
            return
        transport = self._connection.transport
        transport.write(b"%x\r\n%b\r\n" % (len(part), part) if self._chunked else part)

    def end_answer(self) -> None:
        """Nothing follows."""
        if self.answered:
            return
        if self._chunked:
            self._connection.transport.write(b"0\r\n\r\n")
        self._end()

    async def drained(self) -> None:
        """Wait until the client has taken most of what was sent."""
        await self._connection.drained()

    def cut_off(self) -> None:
        """End in the middle of the answer, so that the client sees it."""
        if not self.answered:
            self._connection.abort()

    def _lasts(self) -> bool:
        """Whether the connection goes on after this answer; False: it says that it will not."""
        if self.keep_alive and self._connection.ends_after(self):
            self.keep_alive = False
        return self.keep_alive

    def _end(self) -> None:
        self.answered = True
        self._let_go()
        self._take_back = None
        self._connection.answered()

    def refuse(self, refused: Refused | Fault) -> None:
        """Answer with an error; also in the middle of the request."""
        headers = refused.headers if isinstance(refused, Refused) else ()
        self.answer(refused.status, self._error_body(refused.kind, refused.message), headers)

    def _error_body(self, kind: str, message: str) -> bytes:
        door = self._door
        form = door.error_body if isinstance(door, SpeaksErrors) else error_body
        return form(kind, message)

    def give_up(self) -> None:
        """The server ends: answer now that there will be no answer."""
        self.keep_alive = False
        if isinstance(self._door, Application) and self._take_back is not None:
            return  # its task is cancelled, and answers
        take_back = self._take_back
        message = "the farm shut down before the call finished"
        self.answer(503, self._error_body("Unavailable", message))
        if take_back is not None:
            take_back()

    def client_left(self) -> None:
        """The answer is not waited for any more."""
        self.answered = True
        self._let_go()
        if self._take_back is not None:
            self._take_back()
            self._take_back = None

    def _let_go(self) -> None:
        self._body = None
        if self._share is not None:
            self._share.release()
            self._share = None
