"""Jobs and answers between a process and the one that does its jobs."""

from __future__ import annotations

import os
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from farm.machine.job_process import JobProcess, ProcessDied, be_killed_first
from farm.machine.memory_file import file_of

JOBS = """
import os, signal
from farm.machine.job_process import do_jobs
from farm.machine.memory_file import frames_in

def do(files):
    job, *values = (bytes(frame) for file in files for frame in frames_in(file))
    return [str(eval(job)).encode(), *values]

do_jobs(names["line"], do)
"""


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[JobProcess]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    with closing(JobProcess("tests.support.forked_module", [JOBS])) as process:
        yield process


def answer(process: JobProcess, job: str, *files: int) -> list[str]:
    return [bytes(frame).decode() for frame in process.ask([job.encode()], *files)]


def test_jobs_with_and_without_a_file_are_answered_in_turn(process: JobProcess) -> None:
    assert answer(process, "6 * 7") == ["42"]
    file = file_of([b"a", b"b"])
    assert answer(process, "'with'", file) == ["with", "a", "b"]
    os.close(file)


def test_it_keeps_no_file_of_a_job_and_gives_none_to_a_program(process: JobProcess) -> None:
    count = "len(os.listdir('/proc/self/fd'))"
    before = answer(process, count)
    for _ in range(3):
        answer(process, "1")
    assert answer(process, count) == before
    assert answer(process, "os.get_inheritable(names['line'])") == ["False"]
    assert answer(process, "[os.get_inheritable(file) for file in files]") == ["[False]"]


def test_what_it_prints_goes_to_the_log(
    capfd: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    process = request.getfixturevalue("process")  # once the descriptors are captured
    answer(process, "print('a library says hello', flush=True)")
    assert capfd.readouterr() == ("", "a library says hello\n")


def test_its_death_is_told_in_words(process: JobProcess) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ProcessDied, match=r"killed \(out of memory\?\)"):
        process.ask([b"os.kill(os.getpid(), signal.SIGKILL)"])
    with pytest.raises(ProcessDied, match="killed"):
        process.ask([b"1"])
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_limit_kills_it(process: JobProcess) -> None:
    with pytest.raises(TimeoutError):
        process.ask([b"signal.pause()"], limit_s=0.05)
    assert process.wait() == -signal.SIGKILL


def test_where_no_more_files_can_be_opened_there_is_no_wait_for_the_answer(
    process: JobProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = socket.send_fds
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def send_and_use_up(*arguments: Any) -> int:
        sent = send(*arguments)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        return sent

    monkeypatch.setattr(socket, "send_fds", send_and_use_up)
    try:
        with pytest.raises(OSError, match="Too many open files"):
            process.ask([b"1"])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert process.wait() == -signal.SIGKILL


def test_one_that_fails_and_does_not_end_is_killed(
    process: JobProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farm.machine.job_process.END_S", 0.1)
    thread = "__import__('threading').Thread(target=signal.pause).start()"
    with pytest.raises(ProcessDied, match="killed"):
        process.ask([f"({thread}, 1 / 0)".encode()], limit_s=30.0)


def test_it_ends_with_the_line(process: JobProcess) -> None:
    answer(process, "1")
    process._line.close()
    assert process.wait() == 0


def test_where_no_score_can_be_set_it_is_left() -> None:
    before = Path("/proc/self/oom_score_adj").read_text()
    be_killed_first(2000)  # the kernel refuses it
    assert Path("/proc/self/oom_score_adj").read_text() == before
