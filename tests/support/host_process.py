"""A worker in its own process, for tests that freeze it, kill it or crash it.

`python tests/support/host_process.py CONNECTION NAME [LOST_AFTER_S [HEARTBEAT_S]]`
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import farm
from farm.call import WorkerInfo
from farm.errors import Unavailable
from farm.transports.connection import Connection
from farm.worker.host.host import EXIT_ORPHANED, WorkerHost
from farm.worker.runner import Runner


@farm.model(inputs={"x": farm.tensor(1, unit="m")}, outputs={"y": farm.tensor(1, unit="m3")})
def cube(x: Any) -> Any:
    return x**3


@farm.model(inputs={"x": 1}, outputs={"y": 1})
def sleep(x: Any) -> Any:
    time.sleep(x[0])
    return x


@farm.model(inputs={"x": 1}, outputs={"y": 1})
def hold(x: Any) -> Any:
    """Hold the interpreter for x seconds, like C code that does not release it."""
    ctypes.PyDLL(None).usleep(int(x[0] * 1e6))
    return x


@farm.model(inputs={"x": 1}, outputs={"y": 1})
def crash(x: Any) -> Any:
    """A segmentation fault."""
    ctypes.string_at(0)


MODELS = {"cube": cube, "sleep": sleep, "hold": hold, "crash": crash}


def start(
    connection: Connection, name: str, *, lost_after_s: float = 60.0
) -> subprocess.Popen[bytes]:
    """Start one; it runs until it is killed, drained, or has lost its dispatcher."""
    words = [__file__, json.dumps(asdict(connection)), name, str(lost_after_s)]
    root = str(Path(__file__).parent.parent.parent)
    return subprocess.Popen([sys.executable, *words], env={**os.environ, "PYTHONPATH": root})


def main(connection: str, name: str, lost_after_s: str = "60") -> int:
    runner = Runner(MODELS)
    host = WorkerHost(
        runner,
        Connection(**json.loads(connection)),
        WorkerInfo(name, runner.models()),
        lost_after_s=float(lost_after_s),
    )
    try:
        host.run()
    except Unavailable as error:
        print(error, file=sys.stderr)
        return EXIT_ORPHANED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
