"""`farm experiment serve` as a separate process, for tests of clients."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.dispatcher_farm import LIMIT_S, start_farm

CLIENTS = Path(sys.prefix) / "clients"
"""Folder of the published client, isolated from other packages: see the Makefile."""


class ExperimentServer:
    """A running `farm experiment serve`. said: its line about the journal."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"AEPsych's clients at 127\.0\.0\.1:(\d+)", line)
        if found is None:
            process.kill()
            raise AssertionError(f"the server said {line!r} and {process.communicate()}")
        self.port = int(found[1])
        self.said = process.stdout.readline()

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal; return the exit status and the rest of its output."""
        self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, out


def start_experiments(folder: Path, *options: str) -> ExperimentServer:
    """Start a server in a folder, on loopback."""
    words = ("experiment", "serve", "--aepsych", "127.0.0.1:0", *options)
    return ExperimentServer(start_farm(*words, cwd=folder))


@contextmanager
def serving_experiments(folder: Path, *options: str) -> Iterator[ExperimentServer]:
    """Run a server for the duration of the block."""
    server = start_experiments(folder, *options)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.communicate()
