"""The parent of a rank: real processes, started as a launcher starts them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from farm.provision.local.rank_lines import RankLines
from farm.provision.local.rank_parent import VARIABLE
from tests.support.running_farm import LIMIT_S, wait_until

PARENT = """
import sys
from pathlib import Path
from farm.provision.local import rank_parent

rank_parent.RANK = "rank_of_this_test"
rank_parent.main(sys.argv[1:])
"""

RANK = """
import ctypes, os, signal, sys, time
from farm.provision.local.rank_lines import RankLifeline

lifeline = RankLifeline(int(sys.argv[sys.argv.index("--lifeline") + 1]))
signal.signal(signal.SIGTERM, lambda *_: os._exit(5))
lifeline.name(2)
how = sys.argv[-1]
if how.startswith("exit"):
    os._exit(int(how[4:]))
if how.startswith("signal"):
    os.kill(os.getpid(), int(how[6:]))
ctypes.PyDLL(None).sleep(100) if how == "hold" else time.sleep(100)
"""
"""A rank that ends as its last argument says."""

Start = Callable[[str], subprocess.Popen[bytes]]


@pytest.fixture
def lines() -> Iterator[RankLines]:
    made = RankLines(loopback=True, ranks=1)
    yield made
    made.cut()


@pytest.fixture
def start(lines: RankLines, tmp_path: Path) -> Iterator[Start]:
    (tmp_path / "rank_of_this_test.py").write_text(textwrap.dedent(RANK))
    started: list[subprocess.Popen[bytes]] = []

    def start(how: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, VARIABLE: lines.address, "PYTHONPATH": str(tmp_path)}
        command = [sys.executable, "-c", PARENT, how]
        started.append(subprocess.Popen(command, env=environment, cwd=Path.cwd()))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def facts_of(lines: RankLines, key: str) -> dict[str, object]:
    """Wait for the message that has `key`."""
    heard: list[dict[str, object]] = []

    def found() -> bool:
        heard.extend(lines.read())
        return any(key in facts for facts in heard)

    wait_until(found, f"{key} is heard")
    return next(facts for facts in heard if key in facts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "status"),
    [("exit0", 0), ("exit3", 3), ("signal9", -9), ("signal11", -11), ("signal6", -6)],
)
def test_it_reports_how_its_rank_ended_and_ends_alike(
    lines: RankLines, start: Start, how: str, status: int
) -> None:
    parent = start(how)
    assert facts_of(lines, "ended") == {"ended": status, "asked": False}
    assert parent.wait(LIMIT_S) == status
    assert lines.failed == (2, status)


def test_the_end_that_a_launcher_asked_for_is_no_failure(lines: RankLines, start: Start) -> None:
    parent = start("sleep")
    facts_of(lines, "rank")
    parent.terminate()
    assert facts_of(lines, "ended") == {"ended": 5, "asked": True}
    assert parent.wait(LIMIT_S) == 5
    assert lines.failed is None


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux ends the rank")
@pytest.mark.parametrize("how", ["sleep", "hold"])
def test_the_rank_ends_with_its_parent_and_nothing_is_reported(
    lines: RankLines, start: Start, how: str
) -> None:
    parent = start(how)
    rank = psutil.Process(int(str(facts_of(lines, "rank")["pid"])))
    assert rank.ppid() == parent.pid
    parent.kill()
    rank.wait(LIMIT_S)
    wait_until(lambda: list(lines.read()) == [] and lines.gone, "the line has ended")
    assert lines.failed is None


def test_rank_and_parent_end_with_the_line(lines: RankLines, start: Start) -> None:
    parent = start("hold")
    facts_of(lines, "rank")
    lines.cut()
    assert parent.wait(LIMIT_S) == -signal.SIGKILL


def test_a_file_of_the_name_of_a_module_is_not_imported(tmp_path: Path) -> None:
    """Ranks start in the user's folder."""
    (tmp_path / "socket.py").write_text("raise SystemExit(99)")
    from farm.provision.local.rank_parent import command

    environment = {name: text for name, text in os.environ.items() if name != VARIABLE}
    done = subprocess.run(
        command(), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 78
    assert done.stderr.startswith(f"farm: error: {VARIABLE} is not set here")
