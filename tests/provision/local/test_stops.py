"""Durations for which processes are stopped: real processes and signals, made-up times."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from farm.provision.local.stops import LONGEST_STEP_S, ChildStops, ProcessStops, StopClock
from tests.support.running_farm import wait_until

Stops = ChildStops | ProcessStops

TRACEABLE = """
import ctypes, time
ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)  # PR_SET_PTRACER: by anybody
print("ready", flush=True)
time.sleep(1000)
"""

TRACER = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
pid = int(sys.argv[1])
if libc.ptrace(16, pid, None, None):  # PTRACE_ATTACH
    sys.exit(os.strerror(ctypes.get_errno()))
os.waitpid(pid, 0x40000000)  # __WALL: until it has stopped
print("attached", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-c", TRACEABLE]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        yield started
        started.kill()


def state(pid: int) -> bytes:
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: state(pid) == b"T", "it is stopped")


def go_on(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: state(pid) != b"T", "it goes on")


@pytest.mark.parametrize("make", [ChildStops, ProcessStops])
def test_the_time_of_a_stop_is_added_up_until_it_goes_on(
    process: subprocess.Popen[str], make: Callable[[int], Stops]
) -> None:
    stops = make(process.pid)
    assert stops.stopped_s(0.0) == 0.0
    stop(process.pid)
    assert [stops.stopped_s(now) for now in (10.0, 10.5, 11.25)] == [0.0, 0.5, 1.25]
    go_on(process.pid)
    assert [stops.stopped_s(now) for now in (12.0, 12.5)] == [0.0, 0.0]
    stop(process.pid)
    assert [stops.stopped_s(now) for now in (13.0, 13.5)] == [0.0, 0.5]
    process.kill()
    process.wait()
    stops.stopped_s(14.0)  # gone: nothing to measure, and no error


def test_a_process_that_is_stopped_again_and_again_counts_from_the_last_stop(
    process: subprocess.Popen[str],
) -> None:
    """As by cpulimit: at every check it may be stopped, but it runs in between."""
    stops = ChildStops(process.pid)
    for turn in range(20):
        stop(process.pid)
        assert stops.stopped_s(0.5 * turn) == 0.0
        go_on(process.pid)


def test_a_process_that_used_its_processor_in_between_counts_anew(tmp_path: Path) -> None:
    stat = tmp_path / "7" / "stat"
    stat.parent.mkdir()
    stops = ProcessStops(7, proc=tmp_path)

    def is_(state: str, ticks: int) -> None:
        stat.write_text(f"7 (a) name) {state} 1 7 7 0 -1 4194560 99 0 0 0 {ticks} 3 0 0 20 0 1 0\n")

    is_("T", 10)
    assert [stops.stopped_s(now) for now in (0.0, 0.5)] == [0.0, 0.5]
    is_("T", 11)
    assert [stops.stopped_s(now) for now in (1.0, 1.5)] == [0.0, 0.5]
    is_("t", 11)
    assert stops.stopped_s(2.0) == 0.0


def test_no_such_file_no_stop(tmp_path: Path) -> None:
    stops = ProcessStops(7, proc=tmp_path)
    assert [stops.stopped_s(now) for now in (0.0, 0.5)] == [0.0, 0.0]


@pytest.mark.parametrize("make", [ChildStops, ProcessStops])
def test_a_debugger_may_hold_a_process_for_as_long_as_it_likes(
    process: subprocess.Popen[str], make: Callable[[int], Stops]
) -> None:
    words = [sys.executable, "-c", TRACER, str(process.pid)]
    tracer = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    said, problem = "", ""
    try:
        assert tracer.stdout is not None
        said = tracer.stdout.readline()
        if said == "attached\n":
            assert state(process.pid) == b"t"
            stops = make(process.pid)
            assert [stops.stopped_s(now) for now in (0.0, 0.5, 1.0)] == [0.0, 0.0, 0.0]
    finally:
        _, problem = tracer.communicate()
    if said != "attached\n":
        pytest.skip(f"processes may not be traced here: {problem}")


def test_a_supervisor_that_was_stopped_itself_does_not_count_that_time() -> None:
    clock = StopClock()
    assert clock.look(0.0, stopped=True) == 0.0
    assert clock.look(3600.0, stopped=True) == LONGEST_STEP_S
    assert clock.look(3600.1, stopped=False) == 0.0


def test_events_of_children_are_seen_and_left_to_those_who_wait() -> None:
    script = (
        "import os, subprocess, sys, signal\n"
        "from farm.provision.local.stops import child_events\n"
        "assert not child_events(), 'there is no child'\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"
        "assert not child_events()\n"
        "for number, what in ((signal.SIGSTOP, os.WSTOPPED), (signal.SIGCONT, os.WCONTINUED)):\n"
        "    child.send_signal(number)\n"
        "    os.waitid(os.P_PID, child.pid, what | os.WNOWAIT)\n"
        "    assert child_events() and child_events(), 'it is left to others'\n"
        "    os.waitid(os.P_PID, child.pid, what)\n"
        "    assert not child_events()\n"
        "child.kill()\n"
        "os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)\n"
        "assert child_events()\n"
        "assert child.wait() == -signal.SIGKILL\n"
        "assert not child_events()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
