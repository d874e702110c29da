"""An HTTP server that keeps what it was asked, and answers as the path says."""

from __future__ import annotations

import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.support.coroutines import LIMIT_S


class Handler(BaseHTTPRequestHandler):
    """Tells what it was asked; /slow answers when the server is told to, /drop not at all."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append((self.client_address[1], self.path, dict(self.headers), body))
        if self.path.endswith("/drop"):
            self.close_connection = True
            return
        if self.path.endswith("/slow"):
            self.server.go.wait(LIMIT_S)
        answer = f"{self.command} {self.path} ".encode() + body
        if self.path.endswith("/long"):
            answer *= 100
        self.send_response(200)
        if self.path.endswith("/half"):
            self.send_header("Content-Length", "1000")
            self.close_connection = True
        elif self.path.endswith("/stall"):
            self.send_header("Content-Length", str(len(answer) + 1))
        elif self.path.endswith("/unframed"):
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


class Server(ThreadingHTTPServer):
    """What was asked, and by which port."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[int, str, dict[str, str], bytes]] = []
        self.go = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def paths(self) -> list[str]:
        return [path for _, path, *_ in self.asked]

    @property
    def ports(self) -> set[int]:
        return {port for port, *_ in self.asked}

    def secure(self, context: ssl.SSLContext) -> None:
        self.socket = context.wrap_socket(self.socket, server_side=True)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that breaks off is part of the test."""
