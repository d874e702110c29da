"""One request and its answer on an HTTP connection, both whole, for the doors."""

from __future__ import annotations

import http
import logging
from typing import TYPE_CHECKING, Any, Protocol

from farm.machine.peer import Peer
from farm.protocols.umbridge import error_body
from farm.server.body import Gathering
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

if TYPE_CHECKING:
    from farm.server.http import Connection

logger = logging.getLogger(__name__)

STATUS_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in http.HTTPStatus}

COPIED_BYTES = 64 * 1024
"""A body up to this long is cheaper to copy behind its head than to send apart."""


class Admits(Protocol):
    """Says who may come in."""

    def peer(self, transport: Any) -> Peer:
        """The other end of a new connection."""

    def user(self, peer: Peer, headers: Headers) -> str:
        """The name the client gives, or "". Raises Refused."""


class Exchange:
    """Gathers a request, has a door answer it, sends the answer.

    To uvicorn's connection it is a request-response cycle like its own: `response_complete` and
    `keep_alive` are that cycle's.
    """

    __slots__ = (
        "_begun",
        "_body",
        "_connection",
        "_door",
        "_limit",
        "_more",
        "_path",
        "_take_back",
        "_user",
        "_wants_to_be_asked",
        "headers",
        "keep_alive",
        "method",
        "response_complete",
    )

    def __init__(
        self,
        connection: Connection,
        door: Door,
        method: str,
        path: str,
        headers: Headers,
        *,
        limit: int,
        keep_alive: bool,
        wants_to_be_asked: bool,
    ) -> None:
        """limit: bytes of the body; wants_to_be_asked: it waits for `100 Continue`."""
        self.method = method
        self.headers = headers
        self.keep_alive = keep_alive
        self.response_complete = False
        self._connection = connection
        self._door = door
        self._path = path
        self._limit = limit
        self._wants_to_be_asked = wants_to_be_asked
        self._body = Gathering(limit)
        self._more = True
        self._begun = False
        self._user = ""
        self._take_back: TakeBack | None = None

    # The request

    def is_ahead_by(self, size: int) -> bool:
        """Whether more than `size` bytes of its body are here before its turn."""
        return not self._begun and self._body.size > size

    def begin(self, access: Admits) -> None:
        """It is this request's turn to be answered."""
        self._begun = True
        try:
            self._user = access.user(self._connection.peer, self.headers)
            if int(self.headers.get(b"content-length", 0)) > self._limit:
                raise too_large(self._limit)
        except Refused as refused:
            self._refuse(refused)
            return
        if not self._more:
            self._ask()
        elif self._wants_to_be_asked:
            self._connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def add(self, part: bytes) -> None:
        """Another part of the body."""
        self._body.add(part)
        if self._body.size > self._limit and self._begun:
            self._refuse(too_large(self._limit))

    def complete(self) -> None:
        """The request is whole."""
        self._more = False
        if self._begun:
            self._ask()

    def _ask(self) -> None:
        try:
            if self._body.size > self._limit:
                raise too_large(self._limit)
            body = self._body.whole(self.headers)
            self._body.clear()
            peer = self._connection.peer.host
            request = Request(self.method, self._path, self.headers, body, peer, self._user)
            self._take_back = self._door(request, self.answer)
        except Refused as refused:
            self._refuse(refused)
        except Exception:
            logger.exception("answering %s", self._path)
            self.answer(500, self._error_body("InternalError", INTERNAL_ERROR))

    # The answer

    def answer(
        self, status: int, body: bytes | memoryview, headers: Extra = (), content_type: bytes = JSON
    ) -> None:
        """Send the whole answer."""
        if self.response_complete:
            return
        self.response_complete = True
        self._take_back = None
        more = b"".join([b"%b: %b\r\n" % header for header in headers])
        if not self.keep_alive:
            more += b"connection: close\r\n"
        head = b"%bcontent-type: %b\r\ncontent-length: %d\r\n%b\r\n" % (
            STATUS_LINES[status],
            content_type,
            len(body),
            more,
        )
        transport = self._connection.transport
        if self.method == "HEAD":
            transport.write(head)
        elif len(body) > COPIED_BYTES:
            transport.writelines((head, body))
        else:
            transport.write(b"".join((head, body)))
        if not self.keep_alive:
            transport.close()
        self._connection.on_response_complete()

    def _refuse(self, refused: Refused) -> None:
        body = self._error_body(refused.kind, refused.message)
        self.answer(refused.status, body, refused.headers)

    def _error_body(self, kind: str, message: str) -> bytes:
        door = self._door
        form = door.error_body if isinstance(door, SpeaksErrors) else error_body
        return form(kind, message)

    def give_up(self) -> None:
        """The server ends: answer now that there will be no answer."""
        self.keep_alive = False
        take_back = self._take_back
        message = "the farm shut down before the call finished"
        self.answer(503, self._error_body("Unavailable", message))
        if take_back is not None:
            take_back()

    def client_left(self) -> None:
        """Nobody waits any more."""
        self.response_complete = True
        self._body.clear()
        if self._take_back is not None:
            self._take_back()
            self._take_back = None
