"""Command lines of programs that farm starts, and descriptions of how they ended."""

from __future__ import annotations

import signal

import pytest

from farm.machine.programs import in_words


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (69, "its model server does not answer"),
        (70, "a signal ended its model's program"),
        (-signal.SIGSEGV, "signal SIGSEGV"),
        (-signal.SIGKILL, "signal SIGKILL"),
        (-60, "signal 60"),
    ],
)
def test_deaths_in_words(code: int, words: str) -> None:
    assert in_words(code, out_of_memory=False) == words


def test_a_kill_while_the_kernel_was_out_of_memory() -> None:
    assert in_words(-signal.SIGKILL, out_of_memory=True) == "killed (out of memory?)"
    assert in_words(-signal.SIGSEGV, out_of_memory=True) == "signal SIGSEGV"
