"""A batch system in a folder: its jobs are processes, its records are files.

`install` writes one small program for each command of a system; each calls `main` of its module
with the words of its command line. A file `NAME.fails` beside a program makes it fail with that
text on stderr, `NAME.says` makes it print that text alone, `NAME.hangs` makes it hang; `full` keeps
new jobs in the queue.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

KILLED_AFTER_S = 2.0
"""Time between SIGTERM and SIGKILL for a job that is cancelled."""


class Site:
    """The records in a folder; each job has a number."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records = folder / "jobs"

    def submit(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Record a job and run its command, unless the system is full."""
        self.records.mkdir(exist_ok=True)
        number = 1 + len(list(self.records.glob("*.json")))
        job = {"name": name, "state": "pending", "code": 0, "deleted": False, "pid": 0}
        self._save(number, job)
        if not (self.folder / "full").exists():
            subprocess.Popen(
                [sys.executable, "-P", __file__, str(self.folder), str(number), *command],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        return number

    def jobs(self) -> dict[int, dict[str, Any]]:
        """Return all jobs by number."""
        numbers = sorted(int(path.stem) for path in self.records.glob("*.json"))
        return {number: self.job(number) for number in numbers}

    def job(self, number: int) -> dict[str, Any]:
        """Return one job."""
        found: dict[str, Any] = json.loads((self.records / f"{number}.json").read_text())
        return found

    def has(self, number: int) -> bool:
        """Whether there is a job with this number."""
        return (self.records / f"{number}.json").exists()

    def signal(self, number: int, which: int) -> None:
        """Send a signal to all processes of a running job."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.job(number)["pid"], which)

    def cancel(self, number: int) -> None:
        """End a job that waits or runs: by SIGTERM, then by SIGKILL."""
        job = self.job(number)
        if job["state"] == "pending":
            self._save(number, {**job, "state": "ended", "deleted": True})
            return
        (self.records / f"{number}.deleted").touch()
        self.signal(number, signal.SIGTERM)

    def run(self, number: int, command: Sequence[str]) -> None:
        """Run a job's command to its end; what it has left behind is killed then, as systems do."""
        with (self.records / f"{number}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        job = {**self.job(number), "state": "running", "pid": process.pid}
        self._save(number, job)
        deleted = self.records / f"{number}.deleted"
        kill_at = float("inf")
        while process.poll() is None:
            if deleted.exists():
                kill_at = min(kill_at, time.monotonic() + KILLED_AFTER_S)
            if time.monotonic() > kill_at:
                self.signal(number, signal.SIGKILL)
            time.sleep(0.05)
        self.signal(number, signal.SIGKILL)
        end = {"state": "ended", "code": process.returncode, "deleted": deleted.exists()}
        self._save(number, {**job, **end})

    def _save(self, number: int, job: Mapping[str, Any]) -> None:
        path = self.records / f"{number}.json"
        new = path.with_suffix(".new")
        new.write_text(json.dumps(job))
        new.replace(path)


def install(folder: Path, module: str, names: Sequence[str]) -> Path:
    """Put commands into a folder, which the caller puts first in the PATH; return it."""
    folder.mkdir()
    root = Path(__file__).parents[3]
    for name in names:
        program = f'#!/bin/sh\nPYTHONPATH={root} exec {sys.executable} -P -m {module} $0 "$@"\n'
        (folder / name).write_text(program)
        (folder / name).chmod(0o755)
    return folder


def answer_of(program: Path) -> Site:
    """Return the site of a command, unless a file tells the command what to do."""
    for end, code in (("fails", 1), ("says", 0), ("hangs", 0)):
        path = program.with_name(f"{program.name}.{end}")
        if not path.exists():
            continue
        if end == "hangs":
            time.sleep(600)
        print(path.read_text(), end="", file=sys.stderr if code else sys.stdout)
        sys.exit(code)
    return Site(program.parent)


def directives(script: str, prefix: str) -> list[str]:
    """Return what follows a prefix in the lines of a script, up to its first command."""
    lines = []
    for line in script.splitlines():
        if line and not line.startswith("#"):
            break
        if line.startswith(prefix):
            lines.append(line.removeprefix(prefix).strip())
    return lines


if __name__ == "__main__":
    Site(Path(sys.argv[1])).run(int(sys.argv[2]), sys.argv[3:])
