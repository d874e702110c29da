"""Requests that another thread cancels: while they connect, send, wait, or too late."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from farm.errors import Cancelled, Unavailable
from farm.http import client as http_client
from farm.http.client import Cancellation, HttpClient
from tests.support.certificates import certificate
from tests.support.coroutines import LIMIT_S, wait_until
from tests.support.recording_server import Server


def cancelled_while(
    client: HttpClient, path: str, under_way: Callable[[], object], body: bytes = b""
) -> BaseException | None:
    """How a request ends that is cancelled once it is under way."""
    cancellation = Cancellation()
    ended: list[BaseException | None] = []

    def wait() -> None:
        try:
            with client.answer(path, body, cancellation=cancellation) as answer:
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
    cancellation = Cancellation()
    threading.Timer(0.1, cancellation.cancel).start()
    with (
        pytest.raises(Cancelled),
        client.answer("/slow", b"x", again=True, cancellation=cancellation),
    ):
        pass
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
    threading.Timer(0.1, client.close).start()
    with pytest.raises(Cancelled):
        client.ask("/slow")


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
