"""Socket files: their access rights, their places, and their removal."""

from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from farm.errors import Unavailable
from farm.machine.peer import peer_uid
from farm.transports.stream import address as module
from farm.transports.stream.address import FILE, ListeningSocket, dial_path
from farm.transports.stream.line import StreamLine
from tests.support.coroutines import LIMIT_S


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_socket_is_for_its_owner_alone(tmp_path: Path) -> None:
    place = ListeningSocket(tmp_path)
    assert place.path == tmp_path / FILE
    assert mode(place.path) == 0o600
    line = dial_path(str(place.path), "node/1-a")
    assert line is not None
    accepted, _ = place.socket.accept()
    assert peer_uid(accepted) == os.getuid()
    accepted.close()
    line.close()
    place.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("reason", ["long", "not a folder"])
def test_where_no_socket_can_be_a_private_folder_is_taken(reason: str, tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120) if reason == "long" else tmp_path / "file"
    folder.mkdir() if reason == "long" else folder.touch()
    place = ListeningSocket(folder)
    assert place.path.parent != folder
    assert len(os.fsencode(place.path)) <= module.LONGEST_PATH
    assert mode(place.path.parent) == 0o700
    assert mode(place.path) == 0o600
    line = dial_path(str(place.path), "node/1-a")
    assert line is not None
    line.close()
    place.close()
    assert not place.path.parent.exists()


def test_nowhere_to_listen_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_PATH", 5)
    with pytest.raises(Unavailable, match="cannot listen at a unix socket"):
        ListeningSocket(tmp_path)


def test_a_socket_that_a_dead_farm_left_is_replaced(tmp_path: Path) -> None:
    stale = ListeningSocket(tmp_path)
    stale.socket.close()
    assert dial_path(str(stale.path), "node/1-a") is None
    place = ListeningSocket(tmp_path)
    line = dial_path(str(place.path), "node/1-a")
    assert line is not None
    line.close()
    stale.close()  # which does not remove another farm's file
    assert place.path.exists()
    place.close()


def test_nobody_there_is_none(tmp_path: Path) -> None:
    assert dial_path(str(tmp_path / FILE), "node/1-a") is None
    (tmp_path / FILE).touch()
    assert dial_path(str(tmp_path / FILE), "node/1-a") is None
    assert dial_path(str(tmp_path / ("x" * 200)), "node/1-a") is None


def test_a_full_queue_of_others_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection to a unix socket whose queue is full fails at once, unlike one over TCP."""
    monkeypatch.setattr(module, "BACKLOG", 1)
    place = ListeningSocket(tmp_path)
    others = []
    full = False
    while not full:
        others.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        others[-1].setblocking(False)
        full = others[-1].connect_ex(str(place.path)) != 0
    waits = threading.Event()

    def pause(seconds: float) -> None:
        waits.set()

    monkeypatch.setattr("time.sleep", pause)
    dialed: list[object] = []
    dialing = threading.Thread(target=lambda: dialed.append(dial_path(str(place.path), "x")))
    dialing.start()
    assert waits.wait(LIMIT_S)
    place.socket.setblocking(True)
    accepted = [place.socket.accept()[0] for _ in others]  # one less, and the one that connects
    dialing.join(LIMIT_S)
    (line,) = dialed
    assert isinstance(line, StreamLine)
    line.close()
    for each in [*others, *accepted]:
        each.close()
    place.close()


def test_a_socket_of_another_user_is_not_talked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = ListeningSocket(tmp_path)
    monkeypatch.setattr(module, "peer_uid", lambda connected: os.getuid() + 1)
    assert dial_path(str(place.path), "node/1-a") is None
    accepted, _ = place.socket.accept()
    assert accepted.recv(100) == b""  # not even our name
    accepted.close()
    place.close()
