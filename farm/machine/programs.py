"""Programs that farm starts: their command lines, and how they ended."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

EXIT_SERVER_GONE = 69
"""Exit status of a process whose model server does not answer (EX_UNAVAILABLE)."""

EXIT_PROGRAM_KILLED = 70
"""Exit status of a process whose model's program was ended by a signal (EX_SOFTWARE)."""

TAIL_BYTES = 8192


def tail_of(path: Path, first: int = 0) -> str:
    """Return the end of a file that a program writes, some 8 kB from byte `first` on.

    Raises OSError.
    """
    with path.open("rb") as file:
        file.seek(max(first, path.stat().st_size - TAIL_BYTES))
        return file.read().decode(errors="replace")


def python(module: str) -> list[str]:
    """Return the command line that runs one of farm's modules."""
    # -P: keep a user's file with the name of one of farm's modules from replacing it.
    return [sys.executable, "-u", "-P", "-m", module]


def in_words(code: int, *, out_of_memory: bool) -> str:
    """Return an exit status, as from `Child.code`, in words."""
    if code == EXIT_SERVER_GONE:
        return "its model server does not answer"
    if code == EXIT_PROGRAM_KILLED:
        return "a signal ended its model's program"
    if code >= 0:
        return f"exit code {code}"
    if code == -signal.SIGKILL and out_of_memory:
        return "killed (out of memory?)"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
