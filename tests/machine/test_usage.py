"""What processes use: measured against psutil, and computed from made-up files of the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from farm.machine import usage
from farm.machine.usage import UsageMeter
from tests.support.coroutines import wait_until

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class Kernel:
    """A folder like /proc, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 0.0

    def process(self, pid: int, *, cpu_s: float = 0.0, pages: int = 1, waited_s: float = 0) -> None:
        numbers = ["0"] * 22
        numbers[11], numbers[13] = str(int(cpu_s * TICKS)), str(int(waited_s * TICKS))
        numbers[21] = str(pages)
        task = self.folder / str(pid) / "task" / str(pid)
        task.mkdir(parents=True, exist_ok=True)
        (self.folder / str(pid) / "stat").write_text(f"{pid} (a b) ) S {' '.join(numbers[1:])}")
        (task / "children").touch()

    def starts(self, pid: int, *children: int) -> None:
        for child in children:
            self.process(child)
        text = " ".join(map(str, children))
        (self.folder / str(pid) / "task" / str(pid) / "children").write_text(text)

    def meter(self, *pids: int) -> UsageMeter:
        return UsageMeter(pids, proc=self.folder, clock=lambda: self.now)


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


@pytest.fixture
def alone() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that sleeps; the one of the tests may have programs of other tests."""
    words = [sys.executable, "-c", "print(flush=True); import time; time.sleep(600)"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_memory_is_that_of_the_process(alone: subprocess.Popen[bytes]) -> None:
    memory, _ = UsageMeter([alone.pid]).read()
    assert memory == pytest.approx(psutil.Process(alone.pid).memory_info().rss, rel=0.1)


def test_a_program_that_it_started_counts() -> None:
    """As a simulator does whose input a model writes."""
    meter = UsageMeter()
    alone, _ = meter.read()
    program = "x = bytearray(10**8); import time\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", program]) as child:
        try:
            wait_until(lambda: (meter.read()[0] or 0) > (alone or 0) + 9e7)
            wait_until(lambda: (meter.read()[1] or 0.0) > 0.1)
        finally:
            child.kill()


def test_processor_is_the_mean_since_the_last_reading(kernel: Kernel) -> None:
    kernel.process(7, cpu_s=100.0)
    meter = kernel.meter(7)
    assert meter.read() == (PAGE, None)
    kernel.process(7, cpu_s=103.0)
    kernel.now = 2.0
    assert meter.read() == (PAGE, 1.5)
    kernel.now = 2.1  # too soon after the last: the kernel counts in steps
    assert meter.read() == (PAGE, 1.5)
    kernel.now = 4.0
    assert meter.read() == (PAGE, 0.0)


def test_the_time_of_a_program_that_ended_is_not_lost(kernel: Kernel) -> None:
    kernel.process(7)
    kernel.starts(7, 8)
    kernel.process(8, cpu_s=1.0, pages=10)
    meter = kernel.meter(7)
    (kernel.folder / "8" / "stat").unlink()
    kernel.starts(7)
    kernel.process(7, waited_s=2.0)
    kernel.now = 1.0
    assert meter.read() == (PAGE, 1.0)
    kernel.process(7)  # nobody waited for another one: its time is gone
    kernel.now = 2.0
    assert meter.read() == (PAGE, 0.0)


def test_the_use_of_several_processes_is_added_up(kernel: Kernel) -> None:
    for pid in (7, 8):
        kernel.process(pid, pages=3)
    meter = kernel.meter(7, 8)
    for pid in (7, 8):
        kernel.process(pid, cpu_s=1.0, pages=3)
    kernel.now = 1.0
    assert meter.read() == (6 * PAGE, 2.0)


def test_thousands_of_programs_are_not_all_counted(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "MOST", 10)
    kernel.process(7)
    kernel.starts(7, *range(100, 120))
    memory, _ = kernel.meter(7).read()
    assert memory == 10 * PAGE


def test_where_no_kernel_tells_only_the_own_time_is_known(tmp_path: Path) -> None:
    now = 0.0
    meter = UsageMeter(proc=tmp_path, clock=lambda: now)
    now = 10.0
    memory, processor = meter.read()
    assert memory is None
    assert processor is not None
    assert 0.0 <= processor < 10.0
    assert UsageMeter([1], proc=tmp_path, clock=lambda: now).read() == (None, None)
