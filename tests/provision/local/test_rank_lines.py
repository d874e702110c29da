"""The lines between ranks and their supervisor, over real sockets and to real processes."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from farm.provision.local.rank_lines import RankLines, Talk
from tests.support.running_farm import LIMIT_S, wait_until


@pytest.fixture(params=[True, False], ids=["socket file", "port"])
def lines(request: pytest.FixtureRequest) -> Iterator[RankLines]:
    made = RankLines(loopback=request.param, ranks=2)
    yield made
    made.cut()
    made.cut()


def dialed(lines: RankLines, kind: str = "") -> socket.socket:
    """A connection whose end this process survives; kind: its first message."""
    secret, _, where = lines.address.partition("@")
    if where.startswith("/"):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(where)
    else:
        host, _, port = where.rpartition(":")
        connection = socket.create_connection((host, int(port)))
    if kind:
        connection.sendall(f"{kind} {secret}\n".encode())
    return connection


def heard(lines: RankLines, count: int) -> list[dict[str, object]]:
    """Return the next `count` facts."""
    facts: list[dict[str, object]] = []

    def enough() -> bool:
        facts.extend(lines.read())
        return len(facts) >= count

    wait_until(enough, f"{count} facts are heard")
    return facts


def test_rank_0_tells_facts_and_hears_the_drain(lines: RankLines) -> None:
    drained: list[str] = []
    talk = Talk(lines.address, lambda: drained.append("drain"))
    talk.say(worker="w1")
    talk.say(running=[1, 2])
    assert heard(lines, 2) == [{"worker": "w1"}, {"running": [1, 2]}]
    lines.drain()
    wait_until(lambda: drained == ["drain"], "the drain is heard")
    late = Talk(lines.address, lambda: drained.append("late"))
    late.say(worker="w2")
    heard(lines, 1)
    wait_until(lambda: drained == ["drain", "late"], "who dials in later hears it too")


def test_news_make_the_descriptor_readable(lines: RankLines) -> None:
    assert select.select([lines.fileno()], [], [], 0)[0] == []
    talk = Talk(lines.address, lambda: None)
    assert select.select([lines.fileno()], [], [], LIMIT_S)[0]
    heard_before = list(lines.read())
    talk.say(done=True)
    assert heard_before + heard(lines, 1) == [{"done": True}]


@pytest.mark.parametrize("words", [b"lifeline wrong\n", b"\n", b"GET / HTTP/1.1\r\n\r\n"])
def test_who_does_not_know_the_secret_is_nobody(lines: RankLines, words: bytes) -> None:
    with dialed(lines) as stranger:
        stranger.sendall(words + b'{"done": true}\n')
        stranger.settimeout(LIMIT_S)
        found: list[object] = []

        def closed() -> bool:
            found.extend(lines.read())
            return bool(select.select([stranger], [], [], 0)[0])

        wait_until(closed, "the stranger is sent away")
    assert found == []
    assert not lines.gone


def test_what_is_no_line_is_cut_off(lines: RankLines) -> None:
    with dialed(lines) as stranger:
        stranger.setblocking(False)
        stranger.send(b"lifeline ")

        def closed() -> bool:
            with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
                stranger.send(b"x" * 65536)
            list(lines.read())
            return bool(select.select([stranger], [], [], 0)[0])

        wait_until(closed, "the stranger is sent away")


RANK = """
import ctypes, sys
from farm.provision.local.rank_lines import RankLifeline
from farm.provision.local.rank_parent import dial
line = RankLifeline(dial(sys.argv[1], "lifeline").detach())
line.name(3)
print("tied", flush=True)
ctypes.PyDLL(None).sleep(100)  # holds the interpreter
"""


@pytest.fixture
def rank(lines: RankLines) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", RANK, lines.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert heard(lines, 1) == [{"rank": 3, "host": socket.gethostname(), "pid": process.pid}]
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_a_rank_dies_with_its_line_whatever_it_does(
    lines: RankLines, rank: subprocess.Popen[str]
) -> None:
    assert rank.poll() is None
    lines.cut()
    assert rank.wait(LIMIT_S) == -signal.SIGKILL


def test_the_end_of_a_rank_is_noticed(lines: RankLines, rank: subprocess.Popen[str]) -> None:
    assert not lines.gone
    rank.kill()
    wait_until(lambda: list(lines.read()) == [] and lines.gone, "a rank is gone")
    assert lines.failed is None, "its parent has not reported how it ended"


def test_the_first_end_that_is_reported_is_that_of_the_rank_that_failed(lines: RankLines) -> None:
    first, second, unnamed = (dialed(lines, "lifeline") for _ in range(3))
    first.sendall(b'{"rank": 3}\n')
    second.sendall(b'{"rank": 0}\n')
    heard(lines, 2)
    first.sendall(b'{"ended": -11, "asked": false}\n')
    heard(lines, 1)
    assert lines.failed == (3, -11)
    for later in (second, unnamed):
        later.sendall(b'{"ended": 0, "asked": false}\n')
    heard(lines, 2)
    assert lines.failed == (3, -11)
    for rank in (first, second, unnamed):
        rank.close()


def test_a_rank_that_ends_before_it_has_joined_has_no_number(lines: RankLines) -> None:
    with dialed(lines, "lifeline") as rank:
        rank.sendall(b'{"ended": 1, "asked": false}\n')
        heard(lines, 1)
    assert lines.failed == (None, 1)


@pytest.mark.parametrize(
    "words", [b'{"follows": true}\n{"ended": 76}\n', b'{"ended": 0, "asked": true}\n']
)
def test_a_rank_that_ends_because_of_another_has_not_failed(lines: RankLines, words: bytes) -> None:
    """It follows another one, or its launcher has asked it to end."""
    with dialed(lines, "lifeline") as guilty:
        with dialed(lines, "lifeline") as follower:
            guilty.sendall(b'{"rank": 0}\n')
            follower.sendall(b'{"rank": 1}\n' + words)
            heard(lines, 2 + words.count(b"\n"))
        with dialed(lines, "lifeline") as later:  # read after the follower's end
            later.sendall(b'{"rank": 2}\n')
            heard(lines, 1)
        assert lines.failed is None
        guilty.sendall(b'{"ended": 3, "asked": false}\n')
        heard(lines, 1)
    assert lines.failed == (0, 3)


def test_on_one_host_no_port_is_opened_and_no_file_stays() -> None:
    lines = RankLines(loopback=True, ranks=1)
    path = Path(lines.address.partition("@")[2])
    assert path.is_socket()
    assert path.parent.stat().st_mode & 0o777 == 0o700
    with dialed(lines, "lifeline"), dialed(lines, "talk"):
        wait_until(lambda: list(lines.read()) == [] and not path.parent.exists(), "all are here")
    lines.cut()
    other = RankLines(loopback=True, ranks=1)
    other.cut()
    assert not Path(other.address.partition("@")[2]).parent.exists()
