"""The span of an HTTP request: from its head to the end of its answer.

Source: OpenTelemetry's semantic conventions for HTTP spans; W3C Trace Context.
"""

from __future__ import annotations

from farm.http.call_ids import TRACE_PARENT
from farm.http.reader import RequestHead
from farm.monitoring.tracing import Tracing

LONGEST_AGENT = 200
NOT_FOUND = (404, 405)
"""Statuses that say that a path may be anything: it then is not part of the span's name."""


class HttpSpan:
    """Begins with the request's head. Calls of the request become its children."""

    __slots__ = ("_method", "_path", "_span", "head")

    def __init__(self, tracing: Tracing, head: RequestHead, path: str, client: str) -> None:
        """path: as the handler knows it; client: the peer's host, or ""."""
        headers = head.headers
        self._method = head.method
        self._path = path.partition("?")[0]
        attributes = {
            "http.request.method": head.method,
            "url.path": self._path,
            "url.scheme": "http",
            "network.protocol.version": head.version,
        }
        if client:
            attributes["client.address"] = client
        if agent := headers.get(b"user-agent"):
            attributes["user_agent.original"] = agent[:LONGEST_AGENT].decode("latin-1")
        self._span = tracing.request(head.method, headers, attributes)
        # Another head: this one may be that of other requests, too.
        self.head = head._replace(headers={**headers, TRACE_PARENT: self._span.parent})

    def end(self, status: int, call_id: str) -> None:
        """End the span.

        status: of the answer; 0: the client left before it began. call_id: the id that it has.
        """
        found: dict[str, str | int] = {"farm.call.id": call_id} if call_id else {}
        name = ""
        if status:
            found["http.response.status_code"] = status
            if status not in NOT_FOUND:
                found["http.route"] = self._path
                name = f"{self._method} {self._path}"
        failed = str(status) if status >= 500 else "" if status else "client left"
        self._span.end(found, name=name, failed=failed)


def is_traced(head: RequestHead) -> bool:
    """Whether the request gets a span: calls of models are POSTs, pages and polls are not."""
    return head.method == "POST"
