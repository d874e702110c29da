"""The fitting process, tested through its pipes."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
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


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    read_end, write_end = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-m", "farm.experiment.ask.fitter", str(read_end)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=(read_end,),
    ) as process:
        os.close(read_end)
        yield process
        os.close(write_end)
        process.kill()


def answer(process: subprocess.Popen[bytes]) -> object:
    assert process.stdout is not None
    (length,) = LENGTH.unpack(process.stdout.read(LENGTH.size))
    return pickle.loads(process.stdout.read(length))


def test_work_in_and_what_comes_of_it_out(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(message(ASK) + message(WRONG) + message(ASK))
    process.stdin.flush()
    first, second, third = (answer(process) for _ in range(3))
    assert isinstance(first, Generated)
    assert isinstance(second, InvalidInput)
    assert isinstance(third, Generated)
    assert np.array_equal(first.points, third.points)
    assert Path(f"/proc/{process.pid}/oom_score_adj").read_text() == "800\n"
    process.stdin.close()
    assert process.wait(LIMIT_S) == 0


class Talkative:
    """Work that prints while it is created."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("a library says hello",)


def test_what_is_printed_is_no_message(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(message(Talkative()) + message(ASK))
    process.stdin.close()
    assert process.stdout is not None
    assert process.stdout.read() == b""  # print returns None, which ends the process
    assert process.wait(LIMIT_S) == 0
    assert process.stderr is not None
    assert process.stderr.read() == b"a library says hello\n"


def test_it_ends_with_its_lifeline() -> None:
    read_end, write_end = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-m", "farm.experiment.ask.fitter", str(read_end)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=(read_end,),
    ) as process:
        os.close(read_end)
        os.close(write_end)
        assert process.wait(LIMIT_S) == 1


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
