"""Asks farms on a test cluster for their status, again and again, from one of its hosts."""

from __future__ import annotations

import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson

PROGRAM = """
import sys
import orjson
import farm
from farm.errors import FarmError

for line in sys.stdin:
    try:
        with farm.connect(line.rstrip("\\n")) as client:
            told = client.status()
    except FarmError as error:
        told = {"error": str(error)}
    print(orjson.dumps(told).decode(), flush=True)
"""
COMMAND = [sys.executable, "-c", PROGRAM]


class StatusAsker:
    """A process of `COMMAND` with pipes, which gives what `farm status --json` prints.

    That command starts Python for each answer, so a test that repeats it takes a core from what it
    looks at, and on a busy machine sees nothing that lasts for seconds only.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended, as with its host."""
        return self._process.poll() is not None

    def status(self, run_folder: Path, limit_s: float) -> dict[str, Any]:
        """Return the status of the farm of a run folder.

        Raises ConnectionError if the farm does not answer, TimeoutError.
        """
        questions, answers = self._process.stdin, self._process.stdout
        assert questions is not None
        assert answers is not None
        print(run_folder, file=questions, flush=True)
        if not select.select([answers], [], [], limit_s)[0]:
            self.close()  # a late answer would be taken for the next one
            raise TimeoutError(f"no status of {run_folder} in {limit_s:.0f} s")
        line = answers.readline()
        if not line:
            _, errors = self._process.communicate()
            raise ConnectionError(f"the process that asks has ended: {errors}")
        told: dict[str, Any] = orjson.loads(line)
        if "error" in told:
            raise ConnectionError(told["error"])
        return told

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
