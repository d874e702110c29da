"""The parent of a front door, with small programs in place of the front door."""

from __future__ import annotations

import ast
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from farm.machine import keeper
from tests.support.coroutines import LIMIT_S, wait_until

FILE = Path(keeper.__file__)

CHILD = """
import asyncio, os, signal, socket, sys, time

sys.path.insert(0, {tests!r})
from farm.machine.keeper_line import keeper

line = keeper()
with open("starts", "a") as starts:
    print(os.getpid(), file=starts)
start = len(open("starts").readlines())

def wait_for_stop():
    while words := line.hears():
        with open("asked", "a") as asked:  # closed here, so no interrupt is lost in its end
            asked.write(words)

async def stopped():
    stop = asyncio.Event()
    line.on_stop(stop.set, stop.set)
    await stop.wait()

def crash():
    os.kill(os.getpid(), signal.SIGKILL)

"""


class Kept:
    """A keeper that runs a small program in `folder`."""

    def __init__(self, folder: Path, program: str) -> None:
        self.folder = folder
        root = str(FILE.parents[2])
        (folder / "child.py").write_text(CHILD.format(tests=root) + program)
        command = [sys.executable, "-I", "-S", str(FILE), sys.executable, "-P", "child.py"]
        self.process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def starts(self) -> list[int]:
        """Return the process ids of the programs so far."""
        file = self.folder / "starts"
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    def wait_for_start(self, count: int) -> int:
        """Wait for a start; return its process id."""
        wait_until(lambda: len(self.starts()) >= count)
        return self.starts()[count - 1]

    def ended(self) -> tuple[int, str]:
        """Wait for the keeper's end; return its exit status and what it wrote to stderr."""
        _, errors = self.process.communicate(timeout=3 * LIMIT_S)
        return self.process.returncode, errors


Start = Callable[[str], Kept]


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Start]:
    keepers: list[Kept] = []

    def start(program: str) -> Kept:
        keepers.append(Kept(tmp_path, program))
        return keepers[-1]

    yield start
    for each in keepers:
        each.process.kill()
        each.process.communicate()
        for pid in each.starts():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_it_imports_little() -> None:
    tree = ast.parse(FILE.read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
    imported = {name.name for node in imports for name in node.names}
    assert imported == {"contextlib", "os", "select", "signal", "socket", "sys", "time"}
    assert not any(isinstance(node, ast.ImportFrom) for node in ast.walk(tree))


@pytest.mark.parametrize(
    ("program", "status"),
    [
        *((f"sys.exit({status})", status) for status in (0, 2, 130)),
        ("signal.signal(13, signal.SIG_DFL); os.kill(os.getpid(), 13)", 128 + signal.SIGPIPE),
        ("line.serves(); line.ends(); crash()", 128 + signal.SIGKILL),
    ],
)
def test_an_orderly_end_is_final(kept: Start, program: str, status: int) -> None:
    each = kept(program)
    assert each.ended() == (status, "")
    assert len(each.starts()) == 1


def test_a_crash_is_followed_by_another_start(kept: Start) -> None:
    each = kept(
        "if start == 1: crash()\n"
        "if start == 2: line.fails('ValueError: wrong'); sys.exit(7)\n"
        "print(line.restarts, line.reason, file=open('told', 'w'))"
    )
    status, errors = each.ended()
    assert status == 0
    assert len(each.starts()) == 3
    assert (each.folder / "told").read_text() == "2 ended with exit status 7: ValueError: wrong\n"
    first, second = errors.splitlines()
    assert first.endswith(
        "the front door was killed by signal 9 (SIGKILL); it is started again (restart 1)"
    )
    assert "ended with exit status 7: ValueError: wrong; it is started again (restart 2)" in second


def test_a_refusal_is_a_crash_where_the_same_words_have_worked(kept: Start) -> None:
    each = kept("if start == 1: line.serves(); crash()\nsys.exit(2 if start == 2 else 0)")
    assert each.ended()[0] == 0
    assert len(each.starts()) == 3


@pytest.mark.slow
@pytest.mark.parametrize("serves", ["line.serves(); ", ""])
def test_a_crash_loop_ends_with_its_reason(kept: Start, serves: str) -> None:
    each = kept(f"{serves}line.fails('OSError: no space left'); sys.exit(3)")
    status, errors = each.ended()
    assert status == 3
    assert len(each.starts()) == keeper.MOST_CRASHES
    assert "crashed 5 times" in errors
    assert errors.endswith("it ended with exit status 3: OSError: no space left\n")


@pytest.mark.slow
def test_a_program_that_cannot_start_is_a_crash(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", str(FILE), str(tmp_path / "none")]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert "No such file" in done.stderr.splitlines()[-1]


def test_the_first_signal_is_told_and_the_second_one_passed_on(kept: Start) -> None:
    each = kept("line.serves(); wait_for_stop()")
    each.wait_for_start(1)
    assert psutil.Process(each.process.pid).memory_info().rss < 20 << 20, "it stays small"
    each.process.terminate()
    asked = each.folder / "asked"
    wait_until(lambda: asked.exists() and asked.read_text() == "stop\n")
    each.process.send_signal(signal.SIGINT)
    assert each.ended()[0] == 128 + signal.SIGINT
    # The word of the second signal comes before the signal, which may end the program first.
    assert asked.read_text() in ("stop\n", "stop\nhurry\n")


def test_after_a_crash_before_the_end_the_next_one_is_told_to_stop(kept: Start) -> None:
    """Only a front door can end the jobs of a farm in order."""
    each = kept(
        "if start == 1: line.serves(); line.hears(); crash()\n"
        "asyncio.run(stopped()); line.ends(); sys.exit(5)"
    )
    each.wait_for_start(1)
    each.process.terminate()
    assert each.ended()[0] == 5
    assert len(each.starts()) == 2


def test_a_stop_is_not_followed_by_crash_after_crash(kept: Start) -> None:
    each = kept("line.serves()\nif start == 1: line.hears()\ncrash()")
    each.wait_for_start(1)
    each.process.terminate()
    assert each.ended()[0] == 128 + signal.SIGKILL
    assert len(each.starts()) == 2


def test_a_stop_during_the_delay_is_told_at_once(kept: Start) -> None:
    each = kept("if start < 4: crash()\nasyncio.run(stopped()); line.ends(); sys.exit(5)")
    each.wait_for_start(3)  # the next one starts a second later, maybe before we look
    keeper_process = psutil.Process(each.process.pid)
    wait_until(lambda: not keeper_process.children() or len(each.starts()) == 4)
    each.process.terminate()
    assert each.ended()[0] == 5
    assert len(each.starts()) == 4


def test_sockets_pass_from_one_to_the_next_and_connections_wait(kept: Start) -> None:
    each = kept(
        "if start == 1:\n"
        "    listening = [socket.create_server(('127.0.0.1', 0)) for _ in range(3)]\n"
        "    for name, s in zip(('a', 'b\\n c', 'a'), listening): line.hand(name, s)\n"
        "    dialed = [socket.create_connection(s.getsockname()) for s in listening]\n"
        "    open('ports', 'w').write(str([s.getsockname() for s in listening]))\n"
        "    crash()\n"
        "taken = [line.take(name) for name in ('a', 'b\\n c', 'a')]\n"
        "assert line.take('a') is None\n"
        "assert open('ports').read() == str([s.getsockname() for s in taken])\n"
        "for s in taken:\n"
        "    s.setblocking(True)\n"
        "    s.accept()\n"
        "sys.exit(0)"
    )
    status, errors = each.ended()
    assert (status, len(each.starts())) == (0, 2), errors


def test_the_sockets_refuse_as_soon_as_the_end_begins(kept: Start) -> None:
    each = kept(
        "s = socket.create_server(('127.0.0.1', 0)); name = s.getsockname(); line.hand('a', s)\n"
        "line.ends(); s.close()\n"
        "while True:\n"
        "    try: socket.create_connection(name).close()\n"
        "    except ConnectionRefusedError: sys.exit(0)\n"
    )
    assert each.ended()[0] == 0


def test_a_suspended_program_is_no_crash(kept: Start) -> None:
    each = kept("line.serves(); line.hears()")
    pid = each.wait_for_start(1)
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    each.process.terminate()
    assert each.process.poll() is None
    os.kill(pid, signal.SIGCONT)
    assert each.ended() == (0, "")
    assert each.starts() == [pid]


def test_hangup_ends_it_in_order(kept: Start) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup would have it ignored
    try:
        each = kept("line.serves(); line.hears()")
    finally:
        signal.signal(signal.SIGHUP, before)
    each.wait_for_start(1)
    each.process.send_signal(signal.SIGHUP)
    assert each.ended()[0] == 0
