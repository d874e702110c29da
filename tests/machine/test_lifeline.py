"""A lifeline ends the tied group when its holder dies, for any reason."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from farm.machine.lifeline import Lifeline, TiedProcess
from tests.support.ended import has_ended
from tests.support.running_farm import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's part is Linux's")

WAITS = [sys.executable, "-c", "import sys; sys.stdin.read()"]
HAS_A_CHILD = (
    "import ctypes, subprocess, sys;"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)']);"
    "print(child.pid, flush=True);"
    "ctypes.PyDLL(None).sleep(100)"  # holds the interpreter
)
HOLDER = f"""
import signal, sys
from farm.machine.lifeline import TiedProcess
child = TiedProcess(lambda lifeline: [sys.executable, "-c", {HAS_A_CHILD!r}])
print(child.pid, flush=True)
signal.pause()
"""


@contextmanager
def tied(code: str) -> Iterator[tuple[TiedProcess, int]]:
    """Start a process; yield it and the number that it prints."""
    process = TiedProcess(
        lambda lifeline: [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    )
    assert process.process.stdout is not None
    yield process, int(process.process.stdout.readline())
    process.process.stdout.close()
    process.close()


def test_cutting_kills_even_what_holds_the_interpreter_and_its_children() -> None:
    with tied(HAS_A_CHILD) as (process, child):
        process._lifeline.cut()
        assert process.wait() == -signal.SIGKILL
        wait_until(lambda: has_ended(child), "its child has ended")


def test_what_an_ended_process_left_behind_is_killed() -> None:
    with tied(HAS_A_CHILD.replace("ctypes.PyDLL(None).sleep(100)", "pass")) as (process, child):
        wait_until(lambda: not process.lives(), "it has ended")
        wait_until(lambda: has_ended(child), "its child has ended")
        assert process.code() == 0


def test_the_tied_process_dies_with_a_holder_that_is_killed() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    words = [sys.executable, "-c", HOLDER]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=environment) as holder:
        assert holder.stdout is not None
        numbers = [int(holder.stdout.readline()) for _ in range(2)]
        assert not any(map(has_ended, numbers))
        holder.kill()
    wait_until(lambda: all(map(has_ended, numbers)), "both have ended")


def test_tying_a_group_that_is_gone_already_does_no_harm() -> None:
    line = Lifeline()
    process = subprocess.Popen(["true"], process_group=0, pass_fds=[line.read_end])
    process.wait(10)
    line.tie(process.pid)
    line.cut()


def test_a_tied_process_ends_when_it_is_told_or_let_go() -> None:
    before = len(os.listdir("/proc/self/fd"))
    killed, closed = (TiedProcess(lambda _: WAITS, stdin=subprocess.PIPE) for _ in range(2))
    assert killed.lives()
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    killed.kill()
    killed.send_signal(signal.SIGTERM)
    assert not killed.lives()
    closed.close()
    assert closed.code() == -signal.SIGKILL
    killed.close()
    for process in (killed.process, closed.process):
        assert process.stdin is not None
        process.stdin.close()
    with pytest.raises(FileNotFoundError):
        TiedProcess(lambda lifeline: ["/no/such/program"])
    assert len(os.listdir("/proc/self/fd")) == before
