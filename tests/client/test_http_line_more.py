"""A farm that is away while it answers a request of many points, or says nothing at all."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from farm.call import EMPTY_CONFIG, NO_HINTS, Call, ModelInfo, Operation, TensorInfo
from farm.client import http_calls
from farm.client.http_line import HttpLine
from farm.client.line import as_it_is, submit_all
from farm.errors import Unavailable
from tests.support.coroutines import LIMIT_S

HALF = ModelInfo("half", (TensorInfo("x", (1,)),), (TensorInfo("y", (1,)),))
PATIENCE_S = 60.0


class Clock:
    """The time that the line reads, in place of its module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Away(BaseHTTPRequestHandler):
    """Answers as many points of each request as the server says, and closes the connection."""

    server: Farm

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(HALF.to_json()).encode())

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        points = [x for [[x]] in asked["inputs"]]
        after_s, most = self.server.turns.pop(0)
        self.server.clock.now += after_s
        self.send_response(200)
        self.end_headers()
        for index, x in enumerate(points[:most]):
            line = {"index": index, "status": "done", "outputs": [[x / 2]]}
            told = {"run_time_s": 0.0, "queue_time_s": 0.0, "worker": "w"}
            self.wfile.write(json.dumps(line | told).encode() + b"\n")

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


class Farm(ThreadingHTTPServer):
    """turns: for each request, the seconds that pass first, and how many points are answered."""

    daemon_threads = True

    def __init__(self, clock: Clock) -> None:
        super().__init__(("127.0.0.1", 0), Away)
        self.clock = clock
        self.turns: list[tuple[float, int]] = []


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Iterator[Farm]:
    clock = Clock()
    monkeypatch.setattr(http_calls, "time", clock)
    server = Farm(clock)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_each_answer_renews_the_patience(away: Farm) -> None:
    line = HttpLine(f"http://127.0.0.1:{away.server_port}", patience_s=PATIENCE_S)
    assert line.is_farm
    line.describe("half", EMPTY_CONFIG)
    away.turns = [(0.0, 0), (2 * PATIENCE_S, 1), (PATIENCE_S / 2, 0), (0.0, 3)]
    calls = [Call("half", Operation.EVALUATE, (np.array([float(k)]),)) for k in range(4)]
    futures = submit_all(line, calls, NO_HINTS, as_it_is)
    results = [future.result(LIMIT_S) for future in futures]
    assert [float(result.outputs[0][0]) for result in results] == [0.0, 0.5, 1.0, 1.5]
    line.close()


@pytest.mark.parametrize("limits", [{"first_s": 1.0}, {"patience_s": 1.0}])
def test_the_first_contact_with_a_silent_server_has_a_limit(limits: dict[str, Any]) -> None:
    """The system accepts connections for a process that is stopped."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(Unavailable, match=f"no word from the server at {url} for 1 s"):
            HttpLine(url, **limits)
