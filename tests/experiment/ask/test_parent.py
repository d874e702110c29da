"""The process that fitting processes are forked from, by its socket alone."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from farm.errors import Unavailable
from farm.experiment.ask.fitter import LENGTH, message
from farm.experiment.ask.parent import ASKED, NEWS
from farm.experiment.config.reader import read_config
from farm.experiment.config.work import Data, Generate, Generated, Query, QueryKind, Work
from farm.machine.programs import python
from tests.support.coroutines import LIMIT_S
from tests.support.experiment_clients import CONFIG

NONE = Data(np.empty((0, 1, 2)), np.empty((0, 1)), 1)
ASK = Generate(read_config(CONFIG), 0, 2, 0, NONE, np.empty((0, 1, 2)))


@contextmanager
def started(*words: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], socket.socket]]:
    read_end, write_end = os.pipe()
    ours, theirs = socket.socketpair()
    given = (read_end, theirs.fileno())
    with ours, subprocess.Popen(
        [*python("farm.experiment.ask.parent"), *map(str, given), *words],
        pass_fds=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **variables},
    ) as process:  # fmt: skip
        os.close(read_end)
        theirs.close()
        yield process, ours
        os.close(write_end)
        process.kill()


@pytest.fixture
def parent() -> Iterator[tuple[subprocess.Popen[str], socket.socket]]:
    with started() as pair:
        yield pair


class Child:
    """The server's ends of a process that a parent has been asked for."""

    def __init__(self, control: socket.socket) -> None:
        self.line, theirs = socket.socketpair()
        self.line.settimeout(LIMIT_S)
        lifeline, self.write_end = os.pipe()
        self.news, news = os.pipe()
        socket.send_fds(control, [ASKED], [theirs.fileno(), lifeline, news])
        theirs.close()
        for end in (lifeline, news):
            os.close(end)

    def told(self) -> int | None:
        data = os.read(self.news, NEWS.size)
        return int(NEWS.unpack(data)[0]) if data else None

    def ask(self, work: Work = ASK) -> object:
        self.line.sendall(message(work))
        with self.line.makefile("rb") as read:
            (length,) = LENGTH.unpack(read.read(LENGTH.size))
            return pickle.loads(read.read(length))

    def close(self) -> None:
        self.line.close()
        os.close(self.news)


def test_each_byte_is_a_process_that_is_reported(
    parent: tuple[subprocess.Popen[str], socket.socket],
) -> None:
    process, control = parent
    first, second, third = (Child(control) for _ in range(3))
    pids = [child.told() for child in (first, second, third)]
    assert len({process.pid, *pids}) == 4
    assert isinstance(first.ask(), Generated)
    assert isinstance(second.ask(), Generated)
    first.line.shutdown(socket.SHUT_WR)
    assert first.told() == 0
    os.close(second.write_end)
    assert second.told() in (1, -signal.SIGKILL)
    pid = pids[2]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert third.told() == -signal.SIGKILL
    assert [child.told() for child in (first, second, third)] == [None] * 3
    control.shutdown(socket.SHUT_WR)
    assert process.wait(LIMIT_S) == 0
    os.close(first.write_end)
    os.close(third.write_end)
    for child in (first, second, third):
        child.close()


class Talkative:
    """Work that prints while it is created."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("a library says hello",)


def test_what_is_printed_goes_to_the_log(
    parent: tuple[subprocess.Popen[str], socket.socket],
) -> None:
    process, control = parent
    child = Child(control)
    child.line.sendall(message(Talkative()))  # print returns None, which ends the process
    assert child.line.recv(1) == b""
    child.told()
    assert child.told() == 0
    control.shutdown(socket.SHUT_WR)
    out, said = process.communicate(timeout=LIMIT_S)
    assert (out, said) == ("", "a library says hello\n")
    os.close(child.write_end)
    child.close()


MODEL = {
    **CONFIG,
    "begin": {"generator": "RandomGenerator", "min_asks": 3, "model": "GPRegressionModel"},
}


def test_a_library_that_cannot_be_loaded_is_an_error_of_the_work(tmp_path: Path) -> None:
    (tmp_path / "botorch.py").write_text("raise OSError('libtorch.so: wrong ELF class')\n")
    with started("load", PYTHONPATH=str(tmp_path)) as (_, control):
        child = Child(control)
        answer = child.ask(Query(read_config(MODEL), 0, QueryKind.MAX, NONE))
        assert isinstance(answer, Unavailable)
        assert "OSError: libtorch.so: wrong ELF class" in answer.message
        os.close(child.write_end)
        child.close()


def test_a_child_gives_its_descriptors_to_no_program(
    parent: tuple[subprocess.Popen[str], socket.socket],
) -> None:
    child = Child(parent[1])
    child.ask()
    pid = child.told()
    kept = []
    for info in Path(f"/proc/{pid}/fdinfo").iterdir():
        flags = dict(line.split(":") for line in info.read_text().splitlines()[:2])["flags"]
        if not int(flags, 8) & os.O_CLOEXEC:
            kept.append(int(info.name))
    assert sorted(kept) == [0, 1, 2]
    os.close(child.write_end)
    child.close()
