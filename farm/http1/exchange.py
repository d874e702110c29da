"""One request and its answer on an HTTP connection: collects the request, has it answered."""

from __future__ import annotations

import http
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from farm.bodies.body import HEAVY_BYTES, MOST_IN_MEMORY, QUICK_BYTES, Gathering
from farm.bodies.held import FREE_BYTES, Share
from farm.bodies.unpacking import Extra, Refused, too_large
from farm.call import CancelCall
from farm.errors import INTERNAL_ERROR
from farm.http1.access import Access
from farm.http1.asgi import Application
from farm.http1.call_ids import NAMING, REQUEST_ID, TRACE_PARENT, call_id_of
from farm.http1.reader import HttpFault, RequestHead
from farm.http1.request import HEADER_LINE, JSON, Destination, IsRaw, Request
from farm.monitoring.tracing import RequestSpan, Tracing

if TYPE_CHECKING:
    from farm.http1.connection import HttpConnection

logger = logging.getLogger(__name__)

STATUS_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in http.HTTPStatus}
"""The beginning of every answer, by status."""

STATUS_LINES[503] += b"retry-after: 1\r\n"  # the request may succeed a second later

COPIED_BYTES = 64 * 1024
"""A body up to this size is cheaper to copy behind its head than to send separately."""

_UNLIKE = frozenset({b"expect", b"content-encoding"})

LONGEST_AGENT = 200
NOT_FOUND = (404, 405)
"""Statuses that say that a path may be anything: it then is not part of the span's name."""


Beginning = tuple["HttpConnection", RequestHead, Destination, int, str]
"""The arguments of an `Exchange`, without its body."""


class Exchange:
    """Collects a request, has a handler or an application answer it, and sends the answer.

    status: of the answer, once a part of it has been sent; 0 before. answered: whether all of it
    has been sent. keep_alive: whether another request may follow. size, passed_over: bytes of the
    body received before the answer, and those received and discarded after it.
    """

    __slots__ = (
        "_body",
        "_call_id",
        "_cancel",
        "_chunked",
        "_connection",
        "_destination",
        "_limit",
        "_share",
        "_span",
        "_user",
        "answered",
        "head",
        "keep_alive",
        "passed_over",
        "size",
        "status",
    )

    def __init__(
        self,
        connection: HttpConnection,
        head: RequestHead,
        destination: Destination,
        limit: int,
        user: str = "",
        body: bytes = b"",
    ) -> None:
        """limit: largest size of the body, in bytes.

        user: its Basic name, once that is checked. body: all of it, or nothing yet.
        """
        self.head = head
        self.keep_alive = head.keep_alive
        self.status = 0
        self.answered = False
        self.size = len(body)
        self.passed_over = 0
        self._connection = connection
        self._destination = destination
        self._limit = limit
        self._body: bytes | Gathering = body  # bytes: the whole of it
        self._chunked = False
        self._share: Share | None = None
        self._user = user
        self._call_id = ""
        self._span: RequestSpan | None = None
        self._cancel: CancelCall | None = None

    @property
    def is_owners(self) -> bool:
        """Whether the request comes from the owner of the server."""
        connection = self._connection
        return connection.served.front.access.is_owner(connection.peer, self.head.headers)

    def is_owner_here(self) -> bool:
        """Whether the request comes from a program of the server's owner on this machine."""
        connection = self._connection
        return connection.served.front.access.is_owner_here(connection.peer, self.head.headers)

    @property
    def waits_for_room(self) -> bool:
        """Whether reading its body has to wait for memory."""
        return self._share is not None and not self._share.granted

    @property
    def has_share(self) -> bool:
        """Whether memory is reserved for its body, which other requests may wait for."""
        return self._share is not None

    # The request

    @property
    def beginning(self) -> Beginning | None:
        """How the client's next request begins if it has the same head; None: not known."""
        head = self.head
        plain = self._span is None and self._share is None and not self.status
        if not (plain and head.length and _UNLIKE.isdisjoint(head.headers)):
            return None
        return self._connection, head, self._destination, self._limit, self._user

    def begin(self, access: Access) -> bool:
        """Check the head, and refuse the request or prepare for its body.

        Return whether the client may send requests.
        """
        head, connection, admitted = self.head, self._connection, False
        tracing = connection.served.naming.tracing
        if tracing is not None and head.method == "POST":  # pages and polls run no model
            self._begin_span(tracing)
            head = self.head
        try:
            self._user = access.user(connection.peer, head.headers)
            admitted = True
            expectation = head.headers.get(b"expect")
            if expectation is not None and expectation.lower() != b"100-continue":
                raise Refused(417, "InvalidInput", "an expectation other than 100-continue")
            if head.length == 0:
                return True
            if head.length is not None and head.length > self._limit:
                raise too_large(self._limit)
        except Refused as refused:
            if head.length is None or head.headers.get(b"expect") is not None:
                # Discarding a chunked body costs as much as reading it; after `Expect` the client
                # decides whether a body follows.
                self.keep_alive = False
            self.refuse(refused)
            return admitted
        if head.length is None or head.length > FREE_BYTES:
            held = connection.served.held
            if head.length is None:
                self._limit = min(self._limit, held.limit // 2)
            self._share = held.reserve(head.length or self._limit, self._room)
        if not self.waits_for_room:
            self._invite()
        return True

    def _room(self) -> None:
        """Memory for the body is available: read it."""
        self._invite()
        self._connection.advance_later()

    def _invite(self) -> None:
        if self.head.headers.get(b"expect") is not None and self.head.version != "1.0":
            self._connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def add(self, part: bytes) -> None:
        """Add another part of the body."""
        if self.answered:
            self.passed_over += len(part)
            return
        size, head = len(part), self.head
        is_whole = size == head.length and b"content-encoding" not in head.headers
        self.size += size
        if self.size > self._limit:
            self.refuse(self._too_large())
        elif is_whole and size <= HEAVY_BYTES:
            self._body = part
        else:
            if isinstance(self._body, bytes):
                self._body = Gathering(self._limit, self._raw_size())
            self._body.add(part)

    def _raw_size(self) -> int:
        """Return the size of a long body if the handler decodes it here, else 0."""
        length = self.head.length or 0
        if not HEAVY_BYTES < length <= MOST_IN_MEMORY or b"content-encoding" in self.head.headers:
            return 0
        is_raw: IsRaw | None = getattr(self._destination.handler, "is_raw", None)
        return length if is_raw is not None and is_raw(self.head.headers) else 0

    def _too_large(self) -> Refused:
        if self._limit == self._connection.served.front.max_body_bytes:
            return too_large(self._limit)
        message = f"the body is longer than {self._limit} bytes, the limit here without a length"
        return Refused(413, "TooLarge", f"{message}; send a Content-Length")

    def complete(self) -> None:
        """The request is complete: answer it."""
        if self.answered:
            return
        if self._share is not None:
            self._share.resize(self.size)
        connection = self._connection
        wait = connection.served.front.wait(self.head.method, self._destination.path, self._go_on)
        if wait is not None:
            self._cancel = wait
        elif self.size > QUICK_BYTES:
            connection.served.bodies.later(self._ask)
        else:
            self._ask()

    def _go_on(self) -> None:
        self._cancel = None
        self._connection.served.bodies.later(self._ask)

    def _ask(self) -> None:
        if self.answered:
            return
        parts, self._body = self._body, b""
        head, path, handler = self.head, self._destination.path, self._destination.handler
        make_id = self._connection.served.naming.make_id
        if make_id is not None or not NAMING.isdisjoint(head.headers):
            self._name(make_id)
            head = self.head
        try:
            body = parts if isinstance(parts, bytes) else parts.whole(head.headers)
            connection = self._connection
            about = (head.method, path, head.headers, body, connection.peer.host, self._user)
            request = Request(*about, self.is_owner_here, connection.client)
            if isinstance(handler, Application):
                cancel: CancelCall | None = handler.start(self, request)
            else:
                cancel = handler(request, self.answer)
            if not self.answered:
                self._cancel = cancel
        except Refused as refused:
            self.refuse(refused)
        except Exception:
            logger.exception("answering %s", path, extra={"call": self._call_id})
            self.fail(500, "InternalError", INTERNAL_ERROR)

    def _name(self, make_id: Callable[[], bytes] | None) -> None:
        """Note the call's id; if the request has none, give it a new one."""
        head = self.head
        self._call_id = call_id_of(head.headers)
        if not self._call_id and make_id is not None:
            made = make_id()
            self.head = head._replace(headers={**head.headers, REQUEST_ID: made})
            self._call_id = made.decode()

    # The answer

    def answer(
        self, status: int, body: bytes | memoryview, headers: Extra = (), content_type: bytes = JSON
    ) -> None:
        """Send the complete answer."""
        if self.answered:
            return
        self.status = status
        size = len(body)
        more = self._destination.headers + b"".join(map(HEADER_LINE.__mod__, headers))
        if self._call_id:
            more += HEADER_LINE % (REQUEST_ID, self._call_id.encode())
        connection = self._connection
        if self.keep_alive and connection.ends_after():
            self.keep_alive = False
        if not self.keep_alive:
            more += b"connection: close\r\n"
        start = b"%bcontent-type: %b\r\ncontent-length: %d\r\n%b\r\n" % (
            STATUS_LINES[status],
            content_type,
            size,
            more,
        )
        if self.head.method == "HEAD":
            connection.write_start(start)
        elif size > COPIED_BYTES:
            connection.write_start(start)
            connection.transport.write(body)
            connection.served.traffic.sends(size)
        else:
            connection.write_start(start + body)
        self._end()

    def begin_answer(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Send status and headers; the body follows in parts."""
        if self.answered:
            return
        self.status = status
        start = [STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
        start.append(self._destination.headers)
        start += map(HEADER_LINE.__mod__, headers)
        if self._call_id:
            start.append(HEADER_LINE % (REQUEST_ID, self._call_id.encode()))
        has_length = any(name.lower() == b"content-length" for name, _ in headers)
        bodiless = self.head.method == "HEAD" or status in (204, 304)
        self._chunked = not has_length and not bodiless and self.head.version != "1.0"
        if self._chunked:
            start.append(b"transfer-encoding: chunked\r\n")
        if self.keep_alive and self._connection.ends_after():
            self.keep_alive = False
        if not self.keep_alive:
            start.append(b"connection: close\r\n")
        start.append(b"\r\n")
        self._connection.write_start(b"".join(start))

    def write(self, part: bytes) -> None:
        """Send a part of the body."""
        if self.answered or not part or self.head.method == "HEAD":
            return
        self._connection.served.traffic.sends(len(part))
        transport = self._connection.transport
        transport.write(b"%x\r\n%b\r\n" % (len(part), part) if self._chunked else part)

    def end_answer(self) -> None:
        """End the answer."""
        if self.answered:
            return
        if self._chunked:
            self._connection.transport.write(b"0\r\n\r\n")
        self._end()

    async def drained(self) -> None:
        """Wait until the client has read most of the bytes sent so far."""
        await self._connection.drained()

    def cut_off(self) -> None:
        """Break off in the middle of the answer, so that the client notices."""
        if not self.answered:
            self._connection.abort()

    def _end(self) -> None:
        self.answered = True
        self._body = b""
        self._cancel = None
        if self._span is not None or self._share is not None:
            self._let_go()
        self._connection.answered()

    def refuse(self, refused: Refused | HttpFault) -> None:
        """Answer with an error, even in the middle of the request."""
        headers = refused.headers if isinstance(refused, Refused) else ()
        self.fail(refused.status, refused.kind, refused.message, headers)

    def refuse_for_good(self, fault: HttpFault) -> None:
        """Answer with an error, after which the connection closes: its bytes are unreadable."""
        self.keep_alive = False
        self.refuse(fault)

    def fail(self, status: int, kind: str, message: str, headers: Extra = ()) -> None:
        """Answer with an error in the form of the path."""
        body, content_type = self._destination.error_form(kind, message)
        self.answer(status, body, headers, content_type)

    def give_up(self) -> None:
        """Answer with an error now, because the server stops."""
        self.keep_alive = False
        if isinstance(self._destination.handler, Application) and self._cancel is not None:
            return  # its task is cancelled, and sends the answer
        cancel = self._cancel
        self.fail(503, "Unavailable", "the farm shut down before the call finished")
        if cancel is not None:
            cancel()

    def client_left(self) -> None:
        """The client has disconnected: cancel the call."""
        self.answered = True
        self._body = b""
        self._let_go()
        if self._cancel is not None:
            self._cancel()
            self._cancel = None

    def _let_go(self) -> None:
        if self._span is not None:
            self._end_span(self._span)
            self._span = None
        if self._share is not None:
            self._share.release()
            self._share = None

    # The span: see OpenTelemetry's semantic conventions for HTTP spans, and W3C Trace Context

    def _begin_span(self, tracing: Tracing) -> None:
        """Begin the span of the request, whose calls become its children."""
        head = self.head
        about = {
            "http.request.method": head.method,
            "url.path": self._destination.path.partition("?")[0],
            "url.scheme": "http",
            "network.protocol.version": head.version,
        }
        if client := self._connection.peer.host:
            about["client.address"] = client
        if agent := head.headers.get(b"user-agent"):
            about["user_agent.original"] = agent[:LONGEST_AGENT].decode("latin-1")
        self._span = span = tracing.request(head.method, head.headers, about)
        # Another head: this one may be that of other requests, too.
        self.head = head._replace(headers={**head.headers, TRACE_PARENT: span.parent})

    def _end_span(self, span: RequestSpan) -> None:
        found: dict[str, str | int] = {"farm.call.id": self._call_id} if self._call_id else {}
        status, name = self.status, ""
        if status:
            found["http.response.status_code"] = status
            if status not in NOT_FOUND:
                found["http.route"] = path = self._destination.path.partition("?")[0]
                name = f"{self.head.method} {path}"
        failed = str(status) if status >= 500 else "" if status else "client left"
        span.end(found, name=name, failed=failed)
