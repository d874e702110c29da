"""OpenTelemetry: spans of requests and calls, sent to a collector. It needs the extra `otel`.

Those of a call, which say how long it waited and which workers ran it, are made when it ends, from
the record of its task, so they cost a running call nothing. The standard environment variables
configure OpenTelemetry, such as OTEL_EXPORTER_OTLP_ENDPOINT. A thread of it sends the spans in
batches, so the event loop never waits for the collector.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Mapping
from operator import attrgetter
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from farm.call import Result
from farm.dispatcher.ended import to_unix
from farm.errors import FarmError, TimeLimitExceeded, Unavailable, WorkerLost
from farm.scheduler.actions import Outcome
from farm.scheduler.phases import ANSWERED, LOST, RETURNED
from farm.scheduler.state import Attempt, Task
from farm.version import __version__
from farm.wording import needs

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

Attributes = Mapping[str, str | int | float | bool]

log, THEIRS = logging.getLogger(__name__), logging.getLogger("opentelemetry")

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
    is_off = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    is_none = os.environ.get("OTEL_TRACES_EXPORTER", "").strip() == "none"
    return None if is_off or is_none else Tracing()


class Tracing:
    """Makes spans and sends them. Times are Unix times in nanoseconds.

    While it is open, warnings of OpenTelemetry become at most one line a minute of this module's
    log, without tracebacks.
    """

    def __init__(self) -> None:
        with needs("otel", "spans need the packages of OpenTelemetry", Unavailable):
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation import tracecontext
        self._api = trace
        self._incoming = tracecontext.TraceContextTextMapPropagator()
        self._complaints = _Complaints()
        ours: dict[str, str | int] = {
            "service.name": "farm",
            "service.version": __version__,
            "host.name": socket.gethostname(),
            "process.pid": os.getpid(),
        }
        try:
            # The environment's names win.
            resource = Resource.create(ours).merge(OTELResourceDetector().detect())
            self._exporter = OTLPSpanExporter()
            self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
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

    def span(
        self, name: str, began_at: int, attributes: Attributes, within: Context | None = None
    ) -> Span:
        """Begin a span within another one.

        within: None begins a trace, for a call that came without a request of HTTP or gRPC.
        """
        kind = self._api.SpanKind.SERVER if within is None else self._api.SpanKind.INTERNAL
        if within is None:
            within = self.within(self._api.INVALID_SPAN)
        return self._tracer.start_span(name, within, kind, attributes, start_time=began_at)

    def within(self, parent: Span | str) -> Context:
        """Return the context of the children of a span. parent: it, or its `traceparent`."""
        if not isinstance(parent, str):
            return self._api.set_span_in_context(parent)
        _, trace_id, span_id, flags = parent.split("-")[:4]
        context = self._api.SpanContext(
            int(trace_id, 16),
            int(span_id, 16),
            is_remote=False,
            trace_flags=self._api.TraceFlags(int(flags[:2], 16)),
        )
        return self._api.set_span_in_context(self._api.NonRecordingSpan(context))

    def fail(self, span: Span, error: FarmError, at: int | None = None) -> None:
        """Mark a span as failed; with `at`, by an event that has the error's text and traceback."""
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(self._api.StatusCode.ERROR, error.message)
        if at is None:
            return
        about = {"exception.type": type(error).__name__, "exception.message": error.message}
        if error.detail:
            about["exception.stacktrace"] = error.detail
        span.add_event("exception", about, timestamp=at)

    def answered(self, task: Task, outcome: Outcome, now: float) -> None:
        """Make a span for each wait and each run of a task: of a call, or of a part of a long one.

        They are children of the request's span. A call of a native client has no request: it gets a
        span of its own, which begins a trace. now: monotonic time of the task's last answer.
        """
        call, origin = task.call, task.call.origin
        zero = to_unix()

        def nanoseconds(at: float) -> int:
            return int((zero + at) * 1e9)

        error = outcome.failed if isinstance(outcome, Result) else outcome
        about = {"farm.model": call.model, "farm.operation": call.operation.value}
        whole = None
        if origin is not None and origin.trace_parent:
            context = self.within(origin.trace_parent)
        else:
            name = f"{call.operation.value} {call.model}"
            named = {**about, "farm.client": task.account.client.name}
            if origin is not None:
                named["farm.call.id"] = origin.call_id
            whole = self.span(name, nanoseconds(task.submitted_at), named)
            context = self.within(whole)
        steps = steps_of(task, error, now)
        answered = [s for s in steps if s.attempt is not None and s.attempt.phase is ANSWERED]
        ends = answered[-1] if answered else steps[-1]
        number = len(task.past.lost_on) - sum(s.attempt.phase is LOST for s in steps if s.attempt)
        for step in steps:
            attributes: dict[str, str | int | float] = dict(about)
            if step.attempt is not None:
                number += 1
                attributes["farm.worker"] = step.attempt.worker.id
                attributes |= {"farm.attempt": number, "farm.rows": task.rows}
                if step.attempt.is_copy:
                    attributes["farm.copy"] = True
                if step is ends and isinstance(outcome, Result):
                    attributes["farm.run_time_s"] = outcome.run_time_s
                    attributes["farm.batch_rows"] = outcome.batch_rows
            span = self.span(step.name, nanoseconds(step.began), attributes, context)
            ended = nanoseconds(step.ended)
            if step is ends and error is not None:
                self.fail(span, error, ended)
            elif step.attempt is not None and step.attempt.phase is LOST:
                lost = f"worker {step.attempt.worker.id} was lost: {step.attempt.why}"
                self.fail(span, WorkerLost(lost), ended)
            span.end(ended)
        if whole is not None:
            if error is not None:
                self.fail(whole, error)
            whole.end(nanoseconds(now))

    def close(self) -> None:
        """Send the last spans, for `LAST_SPANS_S` at most."""
        ending = threading.Thread(target=self._provider.shutdown, daemon=True, name="last spans")
        ending.start()
        ending.join(LAST_SPANS_S)
        if ending.is_alive():
            self._complaints.setLevel(logging.CRITICAL + 1)
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
        self._propagated = THEIRS.propagate
        THEIRS.propagate = False
        THEIRS.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Log the record's text, unless there was a line within the last minute."""
        now = monotonic()
        if now - self._said_at >= COMPLAIN_EVERY_S:
            self._said_at = now
            text = " ".join(record.getMessage().split())
            log.warning("spans may be lost, calls go on: %s (one such line a minute)", text)

    def close(self) -> None:
        """Leave the loggers as they were."""
        THEIRS.removeHandler(self)
        THEIRS.propagate = self._propagated
        super().close()


class SpanStep(NamedTuple):
    """A wait or a run of a task, by the name of its span; times are monotonic.

    attempt: None for a wait.
    """

    name: str
    began: float
    ended: float
    attempt: Attempt | None = None


def steps_of(task: Task, error: FarmError | None, now: float) -> list[SpanStep]:
    """Return the waits and runs of a task that has ended, at least one, oldest first.

    A worker that returned the task without beginning it is left out: the wait goes on. error: the
    task's outcome, if it failed.
    """
    last = getattr(task, "attempt", None)  # not set before the first sending
    attempts = list(task.past.former)
    attempts += [a for a in (last, task.copy) if a is not None and a not in attempts]
    steps: list[SpanStep] = []
    waits_since = task.submitted_at
    waits = True
    for attempt in sorted(attempts, key=attrgetter("sent_at")):
        if attempt.phase is RETURNED:
            continue
        if not attempt.is_copy:
            steps.append(SpanStep("queue", min(waits_since, attempt.sent_at), attempt.sent_at))
        is_lost = attempt.phase is LOST
        ended = attempt.ended_at if is_lost else now
        steps.append(SpanStep("run", attempt.sent_at, ended, attempt))
        waits_since = max(waits_since, ended)
        waits = is_lost
    if not steps or (waits and not isinstance(error, WorkerLost | TimeLimitExceeded)):
        steps.append(SpanStep("queue", min(waits_since, now), now))
    return steps
