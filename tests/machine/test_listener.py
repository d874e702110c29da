"""Listening sockets: failures, stale socket files, and access."""

from __future__ import annotations

import contextlib
import socket
import stat
from pathlib import Path

import pytest

from farm.errors import Unavailable
from farm.machine.listener import listen, listen_unix, several


def test_a_host_that_is_not_here_is_said_in_one_line() -> None:
    with pytest.raises(Unavailable, match=r"cannot listen on no\.such\.host\.invalid:0"):
        listen("no.such.host.invalid", 0)
    with pytest.raises(Unavailable, match=r"cannot listen on 203\.0\.113\.9:0"):
        listen("203.0.113.9", 0)


def test_another_port_is_advised_only_where_that_helps() -> None:
    with pytest.raises(Unavailable) as caught:
        listen("203.0.113.9", 4242)
    assert str(caught.value).endswith("Cannot assign requested address")
    with contextlib.closing(listen("127.0.0.1", 0)) as taken, pytest.raises(Unavailable) as caught:
        listen("127.0.0.1", taken.getsockname()[1])
    assert str(caught.value).endswith("Address already in use; port=0 picks a free one")


def test_accepted_connections_are_probed_and_answer_without_delay() -> None:
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        listener.setblocking(True)
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60


def test_several_sockets_share_one_queue() -> None:
    first = listen("127.0.0.1", 0)
    sockets = several(first, 3)
    with contextlib.ExitStack() as stack:
        for sock in sockets:
            stack.enter_context(sock)
        assert sockets[0] is first
        assert len({sock.fileno() for sock in sockets}) == 3
        for sock in sockets:
            client = stack.enter_context(socket.create_connection(first.getsockname()))
            connected = stack.enter_context(sock.accept()[0])
            assert connected.getpeername() == client.getsockname()


def test_a_unix_socket_is_for_its_user_alone(tmp_path: Path) -> None:
    with listen_unix(str(tmp_path / "s")):
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600


def test_what_a_dead_server_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "s"))
    left.close()
    with listen_unix(str(tmp_path / "s")), pytest.raises(Unavailable, match="in use"):
        listen_unix(str(tmp_path / "s"))
    (tmp_path / "file").write_text("mine")
    with pytest.raises(Unavailable, match="in use"):
        listen_unix(str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(Unavailable, match="too long"):
        listen_unix("/" + "x" * 200)


def test_a_server_that_is_too_busy_to_answer_lives(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(path)
        listener.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                waits = stack.enter_context(socket.socket(socket.AF_UNIX))
                waits.setblocking(False)
                waits.connect(path)
        with pytest.raises(Unavailable, match="cannot listen on unix:"):
            listen_unix(path)
