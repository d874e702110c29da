"""`farm experiment serve` as a separate process, for tests of clients."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


class Client:
    """A client of AEPsych's messages that waits for each answer."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), LIMIT_S)

    def send(self, data: bytes) -> None:
        """Send a request without waiting for the answer."""
        self.socket.sendall(data)

    def answer(self) -> dict[str, Any]:
        """Return the next answer. Raises OSError if the server ends before."""
        data = b""
        while True:
            more = self.socket.recv(1 << 16)
            if not more:
                raise ConnectionResetError
            data += more
            with contextlib.suppress(ValueError):
                answer = json.loads(data)
                assert isinstance(answer, dict)
                return answer

    def say(self, text: str) -> dict[str, Any]:
        """Send a text and return its answer."""
        self.send(text.encode())
        return self.answer()

    def ask(self, kind: str, message: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request and return its answer, which is no error."""
        answer = self.say(json.dumps({"type": kind, "message": message or {}}))
        assert "server_error" not in answer, answer
        return answer

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


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
