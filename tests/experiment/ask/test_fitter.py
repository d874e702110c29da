"""The fitting process, tested through its pipes."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from farm.errors import FarmError, InvalidInput, Unavailable
from farm.experiment.ask.fitter import LENGTH, message, outcome
from farm.experiment.config.reader import read_config
from farm.experiment.config.work import Data, Generate, Generated, Query, QueryKind, Work
from tests.support.coroutines import LIMIT_S
from tests.support.experiment_clients import CONFIG

READ = read_config(CONFIG)
NONE = Data(np.empty((0, 1, 2)), np.empty((0, 1)), 1)
ASK = Generate(READ, 0, 2, 0, NONE, np.empty((0, 1, 2)))
WRONG = Query(READ, 0, QueryKind.MAX, NONE)


PROGRAM = """
import sys
from farm.experiment.ask.fitter import main

sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
"""


@contextmanager
def started() -> Iterator[tuple[subprocess.Popen[bytes], socket.socket, int]]:
    """Run a fitting process; yield it, the socket to it, and the other end of its lifeline."""
    read_end, write_end = os.pipe()
    ours, theirs = socket.socketpair()
    given = (read_end, theirs.fileno())
    with ours, subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, given)], pass_fds=given, process_group=0
    ) as process:  # fmt: skip
        os.close(read_end)
        theirs.close()
        yield process, ours, write_end
        process.kill()


def answers(line: socket.socket, count: int) -> list[object]:
    found = []
    with line.makefile("rb") as read:
        for _ in range(count):
            (length,) = LENGTH.unpack(read.read(LENGTH.size))
            found.append(pickle.loads(read.read(length)))
    return found


def test_work_in_and_what_comes_of_it_out() -> None:
    with started() as (process, line, write_end):
        line.sendall(message(ASK) + message(WRONG) + message(ASK))
        first, second, third = answers(line, 3)
        assert isinstance(first, Generated)
        assert isinstance(second, InvalidInput)
        assert isinstance(third, Generated)
        assert np.array_equal(first.points, third.points)
        assert Path(f"/proc/{process.pid}/oom_score_adj").read_text() == "800\n"
        line.shutdown(socket.SHUT_WR)
        assert process.wait(LIMIT_S) == 0
        os.close(write_end)


def test_it_ends_with_its_lifeline() -> None:
    with started() as (process, line, write_end):
        line.sendall(message(ASK))
        answers(line, 1)
        os.close(write_end)
        assert process.wait(LIMIT_S) in (1, -signal.SIGKILL)  # by itself, or by the kernel


class Fails(Exception):
    """An exception that a library raises."""


@pytest.mark.parametrize("error", [Fails("a matrix\nis not positive"), MemoryError()])
def test_whatever_is_raised_is_one_line(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def execute(work: Work) -> Generated:
        raise error

    monkeypatch.setattr("farm.experiment.ask.fitter.execute", execute)
    came = outcome(ASK)
    assert isinstance(came, Unavailable)
    assert "\n" not in came.message
    if isinstance(error, Fails):
        assert came.message.endswith("Fails: a matrix is not positive")
        assert "execute" in came.detail


def test_errors_cross_as_they_are() -> None:
    came = outcome(WRONG)
    again = pickle.loads(message(came)[LENGTH.size :])
    assert isinstance(came, FarmError)
    assert type(again) is type(came)
    assert str(again) == str(came)
