"""A Dask cluster of real processes, for tests: a scheduler and workers that come and go."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import distributed
import numpy as np

from farm.call import Call, Operation, Result, canonical_config
from farm.dispatcher.dispatcher import Dispatcher
from farm.model import Model
from farm.transports.dask.transport import DaskTransport
from farm.worker import dask as dask_worker
from farm.worker.runner import Runner
from tests.support.coroutines import wait_until
from tests.support.time_limits import scaled

LIMIT_S = scaled(30.0)

MODELS = """
import contextlib, os, pathlib, threading, time
import distributed
import farm

if "BROKEN" in os.environ:
    raise OSError("no licence here")

class Square(farm.Model):
    inputs = {"x": 1}
    outputs = {"y": 1}

    def evaluate(self, inputs, config):
        time.sleep(config.get("sleep", 0.0))
        if "hang once" in config and not pathlib.Path(config["hang once"]).exists():
            pathlib.Path(config["hang once"]).touch()
            time.sleep(600)
        if "exit" in config:
            os._exit(config["exit"])
        return inputs["x"] ** 2

class Lone(Square):
    '''Fails if two calls run in one process at once.'''
    lock = threading.Lock()

    def evaluate(self, inputs, config):
        if not self.lock.acquire(blocking=False):
            raise RuntimeError("another call runs here")
        with contextlib.closing(self):
            return super().evaluate(inputs, config)

    def close(self):
        self.lock.release()

class Once(farm.Model):
    '''Tells that it runs, then waits for `go`.'''
    inputs = {"x": 1}
    outputs = {"y": 1}
    repeatable = False

    def evaluate(self, inputs, config):
        folder = pathlib.Path(config["folder"])
        with (folder / "runs").open("a") as runs:
            print(os.getpid(), file=runs)
        while not (folder / "go").exists():
            time.sleep(0.01)
        if "dies with answer" in config:
            # Dask asks for an answer once it knows that the task has finished.
            dask_worker = distributed.get_worker()
            dask_worker.handlers["get_data"] = lambda *comm, **message: os._exit(1)
        return inputs["x"]
"""
"""Models for the cluster's processes to load, as square.py in its folder."""


class Cluster:
    """One scheduler and its workers; each worker is a separate process that a test may kill."""

    def __init__(self, folder: Path, environment: Mapping[str, str], scheme: str) -> None:
        self.folder = folder
        self.scheduler_file = folder / "scheduler.json"
        self.address = ""
        self.workers: list[subprocess.Popen[bytes]] = []
        self._environment = {**os.environ, **environment}
        self._scheme = scheme
        self._started = 0
        self.start_scheduler()

    def start_scheduler(self) -> None:
        """Start the scheduler, at the same address as before."""
        self.scheduler_file.unlink(missing_ok=True)
        where = ["--host", self.address or f"{self._scheme}://127.0.0.1", "--no-dashboard"]
        if not self.address:
            where += ["--port", "0"]
        where += ["--scheduler-file", str(self.scheduler_file), "--no-show"]
        self.scheduler = self._start("scheduler", where)
        wait_until(self._has_scheduler_file, LIMIT_S)

    def _has_scheduler_file(self) -> bool:
        assert self.scheduler.poll() is None, (self.folder / "scheduler.log").read_text()
        with contextlib.suppress(OSError, ValueError, KeyError):
            self.address = json.loads(self.scheduler_file.read_text())["address"]
            return True
        return False

    def add_worker(
        self,
        threads: int = 1,
        *,
        nanny: bool = False,
        resources: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Add a worker; with a nanny it is restarted when it dies. resources: such as GPU=1."""
        options = [self.address, "--nthreads", str(threads), "--no-dashboard", "--host"]
        options += ["127.0.0.1", "--death-timeout", "20", "--local-directory", str(self.folder)]
        options += [] if nanny else ["--no-nanny"]
        options += ["--resources", resources] if resources else []
        worker = self._start("worker", options, environment)
        self.workers.append(worker)
        return worker

    def _start(
        self, role: str, options: list[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        self._started += 1
        with (self.folder / f"{role}.log").open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "dask", role, *options],
                cwd=self.folder,
                env={**self._environment, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    def tasks(self) -> list[str]:
        """Return the keys of all tasks that the scheduler knows."""
        with distributed.Client(self.address, set_as_default=False) as client:
            keys: list[str] = client.run_on_scheduler(
                lambda dask_scheduler: [str(key) for key in dask_scheduler.tasks]
            )
            return keys

    def stop(self) -> None:
        """End all processes."""
        for process in (*self.workers, self.scheduler):
            process.kill()  # a nanny's worker notices its end and exits
            process.wait()


@contextlib.contextmanager
def dask_cluster(
    folder: Path, environment: Mapping[str, str] | None = None, *, scheme: str = "tcp"
) -> Iterator[Cluster]:
    """Run a scheduler without workers for the duration of the block."""
    cluster = Cluster(folder, environment or {}, scheme)
    try:
        yield cluster
    finally:
        cluster.stop()


def specs(cluster: Cluster) -> list[str]:
    return [f"{cluster.folder}/square.py:{name}" for name in ("Square", "Once", "Lone")]


@contextlib.asynccontextmanager
async def joined(cluster: Cluster, **options: Any) -> AsyncIterator[Dispatcher]:
    """Run a farm that uses the cluster's workers; at the end it leaves nothing there."""
    transport = DaskTransport(cluster.address, specs(cluster), **options)
    dispatcher = Dispatcher([transport])
    dispatcher.start()
    try:
        async with asyncio.timeout(LIMIT_S):
            await asyncio.wrap_future(transport.ready)
        yield dispatcher
    finally:
        await dispatcher.close(grace_s=0.0)


def slots(dispatcher: Dispatcher) -> int:
    return sum(worker["slots"] for worker in dispatcher.snapshot()["workers"])


def in_flight(dispatcher: Dispatcher) -> int:
    return sum(row["in_flight"] for row in dispatcher.snapshot()["queues"])


def square(x: float, **config: Any) -> Call:
    return Call("Square", Operation.EVALUATE, (np.array([x]),), canonical_config(config))


async def outcomes_of(dispatcher: Dispatcher, calls: list[Call]) -> list[Result | BaseException]:
    return await asyncio.gather(*map(dispatcher.submit, calls), return_exceptions=True)


def expect_squares(outcomes: list[Result | BaseException]) -> set[str]:
    """Return the workers that computed the squares of 0, 1, 2, ..."""
    for i, outcome in enumerate(outcomes):
        assert isinstance(outcome, Result), outcome
        assert outcome.outputs[0].tolist() == [float(i) ** 2]
    return {outcome.worker for outcome in outcomes if isinstance(outcome, Result)}


def keep(specs: Sequence[str], models: Mapping[str, Model]) -> None:
    """Let this process use these objects for `specs`, as Dask workers that are its threads."""
    dask_worker._loaded[tuple(specs)] = dask_worker._Loaded(Runner(models))
