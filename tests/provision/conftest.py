"""A farm for workers to connect to, and models that misbehave on request."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, ParamSpec

import pytest

from farm.provision.local.starter import WorkerSettings
from farm.provision.local.supervisor import Workers
from farm.transports import peers
from tests.support.coroutines import on_loop
from tests.support.running_farm import LIMIT_S, Farm, wait_until
from tests.support.virtual_time import run_virtually


@pytest.fixture
def farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Farm]:
    """A farm that waits for what a supervisor says of a death, however busy the machine is."""
    monkeypatch.setattr(peers, "SUPERVISOR_GRACE_S", 5.0)
    running = Farm(tmp_path)
    yield running
    running.close()


MODELS = '''
import ctypes, hashlib, os, resource, signal, subprocess, sys, time
from pathlib import Path
import numpy as np
import farm

HERE = Path(__file__).parent
ONE = dict(inputs={"x": 1}, outputs={"y": 1})

@farm.model(**ONE)
def double(x):
    return 2 * x

@farm.model(**ONE)
def sleep(x):
    """Sleeps x seconds; leaves its number behind when it begins."""
    (HERE / "sleeping").write_text(str(os.getpid()))
    time.sleep(x[0])
    return x

@farm.model(**ONE)
def gate(x):
    """Leaves its number behind when it begins, and waits until there is a file `open`."""
    (HERE / "sleeping").write_text(str(os.getpid()))
    while not (HERE / "open").exists():
        time.sleep(0.01)
    return x

@farm.model(**ONE)
def hold(x):
    """Holds the interpreter for x seconds."""
    (HERE / "sleeping").write_text(str(os.getpid()))
    ctypes.PyDLL(None).usleep(int(x[0] * 1e6))
    return x

@farm.model(**ONE)
def compute(x):
    """Computes for x million rounds in C code that lets other threads run and heeds no signal."""
    (HERE / "sleeping").write_text(str(os.getpid()))
    hashlib.pbkdf2_hmac("sha256", b"secret", b"salt", int(x[0] * 1e6))
    return x

@farm.model(**ONE)
def die(x):
    """Ends its process in the way that x says; in any other way it answers."""
    print("about to die", x[0], flush=True)
    if x[0] == 1:
        ctypes.string_at(0)
    if x[0] == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if x[0] == 3:
        os._exit(3)
    if x[0] == 4:
        sys.exit("leaving")
    if x[0] == 5:
        resource.setrlimit(resource.RLIMIT_AS, (2**31, resource.RLIM_INFINITY))
        try:
            return np.ones(2**32)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return x

@farm.model(**ONE)
def spawn(x):
    """Starts a program that outlives it, and tells its number."""
    return subprocess.Popen(["sleep", "1000"]).pid

@farm.model(**ONE)
def environment(x):
    names = "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "NPROC"
    return sum(1000**i * float(os.environ.get(name, -1)) for i, name in enumerate(names))
'''


P = ParamSpec("P")


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Decorator: run the coroutine on a loop whose time passes at once."""
    return on_loop(test, run_virtually)


Start = Callable[..., Workers]


@pytest.fixture
def begin(farm: Farm, tmp_path: Path) -> Iterator[Start]:
    """Starts workers of some specifications, and waits until they serve."""
    started: list[Workers] = []

    def begin(
        specs: Sequence[str], count: int, *more: Any, ready: bool = True, **settings: Any
    ) -> Workers:
        logs = tmp_path / "logs"
        settings = {"first_s": 0.05, **settings}
        workers = Workers(WorkerSettings(specs, count, farm.connect, logs, *more, **settings))
        workers.start()
        started.append(workers)
        if ready:
            workers.ready.result(LIMIT_S)
            farm.wait_for_workers(count)
        return workers

    yield begin
    for workers in started:
        workers.stop(0.0)


def kill_one(farm: Farm, workers: Workers) -> None:
    """Kill the first worker, and wait for the one that takes its place."""
    before, losses = farm.wait_for_workers(len(workers.pids())), len(farm.losses())
    killed = workers.pids()[0]
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: len(farm.losses()) > losses, "the loss is told")

    def replaced() -> bool:
        # The loss is told before the worker has left.
        names = [row["name"] for row in farm.snapshot()["workers"]]
        return len(names) == len(before) and not any(f"/{killed}-" in name for name in names)

    wait_until(replaced, "another one joins")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A file of models that misbehave on request."""
    path = tmp_path / "models.py"
    path.write_text(MODELS)
    return path
