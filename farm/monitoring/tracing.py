"""OpenTelemetry: spans are made here and sent to a collector. It needs the extra `otel`.

The standard environment variables configure it, such as OTEL_EXPORTER_OTLP_ENDPOINT. A thread of
OpenTelemetry sends the spans in batches, so the event loop never waits for the collector.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING

from farm.errors import FarmError, Unavailable
from farm.version import __version__

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

Attributes = Mapping[str, str | int | float | bool]

log = logging.getLogger(__name__)

LAST_SPANS_S = 3.0
"""Seconds that the collector gets for the last spans when the farm ends."""

COMPLAIN_EVERY_S = 60.0
"""Interval between two lines in the log about a collector that takes no spans."""

ONLY = {
    "OTEL_TRACES_EXPORTER": ("otlp", "none"),
    "OTEL_EXPORTER_OTLP_PROTOCOL": ("http/protobuf",),
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": ("http/protobuf",),
}
"""Values that farm supports of variables that have others in OpenTelemetry's specification."""


def start_tracing() -> Tracing | None:
    """Return the sender of spans; None if the environment turns OpenTelemetry off.

    Raises Unavailable if packages are missing, or if a variable asks for another exporter.
    """
    for name, supported in ONLY.items():
        value = os.environ.get(name, "").strip()
        if value and value not in supported:
            raise Unavailable(f"{name} is {value!r}; expected {' or '.join(supported)}")
    if os.environ.get("OTEL_TRACES_EXPORTER", "").strip() == "none":
        return None
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    return Tracing()


class Tracing:
    """Makes spans and sends them. Times are Unix times in nanoseconds.

    While it is open, warnings of OpenTelemetry become at most one line a minute of this module's
    log, without tracebacks.
    """

    def __init__(self) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation import tracecontext
        except ImportError:
            raise Unavailable(
                'spans need the packages of OpenTelemetry: pip install "modelfarm[otel]"'
            ) from None
        self._api = trace
        self._incoming = tracecontext.TraceContextTextMapPropagator()
        self._complaints = _Complaints()
        ours = Resource(
            {
                "service.name": "farm",
                "service.version": __version__,
                "host.name": socket.gethostname(),
                "process.pid": os.getpid(),
            }
        )
        try:
            given = ours.merge(OTELResourceDetector().detect())  # the environment's names win
            self._exporter = OTLPSpanExporter()
            self._provider = TracerProvider(
                resource=Resource.create(given.attributes), shutdown_on_exit=False
            )
            self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        except Exception as error:  # a variable without meaning
            self._complaints.close()
            raise Unavailable(
                f"OpenTelemetry cannot start, {type(error).__name__}: {error}; "
                "check the environment variables OTEL_..."
            ) from None
        self._tracer = self._provider.get_tracer("farm", __version__)

    def request(
        self, name: str, headers: Mapping[bytes, bytes], attributes: Attributes
    ) -> RequestSpan:
        """Begin the span of a request, whose parent is that of its header `traceparent`."""
        names = (b"traceparent", b"tracestate")
        carrier = {n.decode(): headers[n].decode("latin-1") for n in names if n in headers}
        parent = self._incoming.extract(carrier) if carrier else None
        kind = self._api.SpanKind.SERVER
        return RequestSpan(self._tracer.start_span(name, parent, kind, attributes))

    def call(self, name: str, began_at: int, attributes: Attributes) -> Span:
        """Begin the span of a call that came without a request of HTTP or gRPC."""
        kind = self._api.SpanKind.SERVER
        root = self._api.set_span_in_context(self._api.INVALID_SPAN)
        return self._tracer.start_span(name, root, kind, attributes, start_time=began_at)

    def within(self, span: Span) -> Context:
        """Return the context of the children of a span."""
        return self._api.set_span_in_context(span)

    def within_parent(self, parent: str) -> Context:
        """Return the context of the children of a span, as in a header `traceparent`."""
        _, trace_id, span_id, flags = parent.split("-")[:4]
        context = self._api.SpanContext(
            int(trace_id, 16),
            int(span_id, 16),
            is_remote=False,
            trace_flags=self._api.TraceFlags(int(flags[:2], 16)),
        )
        return self._api.set_span_in_context(self._api.NonRecordingSpan(context))

    def child(self, name: str, context: Context, began_at: int, attributes: Attributes) -> Span:
        """Begin a span within another one."""
        kind = self._api.SpanKind.INTERNAL
        return self._tracer.start_span(name, context, kind, attributes, start_time=began_at)

    def fail(self, span: Span, error: FarmError, at: int) -> None:
        """Mark a span as failed, with an event that has the error's text and traceback."""
        self.mark(span, error)
        about = {"exception.type": type(error).__name__, "exception.message": error.message}
        if error.detail:
            about["exception.stacktrace"] = error.detail
        span.add_event("exception", about, timestamp=at)

    def mark(self, span: Span, error: FarmError) -> None:
        """Mark a span as failed."""
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(self._api.StatusCode.ERROR, error.message)

    def close(self) -> None:
        """Send the last spans, for `LAST_SPANS_S` at most."""
        ending = threading.Thread(target=self._provider.shutdown, daemon=True, name="last spans")
        ending.start()
        ending.join(LAST_SPANS_S)
        if ending.is_alive():
            self._complaints.mute()
            self._exporter.shutdown()  # type: ignore[no-untyped-call]  # ends its waits
            log.warning("the last spans were not sent: their collector does not take them in time")
        else:
            self._complaints.close()


class RequestSpan:
    """The span of one request. parent: it as a header `traceparent`, for its children."""

    __slots__ = ("_span", "parent")

    def __init__(self, span: Span) -> None:
        self._span = span
        context = span.get_span_context()
        self.parent = b"00-%032x-%016x-%02x" % (
            context.trace_id,
            context.span_id,
            context.trace_flags,
        )

    def end(self, attributes: Attributes, *, name: str = "", failed: str = "") -> None:
        """End the span. name: the final one; failed: the reason if it is the server's fault."""
        span = self._span
        if name:
            span.update_name(name)
        span.set_attributes(attributes)
        if failed:
            from opentelemetry.trace import StatusCode

            span.set_attribute("error.type", failed)
            span.set_status(StatusCode.ERROR)
        span.end()


class _Complaints(logging.Handler):
    """Takes the warnings of OpenTelemetry's loggers; one a minute reaches farm's log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._said_at = float("-inf")
        self._logger = logging.getLogger("opentelemetry")
        self._propagated = self._logger.propagate
        self._logger.propagate = False
        self._logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Log the record's text, unless there was a line within the last minute."""
        now = monotonic()
        if now - self._said_at >= COMPLAIN_EVERY_S:
            self._said_at = now
            text = " ".join(record.getMessage().split())
            log.warning("spans may be lost, calls go on: %s (one such line a minute)", text)

    def mute(self) -> None:
        """Say nothing any more."""
        self._said_at = float("inf")

    def close(self) -> None:
        """Leave the loggers as they were."""
        self._logger.removeHandler(self)
        self._logger.propagate = self._propagated
        super().close()
