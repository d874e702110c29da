"""The lines between ranks and their supervisor, over real sockets and to real processes."""

from __future__ import annotations

import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from farm.provision.rank_lines import RankLines, Talk
from tests.running_farm import LIMIT_S, wait_until


@pytest.fixture
def lines() -> Iterator[RankLines]:
    made = RankLines(loopback=True)
    yield made
    made.cut()
    made.cut()


def heard(lines: RankLines, count: int) -> list[dict[str, object]]:
    """The next facts, once so many have come."""
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
    where = lines.address.partition("/")[0].rpartition(":")
    with socket.create_connection((where[0], int(where[2]))) as stranger:
        stranger.sendall(words + b'{"done": true}\n')
        stranger.settimeout(LIMIT_S)
        found: list[object] = []

        def closed() -> bool:
            found.extend(lines.read())
            return bool(select.select([stranger], [], [], 0)[0])

        wait_until(closed, "the stranger is sent away")
    assert found == []
    assert lines.gone is None


def test_what_is_no_line_is_cut_off(lines: RankLines) -> None:
    where = lines.address.partition("/")[0].rpartition(":")
    with socket.create_connection((where[0], int(where[2]))) as stranger:
        stranger.sendall(b"lifeline " + b"x" * (1 << 20))
        stranger.settimeout(LIMIT_S)

        def closed() -> bool:
            list(lines.read())
            return bool(select.select([stranger], [], [], 0)[0])

        wait_until(closed, "the stranger is sent away")


RANK = """
import ctypes, sys
from farm.provision.rank_lines import Lifeline
line = Lifeline(sys.argv[1])
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


def test_the_first_rank_to_go_is_known(lines: RankLines, rank: subprocess.Popen[str]) -> None:
    where, _, secret = lines.address.partition("/")
    host, _, port = where.rpartition(":")
    other = socket.create_connection((host, int(port)))  # untied: this process has to live on
    other.sendall(f"lifeline {secret}\n".encode())
    assert list(lines.read()) == []
    rank.kill()

    def gone() -> bool:
        list(lines.read())
        return lines.gone is not None

    wait_until(gone, "a rank is gone")
    assert lines.gone == 3
    other.close()
    list(lines.read())
    assert lines.gone == 3


def test_of_ranks_that_went_before_anybody_looked_none_is_named(lines: RankLines) -> None:
    where, _, secret = lines.address.partition("/")
    host, _, port = where.rpartition(":")
    ranks = [socket.create_connection((host, int(port))) for _ in range(2)]
    for number, rank in enumerate(ranks):
        rank.sendall(f'lifeline {secret}\n{{"rank": {number}}}\n'.encode())
    assert len(heard(lines, 2)) == 2
    for rank in ranks:
        rank.close()
    wait_until(lambda: list(lines.read()) == [] and lines.gone is not None, "ranks are gone")
    assert lines.gone == -1
