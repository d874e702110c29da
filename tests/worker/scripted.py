"""An HTTP server that returns scripted answers and records its requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Scripted:
    """The server's address, its connections, and head and body of each request."""

    url: str = ""
    connections: set[tuple[str, int]] = field(default_factory=set)
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)


@contextmanager
def scripted(answers: Mapping[str, tuple[int, Any]]) -> Iterator[Scripted]:
    """Run a server that answers each path with a status and JSON; `None` disconnects instead."""
    kept = Scripted()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            kept.connections.add(self.client_address)
            head = {name.lower(): value for name, value in self.headers.items()}
            kept.requests.append((head, self.rfile.read(int(head.get("content-length", 0)))))
            status, answer = answers.get(self.path, (404, {"error": "nothing here"}))
            if answer is None:
                self.close_connection = True
                return
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *args: Any) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True  # a kept connection waits for more
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        kept.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield kept
        finally:
            server.shutdown()
            thread.join()
