"""`farm serve` that is killed with SIGKILL and started again in its run folder."""

from __future__ import annotations

import contextlib
import random
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.dispatcher_farm import LIMIT_S, Served, end, start_farm


def free_port(*hosts: str) -> int:
    """Return a port that is free on these hosts, 127.0.0.1 by default.

    It is outside the range from which the system takes ports for others before it is bound.
    """
    while True:
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for host in hosts or ("127.0.0.1",):
                stack.enter_context(contextlib.closing(socket.create_server((host, port))))
            return port


class RestartedFarm:
    """`farm serve ARGUMENTS` in the run folder `cwd/run`, always at the same HTTP port.

    `folder` and `url` are its addresses, whether it runs or not.
    """

    def __init__(self, cwd: Path, *arguments: str) -> None:
        self._cwd = cwd
        self._arguments = arguments
        self.folder = cwd / "run"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it, without waiting until it is up."""
        place = ["--port", str(self.port), "--dir", str(self.folder)]
        self._process = start_farm("serve", *self._arguments, *place, cwd=self._cwd)

    def up(self) -> Served:
        """Return it once it is up."""
        assert self._process is not None
        return Served(self._process, self.folder)

    def kill(self) -> None:
        """Kill its front door with SIGKILL; the workers end by themselves."""
        assert self._process is not None
        self._process.kill()
        self._process.communicate(timeout=LIMIT_S)

    def close(self) -> None:
        """Stop it, if it runs."""
        if self._process is not None:
            end(self._process)


@contextlib.contextmanager
def restarted_farm(cwd: Path, *arguments: str) -> Iterator[RestartedFarm]:
    """Provide one that runs and is up, within the block."""
    farm = RestartedFarm(cwd, *arguments)
    try:
        farm.start()
        farm.up()
        yield farm
    finally:
        farm.close()
