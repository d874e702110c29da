"""The span of a gRPC call: from its headers to its status.

Source: OpenTelemetry's semantic conventions for gRPC spans; W3C Trace Context.
"""

from __future__ import annotations

from farm.bodies.unpacking import Headers
from farm.http.call_ids import TRACE_PARENT
from farm.monitoring.tracing import Tracing

OWN_FAULT = frozenset(
    {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
)
"""Statuses that mark a server's span as failed; the others are the client's fault."""

HEALTH = "/grpc.health."
"""The start of paths whose calls come every few seconds and run no model: they get no span."""


class GrpcSpan:
    """Begins with the call's headers. Calls of models become its children."""

    __slots__ = ("_span",)

    def __init__(self, tracing: Tracing, path: str, headers: Headers, client: str) -> None:
        """client: the peer's host, or ""."""
        method = path.removeprefix("/")
        attributes = {"rpc.system.name": "grpc", "rpc.method": method}
        if client:
            attributes["client.address"] = client
        self._span = tracing.request(method, headers, attributes)

    def parent_of(self, headers: Headers) -> Headers:
        """Return the headers with this span as the parent."""
        return {**headers, TRACE_PARENT: self._span.parent}

    def end(self, status: str, call_id: str) -> None:
        """End the span. status: its name; call_id: the id that the answer has."""
        found = {"rpc.response.status_code": status}
        if call_id:
            found["farm.call.id"] = call_id
        self._span.end(found, failed=status if status in OWN_FAULT else "")
