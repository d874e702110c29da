"""A server that keeps what it was asked, and a client of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from farm.http1.client import HttpClient
from tests.support.recording_server import Server


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.go.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def client(server: Server) -> Iterator[HttpClient]:
    client = HttpClient(server.url, keep=True)
    yield client
    client.close()
