"""Processor time of the front door for the spans of one request and its call.

    .venv/bin/python benchmarks/spans.py

"made" is on the event loop: the request's span, one `queue` and one `run`. "sent" is in the thread
of OpenTelemetry, which shares the interpreter: they are encoded and go to a collector that reads
and discards them. "not sampled": OTEL_TRACES_SAMPLER drops the request's trace.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

from farm.http1.access import Access
from farm.http1.call_ids import Naming
from farm.http1.exchange import Exchange
from farm.http1.reader import RequestHead
from farm.http1.request import Destination
from farm.monitoring.tracing import Tracing, start_tracing
from machine import versions

REQUESTS = 5000
LATER_MS = 3_600_000
OPEN = Access(None)


class Discard(BaseHTTPRequestHandler):
    """Takes any POST."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Read the body and answer."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


def serve(told: Connection) -> None:
    """Run a collector; its port goes to the other end."""
    with HTTPServer(("127.0.0.1", 0), Discard) as server:
        told.send(server.server_address[1])
        server.serve_forever()


@contextmanager
def collector() -> Iterator[str]:
    """Run a collector in a process of its own; yield its address."""
    here, there = Pipe()
    process = Process(target=serve, args=(there,), daemon=True)
    process.start()
    yield f"http://127.0.0.1:{here.recv()}"
    process.terminate()
    process.join()


def request(tracing: Tracing) -> None:
    """Make the spans of one request, as the HTTP server and `Tracing.answered` do."""
    headers = {b"user-agent": b"benchmark/1"}
    head = RequestHead("POST", b"/Evaluate", "1.1", [], headers, 0, True)
    served = SimpleNamespace(naming=Naming(None, tracing))
    line: Any = SimpleNamespace(served=served, peer=SimpleNamespace(host="127.0.0.1"))
    exchange = Exchange(line, head, Destination.at("/Evaluate", lambda request, answer: None), 0)
    exchange.begin(OPEN)
    context = tracing.within(exchange.head.headers[b"traceparent"].decode())
    about = {"farm.model": "beam", "farm.operation": "evaluate"}
    tracing.span("queue", 1, about, context).end(2)
    ran: dict[str, str | int] = {
        "farm.worker": "node1/71-4a",
        "farm.attempt": 1,
        "farm.rows": 1,
        "farm.batch_rows": 1,
    }
    tracing.span("run", 2, {**about, **ran, "farm.run_time_s": 0.1}, context).end(3)
    exchange.status = 200
    exchange.client_left()


def measure() -> tuple[float, float]:
    """Return processor time to make and to send the spans of a request, in microseconds."""
    tracing = start_tracing()
    assert tracing is not None, "OpenTelemetry is turned off by OTEL_..."
    began = time.thread_time()
    for _ in range(REQUESTS):
        request(tracing)
    made = time.thread_time() - began
    began = time.process_time()
    tracing.close()
    return made / REQUESTS * 1e6, (time.process_time() - began) / REQUESTS * 1e6


def main() -> None:
    """Print the times."""
    print(versions("opentelemetry-sdk"))
    os.environ["OTEL_BSP_SCHEDULE_DELAY"] = str(LATER_MS)
    os.environ["OTEL_BSP_MAX_QUEUE_SIZE"] = str(4 * REQUESTS)
    with collector() as url:
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = url
        for _ in range(3):
            made, sent = measure()
            print(f"made {made:.0f} us, sent {sent:.0f} us")
        os.environ["OTEL_TRACES_SAMPLER"] = "always_off"
        made, _ = measure()
        print(f"not sampled: made {made:.0f} us")


if __name__ == "__main__":
    main()
