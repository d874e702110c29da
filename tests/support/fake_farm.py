"""A server that shows the status page with a status of the test's own, and counts questions."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from farm.server.page import HEADERS, PAGE

Answer = Callable[[Mapping[str, str]], tuple[int, Any]]


class FakeFarm:
    """What the server answers; a test may change it while the page is open.

    state: the status; answers: status and JSON data of each question and action by name; asked: the
    questions and actions so far, with method and arguments.
    """

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state
        self.answers: dict[str, Answer] = {}
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.url = ""
        self.is_closed = False

    def answer(self, method: str, target: str) -> tuple[int, Any]:
        parts = urlsplit(target)
        name = parts.path.removeprefix("/farm/")
        if name == "status":
            return 200, self.state
        words = dict(parse_qsl(parts.query, keep_blank_values=True))
        self.asked.append((method, name, words))
        if name in self.answers:
            return self.answers[name](words)
        return 404, {"error": {"type": "NotFound", "message": f"nothing is at {target}"}}


@contextlib.contextmanager
def fake_farm(state: dict[str, Any]) -> Iterator[FakeFarm]:
    """Serve the page with this status on a free port for the block."""
    farm = FakeFarm(state)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if farm.is_closed:  # the browser keeps its connections, which outlive the server
                self.close_connection = True
                return
            if self.path == "/":
                self._send(200, PAGE, [(k.decode(), v.decode()) for k, v in HEADERS], "text/html")
                return
            status, data = farm.answer(self.command, self.path)
            self._send(status, json.dumps(data).encode(), [], "application/json")

        do_POST = do_GET

        def _send(
            self, status: int, body: bytes, headers: list[tuple[str, str]], kind: str
        ) -> None:
            self.send_response(status)
            for name, value in [*headers, ("content-length", str(len(body)))]:
                self.send_header(name, value)
            self.send_header("content-type", f"{kind}; charset=utf-8")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    farm.url = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield farm
    finally:
        farm.is_closed = True
        server.shutdown()
        thread.join()
        server.server_close()


def worker(name: str, **more: Any) -> dict[str, Any]:
    """Return a row of an idle, healthy worker."""
    times = {"p50": 1.0, "p90": 1.2, "p99": 1.5, "count": 50}
    return {
        "name": name,
        "models": ["beam"],
        "phase": "ready",
        "slots": 1,
        "in_flight": 0,
        "busy_s": None,
        "done": 100,
        "ends_in_s": None,
        "device": "",
        "host": "node1",
        "age_s": 3600.0,
        "restarts": 0,
        "running_s": None,
        "running": None,
        "run_times_s": times,
        "memory_bytes": 250_000_000,
        "processor": 0.02,
        "failed": 0,
        "trouble": [],
        **more,
    }


def bare_status(**more: Any) -> dict[str, Any]:
    """Return the status of a farm that has none of the parts which only watch."""
    return {
        "models": ["beam"],
        "up_s": 4000.0,
        "waits": [],
        "workers": [],
        "queues": [],
        "calls": [],
        "done": 0,
        "failed": 0,
        "run_time_s": 0.0,
        "calls_per_s": 0.0,
        "overhead_s": None,
        "idle_gap_s": None,
        "chains": [],
        "events": [],
        **more,
    }


def history(times: list[float], **series: list[float | None]) -> Answer:
    """Answer the question `history` with these series."""
    return lambda words: (200, {"times": times, "now": time.time(), "series": series})
