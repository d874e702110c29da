"""One connection to a server, asked by one thread and broken off by another."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from farm.errors import Unavailable
from farm.transports import http_exchange
from farm.transports.http_exchange import Address, Exchange
from tests.loops import LIMIT_S, wait_until


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

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that breaks off is part of the test."""


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.go.set()
    server.shutdown()
    thread.join()
    server.server_close()


class Wish:
    """A purpose."""

    def __init__(self) -> None:
        self.is_wanted = True

    def wanted(self) -> bool:
        return self.is_wanted


def ask(exchange: Exchange, path: str, body: bytes = b"", **headers: str) -> bytes:
    with exchange.answer(path, body, headers) as response:
        assert response.status == 200
        return response.read()


def test_it_asks_and_gives_the_answer(server: Server) -> None:
    exchange = Exchange(Address(server.url + "/base/"), keep=True)
    assert ask(exchange, "/x") == b"GET /base/x "
    assert ask(exchange, "/y", b"{}", **{"Farm-Client": "me"}) == b"POST /base/y {}"
    assert server.asked[1][2]["Farm-Client"] == "me"
    assert server.asked[1][2]["Content-Type"] == "application/json"
    exchange.close()


def test_a_kept_connection_is_used_again(server: Server) -> None:
    exchange = Exchange(Address(server.url), keep=True)
    for _ in range(3):
        ask(exchange, "/x")
    assert len({port for port, *_ in server.asked}) == 1
    exchange.close()


def test_else_each_request_has_its_own(server: Server) -> None:
    exchange = Exchange(Address(server.url), keep=False)
    for _ in range(3):
        ask(exchange, "/x")
    assert len({port for port, *_ in server.asked}) == 3
    assert server.asked[0][2]["Connection"] == "close"


def test_an_idle_connection_is_not_trusted(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = Exchange(Address(server.url), keep=True)
    ask(exchange, "/x")
    monkeypatch.setattr(http_exchange, "IDLE_S", -1.0)
    ask(exchange, "/x")
    assert len({port for port, *_ in server.asked}) == 2
    exchange.close()


def test_a_connection_that_the_server_closed_is_noticed(server: Server) -> None:
    exchange = Exchange(Address(server.url), keep=True)
    ask(exchange, "/x")
    with pytest.raises(Unavailable, match="does not answer"):
        ask(exchange, "/drop")
    assert ask(exchange, "/x") == b"GET /x "
    exchange.close()


def test_a_request_without_an_answer_is_not_sent_again(server: Server) -> None:
    """The model may have run, whatever became of the connection."""
    exchange = Exchange(Address(server.url), keep=True)
    ask(exchange, "/x")
    for path in ("/drop", "/half"):
        with pytest.raises(Unavailable, match="does not answer"):
            ask(exchange, path, b"{}")
    assert [path for _, path, *_ in server.asked] == ["/x", "/drop", "/half"]
    exchange.close()


def test_an_answer_that_breaks_off_is_none(server: Server) -> None:
    exchange = Exchange(Address(server.url), keep=True)
    with pytest.raises(Unavailable, match="does not answer"):
        ask(exchange, "/half")
    assert ask(exchange, "/x") == b"GET /x "
    exchange.close()


def test_an_answer_that_nobody_reads_to_its_end_is_in_nobodys_way(server: Server) -> None:
    exchange = Exchange(Address(server.url), keep=True)
    with exchange.answer("/long", b"") as response:
        response.read(10)
    assert ask(exchange, "/x") == b"GET /x "
    exchange.close()


def test_a_server_that_comes_up_late_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    attempts = []

    def listen(seconds: float) -> None:
        attempts.append(seconds)
        if len(attempts) == 2:
            listeners.append(socket.create_server(("127.0.0.1", port)))

    listeners: list[socket.socket] = []
    monkeypatch.setattr("farm.transports.http_exchange.time.sleep", listen)
    exchange = Exchange(Address(f"http://127.0.0.1:{port}"), keep=True)
    exchange._connect()
    assert attempts == list(http_exchange.CONNECT_PAUSES_S[:2])
    exchange.close()
    listeners[0].close()


def test_nobody_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_exchange, "CONNECT_PAUSES_S", (0.0,))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = Address(f"http://127.0.0.1:{probe.getsockname()[1]}")
        with pytest.raises(Unavailable, match=r"http://127.*: Connection refused"):
            ask(Exchange(address, keep=True), "/x")


def test_another_thread_breaks_off_what_is_not_wanted(server: Server) -> None:
    exchange = Exchange(Address(server.url), keep=True)
    wish = Wish()
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            with exchange.answer("/slow", b"", purpose=wish) as response:
                response.read()
        except Unavailable as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: server.asked)
    exchange.abort(Wish())  # of another purpose: nothing happens
    time.sleep(0.05)
    assert not ended
    wish.is_wanted = False
    exchange.abort(wish)
    thread.join(LIMIT_S)
    assert len(ended) == 1
    server.go.set()
    assert ask(exchange, "/x") == b"GET /x "
    exchange.close()


def test_what_is_not_wanted_is_not_asked(server: Server) -> None:
    exchange = Exchange(Address(server.url), keep=True)
    wish = Wish()
    wish.is_wanted = False
    with (
        pytest.raises(Unavailable, match="taken back"),
        exchange.answer("/x", b"", purpose=wish),
    ):
        pass
    assert server.asked == []


def test_a_model_may_take_longer_than_connecting(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_exchange, "CONNECT_S", 0.05)
    exchange = Exchange(Address(server.url), keep=True)
    threading.Timer(0.3, server.go.set).start()
    assert ask(exchange, "/slow") == b"GET /slow "
    exchange.close()


@pytest.mark.parametrize(
    ("url", "shown", "path", "secure"),
    [
        ("http://host:4242", "http://host:4242", "", False),
        ("http://me:secret@host:1/a/b/", "http://host:1/a/b", "/a/b", False),
        (" https://host ", "https://host:443", "", True),
        ("http://[::1]:80", "http://[::1]:80", "", False),
    ],
)
def test_addresses(url: str, shown: str, path: str, secure: bool) -> None:
    address = Address(url)
    assert (address.url, address.path, address.secure) == (shown, path, secure)
    assert "secret" not in address.url


def test_credentials() -> None:
    assert Address("http://me:se%2Fcret@h").headers["authorization"] == "Basic bWU6c2UvY3JldA=="
    assert Address("http://h", "t0ken").headers["Authorization"] == "Bearer t0ken"
    assert "uthorization" not in "".join(Address("http://h").headers)


@pytest.mark.parametrize("url", ["host:80", "ftp://host", "http://", "http:///x", "http://a:b"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(Unavailable, match="is not the address of a server; expected http://host"):
        Address(url)
