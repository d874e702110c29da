"""`farm serve --supervise` in a session of its own: its processes, and kills of its front door."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil

import farm
from farm.errors import Unavailable
from farm.transports.connection import Connection, read_connection
from tests.support.coroutines import wait_until
from tests.support.dispatcher_farm import FARM, LIMIT_S, environment


class SupervisedFarm:
    """A keeper, its front door and their processes, started in `cwd` with run folder `cwd/run`."""

    def __init__(self, cwd: Path, *arguments: str) -> None:
        self.folder = cwd / "run"
        self.errors = cwd / "errors"
        words = [*FARM, "serve", *arguments, "--supervise", "--port", "0", "--dir", "run"]
        with self.errors.open("w") as errors:
            self.keeper = subprocess.Popen(
                words,
                cwd=cwd,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )

    def front_door(self) -> int:
        """Return the process id of the front door, whether it serves already or still starts."""
        found: list[int] = []

        def there() -> bool:
            found[:] = [c.pid for c in psutil.Process(self.keeper.pid).children()]
            return bool(found)

        wait_until(there)
        return found[0]

    def up(self, *, after: int = 0) -> Connection:
        """Wait until a front door serves; after: the process id of its predecessor."""
        found: list[Connection] = []

        def serves() -> bool:
            assert self.keeper.poll() is None, self.errors.read_text()
            with contextlib.suppress(Unavailable):
                connection = read_connection(self.folder)
                # A predecessor that was killed has left its file.
                if connection.url and connection.pid not in (0, after):
                    found[:] = [connection]
            return bool(found) and psutil.pid_exists(found[0].pid)

        wait_until(serves)
        return found[0]

    def kill_front_door(self) -> int:
        """Kill the front door with SIGKILL; return its process id."""
        pid = self.front_door()
        os.kill(pid, signal.SIGKILL)
        return pid

    def processes(self) -> list[psutil.Process]:
        """Return all live processes of the farm, those without a parent too."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                ours = os.getsid(process.pid) == self.keeper.pid
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def ended(self) -> int:
        """Wait until the keeper and all other processes have ended; return the exit status."""
        status = self.keeper.wait(LIMIT_S)
        wait_until(lambda: self.processes() == [])
        return status

    def stop(self) -> int:
        """Stop it with SIGTERM; return the exit status once no process is left."""
        self.keeper.terminate()
        return self.ended()

    def restarts(self) -> dict[str, object]:
        """Return what `farm status` shows about restarts."""
        with farm.connect(self.folder, wait=LIMIT_S) as client:
            found: dict[str, object] = client.status().get("restarts", {})
            return found

    def close(self) -> None:
        """Kill whatever is left."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.keeper.wait(LIMIT_S)


@contextlib.contextmanager
def supervised(cwd: Path, *arguments: str) -> Iterator[SupervisedFarm]:
    """Run one for the length of the block."""
    farm = SupervisedFarm(cwd, *arguments)
    try:
        yield farm
    finally:
        farm.close()
