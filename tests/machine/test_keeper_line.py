"""A front door's end of the line to its keeper, with a socket in place of the keeper."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator

import pytest

from farm.errors import Unavailable
from farm.machine import keeper as parent
from farm.machine.keeper_line import KeeperLine, keeper


class Ends:
    """Both ends of a line: the keeper's, a plain socket, and the front door's."""

    def __init__(self) -> None:
        self.ours, theirs = socket.socketpair()
        self.theirs = theirs.detach()
        self._line: KeeperLine | None = None

    def line(self, words: bytes = b"restarts 0 \ngo\n") -> KeeperLine:
        """Return the front door's end, after these first words of the keeper."""
        if words:
            self.ours.sendall(words)
        self._line = KeeperLine(os.dup(self.theirs))
        return self._line

    def close(self) -> None:
        self.ours.close()
        os.close(self.theirs)
        if self._line is not None:
            self._line._line.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.close()


def test_it_learns_of_restarts(ends: Ends) -> None:
    line = ends.line(b"restarts 3 ended with exit status 1: OSError: no\ngo\n")
    assert (line.restarts, line.reason) == (3, "ended with exit status 1: OSError: no")


def test_a_keeper_that_is_gone_before_its_first_words_is_an_error(ends: Ends) -> None:
    ends.ours.sendall(b"restarts 0 \n")
    ends.ours.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionResetError, match="it has ended"):
        ends.line(b"")


def test_errors_are_one_line(ends: Ends) -> None:
    ends.line().fails("ValueError:\n  first\nsecond" + 9000 * "x")
    told = ends.ours.recv(65536)
    assert told.startswith(b"error ValueError: first secondxxx")
    assert told.count(b"\n") == 1
    assert len(told) < 2100


def test_a_handed_socket_is_not_for_programs_that_are_started(ends: Ends) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        socket.send_fds(ends.ours, [b"socket a\n"], [listening.fileno()])
        taken = ends.line().take("a")
        assert taken is not None
        with taken:
            assert taken.getsockname() == listening.getsockname()
            assert not os.get_inheritable(taken.fileno())
            assert not taken.getblocking()


@pytest.mark.parametrize(
    "how", ["asked", "hurried", "asked at once", "ended", "ended with words unread"]
)
async def test_a_stop_is_heard(ends: Ends, how: str) -> None:
    at_once = how == "asked at once"
    line = ends.line(b"restarts 0 \ngo\n" + (b"stop\n" if at_once else b""))
    stop, hurry = asyncio.Event(), asyncio.Event()
    line.on_stop(stop.set, hurry.set)
    assert stop.is_set() == at_once
    if how == "asked":
        ends.ours.sendall(b"stop\n")
    elif how == "hurried":
        ends.ours.sendall(b"stop\nhurry\n")
    elif how == "ended with words unread":
        line.serves()
    if how.startswith("ended"):
        ends.ours.close()
    async with asyncio.timeout(10.0):
        await stop.wait()
    assert hurry.is_set() == (how == "hurried")
    asyncio.get_running_loop().remove_reader(line._line)


@pytest.fixture
def started(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process has a line, as if a keeper had started it."""
    keeper.cache_clear()
    assert keeper() is None
    keeper.cache_clear()
    monkeypatch.setenv(parent.LINE, str(os.dup(ends.theirs)))
    yield
    keeper.cache_clear()


@pytest.mark.usefixtures("started")
def test_only_a_process_that_a_keeper_started_has_a_line(ends: Ends) -> None:
    ends.ours.sendall(b"restarts 2 was killed\ngo\n")
    line = keeper()
    assert line is not None
    assert line.restarts == 2
    assert parent.LINE not in os.environ
    assert keeper() is line
    line._line.close()


@pytest.mark.usefixtures("started")
def test_a_process_whose_keeper_has_ended_is_told(ends: Ends) -> None:
    ends.ours.close()
    with pytest.raises(Unavailable, match="keeper of this front door"):
        keeper()
