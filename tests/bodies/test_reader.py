"""The reader process by itself: its socket and its lifeline."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from farm.bodies import values
from farm.machine.memory_file import file_of, frames_in
from tests.support.time_limits import scaled

WAIT_S = scaled(30.0)
MEMORY = 2 << 30


@contextmanager
def reader() -> Iterator[tuple[subprocess.Popen[bytes], socket.socket, int]]:
    """A reader, our end of its socket, and the end of its lifeline that we hold."""
    ours, its = socket.socketpair()
    read_end, write_end = os.pipe()
    words = ["--lifeline", str(read_end), "--line", str(its.fileno()), str(MEMORY)]
    process = subprocess.Popen(
        [sys.executable, "-m", "farm.bodies.reader", *words],
        pass_fds=(read_end, its.fileno()),
    )
    its.close()
    os.close(read_end)
    ours.settimeout(WAIT_S)
    try:
        with ours:
            yield process, ours, write_end
    finally:
        process.kill()
        process.wait()


def ask(
    line: socket.socket, module: str, name: str, *job: object, body: bytes | None = None
) -> Any:
    frames = file_of([f"{module} {name}".encode(), *values.encode(job)])
    files = [frames] if body is None else [frames, file_of([body])]
    socket.send_fds(line, [b"."], files)
    for file in files:
        os.close(file)
    _, (answer,), _, _ = socket.recv_fds(line, 1, 1)
    try:
        return values.decode(frames_in(answer))
    finally:
        os.close(answer)


def test_it_answers_job_after_job_and_ends_with_its_line() -> None:
    with reader() as (process, line, write_end):
        job = ("farm.encoding.json_numbers", "kind_of", "", 0, (None,))
        assert ask(line, *job) == ("done", "null")
        assert ask(line, *job) == ("done", "null")
        kind, text = ask(line, "farm.encoding.json_numbers", "nothing", "", 0, ())
        assert kind == "mistake"
        assert "AttributeError" in text
        line.shutdown(socket.SHUT_RDWR)
        assert process.wait(WAIT_S) == 0
        os.close(write_end)


def test_it_keeps_no_file_of_a_job() -> None:
    with reader() as (_, line, write_end):
        job = ("os", "listdir", "", 0, ("/proc/self/fd",))
        before = len(ask(line, *job)[1])
        for _ in range(5):
            ask(line, *job, body=b"abc")
        assert len(ask(line, *job)[1]) == before
        os.close(write_end)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="elsewhere the line's end is seen")
def test_it_ends_with_its_lifeline() -> None:
    with reader() as (process, line, write_end):
        ask(line, "farm.encoding.json_numbers", "kind_of", "", 0, (None,))
        os.close(write_end)
        assert process.wait(WAIT_S) == 1
