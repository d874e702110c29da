"""Requests to a server: connections, requests that are sent again or never, and addresses."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from farm.errors import Cancelled, InvalidOutput, InvalidRequest, Unavailable
from farm.http1 import client as http_client
from farm.http1.client import Address, Cancellation, HttpClient
from tests.support.certificates import certificate
from tests.support.coroutines import LIMIT_S, wait_until
from tests.support.recording_server import Server


def ask(client: HttpClient, path: str, body: bytes = b"", **headers: str) -> bytes:
    """Return the body of the answer to a request that is sent at most once."""
    with client.answer(path, body, headers) as answer:
        assert answer.status == 200
        return answer.read()


@contextlib.contextmanager
def asking(serve: Callable[[socket.socket], object]) -> Iterator[HttpClient]:
    """A client whose server is this function of a listener."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        client = HttpClient(f"http://127.0.0.1:{listener.getsockname()[1]}", keep=True)
        yield client
        client.close()
        thread.join(LIMIT_S)


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


# Requests and answers


def test_it_asks_and_gives_the_answer(server: Server) -> None:
    client = HttpClient(server.url + "/base/", keep=True)
    assert client.ask("/x")[::2] == (200, b"GET /base/x ")
    status, headers, body = client.ask("/y", b"{}", headers={"Farm-Client": "me"})
    assert (status, headers["content-length"], body) == (200, "15", b"POST /base/y {}")
    assert server.asked[0][2]["Content-Type"] == "application/json"
    assert server.asked[1][2]["Farm-Client"] == "me"
    assert "Content-Type" not in server.asked[1][2]
    client.close()


def test_the_url_itself_is_asked_with_its_query(server: Server) -> None:
    client = HttpClient(f"{server.url}/a%20b c/?key=1", keep=False)
    assert client.ask("")[2] == b"GET /a%20b%20c?key=1 "
    assert client.ask("/x")[2] == b"GET /a%20b%20c/x "
    assert HttpClient(server.url, keep=False).ask("")[2] == b"GET / "


def test_what_no_header_can_have_is_refused(client: HttpClient, server: Server) -> None:
    for value in ("a\r\nEvil: b", "\u2603"):
        with pytest.raises(InvalidRequest, match="HTTP cannot have this header"):
            client.ask("/x", headers={"Farm-Client": value})
    assert client.ask("/x")[0] == 200
    assert server.paths == ["/x"]


def test_an_answer_that_ends_with_its_connection(client: HttpClient, server: Server) -> None:
    assert ask(client, "/unframed") == b"GET /unframed "
    assert ask(client, "/x") == b"GET /x "
    assert len(server.ports) == 2


def test_an_answer_may_be_read_in_portions(client: HttpClient, server: Server) -> None:
    for path in ("/long", "/unframed"):
        with client.answer(path) as answer:
            assert b"".join(answer.portions()).startswith(f"GET {path} ".encode())
    assert len(server.ports) == 1
    with pytest.raises(Unavailable, match="too early"), client.answer("/half") as answer:
        list(answer.portions())


@pytest.mark.parametrize(
    "head",
    [b"Content-Length: 1000000000000000\r\n\r\n", b"\r\n", b"Transfer-Encoding: chunked\r\n\r\n"],
)
def test_an_answer_that_is_too_long_is_not_read(head: bytes) -> None:
    """A length that nobody has memory for, and bodies without an end."""
    sent = 0

    def serve(listener: socket.socket) -> None:
        nonlocal sent
        connection, _ = listener.accept()
        piece = b"10000\r\n" + bytes(0x10000) + b"\r\n"
        with connection, contextlib.suppress(OSError):
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\n" + head)
            while sent < 2**28:
                sent += connection.send(piece)

    with (
        asking(serve) as client,
        pytest.raises(InvalidOutput, match=f"longer than {2**20} bytes, the most"),
    ):
        client.ask("/x", most=2**20)
    assert sent < 2**27, "it hung up"


def test_a_refusal_of_a_long_body_is_read() -> None:
    """Some servers answer and close before they have read the whole body."""

    def refuse(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        connection.recv(100)
        connection.sendall(b"HTTP/1.1 413 Too Long\r\nContent-Length: 4\r\n\r\nlong")
        connection.shutdown(socket.SHUT_WR)
        connection.close()  # with bytes unread, so that the client's next write fails

    with asking(refuse) as client:
        assert client.ask("/x", bytes(2**23))[::2] == (413, b"long")


# Connections


@pytest.mark.parametrize(("keep", "ports", "said"), [(True, 1, None), (False, 3, "close")])
def test_a_connection_is_kept_or_each_request_has_its_own(
    server: Server, keep: bool, ports: int, said: str | None
) -> None:
    client = HttpClient(server.url, keep=keep)
    for _ in range(3):
        client.ask("/x")
    assert len(server.ports) == ports
    assert server.asked[0][2].get("Connection") == said
    client.close()


FORKER = """
import os, sys, threading
from farm.http1.client import Cancellation, HttpClient

client = HttpClient(sys.argv[1], keep=True)
asked = threading.Event()

class Watching(Cancellation):
    def watch(self, used):
        super().watch(used)
        self.used = used
        asked.set()

request = Watching()
def run():
    with client.answer("/slow", cancellation=request):
        pass

def connection():
    return client._idle[-1][1].sock.getsockname()

threading.Thread(target=run, daemon=True).start()
asked.wait()
client.ask("/x")
mine = connection()
child = os.fork()
if child == 0:
    assert request.used.fileno() == -1  # its parent's request ends with the parent
    request.cancel()  # and this is no business of the parent
    client.ask("/x")
    assert connection() != mine
    client.close()
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert request.used.fileno() >= 0
client.ask("/x")
assert connection() == mine
"""


def test_a_forked_process_has_connections_of_its_own(server: Server) -> None:
    subprocess.run([sys.executable, "-c", FORKER, server.url], check=True, timeout=LIMIT_S)
    assert len({port for port, path, *_ in server.asked if path == "/x"}) == 2


def test_an_idle_connection_is_not_trusted(
    client: HttpClient, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.ask("/x")
    monkeypatch.setattr(http_client, "IDLE_S", -1.0)
    client.ask("/x")
    assert len(server.ports) == 2


def test_threads_that_ask_at_once_have_a_connection_each(
    client: HttpClient, server: Server
) -> None:
    threads = [threading.Thread(target=client.ask, args=("/slow",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(server.asked) == 4)
    server.go.set()
    for thread in threads:
        thread.join(LIMIT_S)
    assert len(server.ports) == 4
    client.ask("/x")
    assert len(server.ports) == 4


def test_an_idle_connection_that_the_server_closes_is_not_used() -> None:
    def serve(listener: socket.socket) -> None:
        for _ in range(2):
            connection, _ = listener.accept()
            with connection:
                connection.recv(2**16)
                connection.sendall(OK)

    with asking(serve) as client:
        assert ask(client, "/x") == b"ok"
        (_, connection), *_ = client._idle
        assert select.select([connection.sock], [], [], LIMIT_S)[0], "the server closes it"
        assert ask(client, "/x") == b"ok"


def test_an_answer_that_is_left_before_its_end_leaves_no_connection(
    client: HttpClient, server: Server
) -> None:
    """The rest of the answer may still be in transit."""
    with client.answer("/stall"):
        pass
    assert ask(client, "/x") == b"GET /x "
    with client.answer("/long") as answer:
        answer.response.read(10)
    assert ask(client, "/x") == b"GET /x "
    assert len(server.ports) == 3


def test_a_client_that_is_dropped_closes_its_connections(server: Server) -> None:
    client = HttpClient(server.url, keep=True)
    client.ask("/x")
    (_, connection), *_ = client._idle
    del client
    assert connection.sock is None


def test_a_closed_client_asks_no_more(client: HttpClient, server: Server) -> None:
    client.ask("/x")
    client.close()
    with pytest.raises(Unavailable, match="the client is closed"):
        client.ask("/x")
    assert server.paths == ["/x"]


def test_the_keepalive_of_a_connection(client: HttpClient) -> None:
    client.ask("/x")
    (_, connection), *_ = client._idle
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        option = getattr(socket, name)
        assert connection.sock.getsockopt(socket.IPPROTO_TCP, option) == value
    assert connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert connection.sock.gettimeout() is None


# Requests that are sent again, and those that never are


def test_a_request_without_an_answer_is_not_sent_again(client: HttpClient, server: Server) -> None:
    """The model may have run even though the connection ended."""
    ask(client, "/x")
    for path in ("/drop", "/half"):
        with pytest.raises(Unavailable, match="does not answer"):
            ask(client, path, b"{}")
    assert server.paths == ["/x", "/drop", "/half"]
    assert ask(client, "/x") == b"GET /x "


def test_a_server_that_hangs_up_is_asked_again_unless_its_answer_has_begun(
    client: HttpClient, server: Server
) -> None:
    for path in ("/drop", "/half"):
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:\d+ does not answer"):
            client.ask(path, b"x")
    assert server.paths == ["/drop", "/drop", "/half"]
    server.asked.clear()
    for path in ("/drop", "/half"):
        client.ask("/x")
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:\d+ does not answer"):
            client.ask(path, b"x")
    assert server.paths == ["/x", "/drop", "/drop", "/x", "/half"]


@pytest.mark.parametrize("keep", [True, False])
def test_a_request_that_must_not_run_twice_is_sent_once(server: Server, keep: bool) -> None:
    """Without kept connections, no request is sent again."""
    client = HttpClient(server.url, keep=keep)
    client.ask("/x")
    with pytest.raises(Unavailable, match="does not answer"):
        client.ask("/drop", b"x", once=keep)
    assert server.paths == ["/x", "/drop"]
    assert len(server.ports) == 2, "not on one that the server may just be closing"
    assert server.asked[1][2]["Connection"] == "close"
    client.close()


def test_a_connection_that_closes_as_it_is_used_costs_no_call() -> None:
    """The connection closes while the request is in transit; nothing announces it before."""
    asked: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        for _ in range(2):
            connection, _ = listener.accept()
            with connection:
                asked.append(connection.recv(2**16))
                connection.sendall(OK)
                asked.append(connection.recv(2**16))

    with asking(serve) as client:
        assert client.ask("/a")[2] == client.ask("/b")[2] == b"ok"
    assert [request.split()[1] for request in asked[:3]] == [b"/a", b"/b", b"/b"]


# Connecting


def test_a_server_that_comes_up_late_is_waited_for() -> None:
    pauses: list[float] = []
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))

        class Watched(Cancellation):
            def wait(self, seconds: float) -> None:
                pauses.append(seconds)
                if len(pauses) == 2:
                    listener.listen()

        client = HttpClient(f"http://127.0.0.1:{listener.getsockname()[1]}", keep=True)
        client._connected(Watched()).close()
    assert pauses == list(http_client.CONNECT_PAUSES_S[:2])


def test_nobody_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "CONNECT_PAUSES_S", (0.0,))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        client = HttpClient(f"http://127.0.0.1:{probe.getsockname()[1]}", keep=True)
        with pytest.raises(Unavailable, match=r"http://127.*: Connection refused"):
            client.ask("/x")


def test_a_model_may_take_longer_than_connecting(server: Server) -> None:
    client = HttpClient(server.url, keep=True, connect_s=0.1)
    threading.Timer(0.3, server.go.set).start()
    assert ask(client, "/slow") == b"GET /slow "
    client.close()


# Addresses


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
    assert Address("http://me:se%2Fcret@h").headers["Authorization"] == "Basic bWU6c2UvY3JldA=="
    assert Address("http://h", "t0ken").headers["Authorization"] == "Bearer t0ken"
    assert "uthorization" not in "".join(Address("http://h").headers)


@pytest.mark.parametrize(
    "url", ["host:80", "host:4242", "ftp://host", "http://", "http:///x", "http://a:b"]
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(Unavailable, match="is not the address of a server; expected http://host"):
        Address(url)


def test_a_process_that_asks_no_server_starts_without_the_library() -> None:
    code = "import sys, farm.provision.local.process; sys.exit('http.client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def cancelled_while(
    client: HttpClient,
    path: str,
    under_way: Callable[[], object],
    body: bytes = b"",
    *,
    again: bool = False,
) -> BaseException | None:
    """How a request ends that is cancelled once it is under way."""
    cancellation = Cancellation()
    ended: list[BaseException | None] = []

    def wait() -> None:
        try:
            with client.answer(path, body, again=again, cancellation=cancellation) as answer:
                answer.read()
            ended.append(None)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(under_way)
    Cancellation().cancel()  # of another request: nothing happens
    assert not ended
    cancellation.cancel()
    thread.join(LIMIT_S)
    (end,) = ended
    return end


def test_another_thread_cancels_a_request(client: HttpClient, server: Server) -> None:
    ended = cancelled_while(client, "/slow", lambda: server.asked)
    assert isinstance(ended, Cancelled)
    server.go.set()
    assert client.ask("/x")[2] == b"GET /x "


def test_a_cancelled_request_on_a_used_connection_is_not_sent_again(
    client: HttpClient, server: Server
) -> None:
    client.ask("/x")
    ended = cancelled_while(client, "/slow", lambda: "/slow" in server.paths, b"x", again=True)
    assert isinstance(ended, Cancelled)
    assert server.paths == ["/x", "/slow"]


def test_a_request_is_cancelled_while_it_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that is full lets no connection in, and says nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        place = listener.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(place)
        watched: list[object] = []
        watch = Cancellation.watch

        def watch_and_note(cancellation: Cancellation, used: socket.socket) -> None:
            watch(cancellation, used)
            watched.append(used)

        monkeypatch.setattr(Cancellation, "watch", watch_and_note)
        client = HttpClient(f"http://127.0.0.1:{place[1]}", keep=True, connect_s=10 * LIMIT_S)
        ended = cancelled_while(client, "/x", lambda: watched)
        assert isinstance(ended, Cancelled)
        for one in waiting:
            one.close()


def test_a_request_is_cancelled_while_it_sends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = HttpClient(f"http://127.0.0.1:{listener.getsockname()[1]}", keep=True)
        accepted: list[socket.socket] = []
        threading.Thread(target=lambda: accepted.append(listener.accept()[0])).start()
        ended = cancelled_while(client, "/x", lambda: accepted, bytes(2**26))
        assert isinstance(ended, Cancelled)
        accepted[0].close()


def test_a_request_that_is_cancelled_before_is_not_sent(client: HttpClient, server: Server) -> None:
    cancellation = Cancellation()
    cancellation.cancel()
    with (
        pytest.raises(Cancelled, match="was cancelled"),
        client.answer("/x", b"", cancellation=cancellation),
    ):
        pass
    assert server.asked == []


def test_cancelling_too_late_harms_no_other_request(client: HttpClient, server: Server) -> None:
    cancellation = Cancellation()
    with client.answer("/x", cancellation=cancellation) as answer:
        answer.read()
    with client.answer("/y") as answer:
        cancellation.cancel()
        assert answer.read() == b"GET /y "
    assert len(server.ports) == 1


def test_closing_cancels_what_is_under_way(client: HttpClient, server: Server) -> None:
    def close() -> None:
        wait_until(lambda: server.asked)
        client.close()

    closing = threading.Thread(target=close)
    closing.start()
    with pytest.raises(Cancelled):
        client.ask("/slow")
    closing.join(LIMIT_S)


def test_tls_is_verified(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "CONNECT_PAUSES_S", ())
    tls = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key)
    server.secure(context)
    url = server.url.replace("http:", "https:")
    with pytest.raises(Unavailable, match="certificate verify failed"):
        HttpClient(url, keep=True).ask("/x")
    monkeypatch.setenv("SSL_CERT_FILE", str(tls.certificate))
    client = HttpClient(url, keep=True)
    for _ in range(2):
        assert client.ask("/x")[2] == b"GET /x "
    assert len(server.ports) == 1
    with pytest.raises(Unavailable, match=r"certificate verify failed: .*mismatch"):
        HttpClient(url.replace("127.0.0.1", "localhost"), keep=True).ask("/x")
    ended = cancelled_while(client, "/slow", lambda: "/slow" in server.paths)
    assert isinstance(ended, Cancelled)
    client.close()
