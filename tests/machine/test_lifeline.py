"""A lifeline ends the tied group when its holder dies, for any reason."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from farm.machine.lifeline import Lifeline, TiedProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's part is Linux's")

HOLDS_THE_INTERPRETER = "print('on', flush=True); import ctypes; ctypes.PyDLL(None).sleep(100)"
HAS_A_CHILD = (
    "import subprocess, sys;"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)']);"
    "print(child.pid, flush=True); child.wait()"
)
HOLDER = """
import signal, subprocess, sys
from farm.machine.lifeline import Lifeline, TiedProcess
line = Lifeline()
child = subprocess.Popen(
    [sys.executable, "-c", "import time; time.sleep(100)"],
    process_group=0, pass_fds=[line.read_end],
)
line.tie(child.pid)
print(child.pid, flush=True)
signal.pause()
"""


def start(code: str, line: Lifeline) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        process_group=0,
        pass_fds=[line.read_end],
    )
    line.tie(process.pid)
    return process


def gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def wait_until_gone(pid: int) -> None:
    limit = time.monotonic() + 10
    while not gone(pid):
        assert time.monotonic() < limit, f"process {pid} still lives"
        time.sleep(0.01)


def test_cutting_kills_even_what_holds_the_interpreter() -> None:
    line = Lifeline()
    with start(HOLDS_THE_INTERPRETER, line) as process:
        assert process.stdout is not None
        process.stdout.readline()
        line.cut()
        assert process.wait(10) == -signal.SIGKILL
    line.cut()


def test_cutting_kills_the_children_of_the_tied_process() -> None:
    line = Lifeline()
    with start(HAS_A_CHILD, line) as process:
        assert process.stdout is not None
        grandchild = int(process.stdout.readline())
        line.cut()
        process.wait(10)
        wait_until_gone(grandchild)


def test_the_tied_process_dies_with_a_holder_that_is_killed() -> None:
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, cwd=root
    ) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        assert not gone(child)
        holder.kill()
    wait_until_gone(child)


def test_tying_a_group_that_is_gone_already_does_no_harm() -> None:
    line = Lifeline()
    process = subprocess.Popen(["true"], process_group=0, pass_fds=[line.read_end])
    process.wait(10)
    line.tie(process.pid)
    line.cut()


def test_no_descriptor_is_left() -> None:
    before = len(os.listdir("/proc/self/fd"))
    line = Lifeline()
    line.cut()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_tied_process_ends_when_it_is_told_or_let_go() -> None:
    def command(lifeline: int) -> list[str]:
        return [sys.executable, "-c", "import sys; sys.stdin.read()"]

    told = TiedProcess(command, stdin=subprocess.PIPE)
    assert told.lives()
    told.kill()
    assert told.process.wait() == -signal.SIGKILL
    told.kill()
    assert not told.lives()
    left = TiedProcess(command, stdin=subprocess.PIPE)
    left.close()
    assert left.process.returncode == -signal.SIGKILL
    for process in (told.process, left.process):
        assert process.stdin is not None
        process.stdin.close()
    told.close()


def test_a_tied_process_that_cannot_start_leaves_nothing() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        TiedProcess(lambda lifeline: ["/no/such/program"])
    assert len(os.listdir("/proc/self/fd")) == before
