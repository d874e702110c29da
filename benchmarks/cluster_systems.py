"""The systems of cluster_elastic.py, which run tasks that sleep on a SLURM cluster.

Each begins without a job, gets at most `jobs` nodes of `cpus` CPUs, and lets them go again.
"""

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import farm
from cluster_jobs import setting

LIMIT_S = 900.0


@dataclass(frozen=True)
class Size:
    """The limits that all systems share.

    jobs: most nodes, a job each; cpus: of a node, a worker each. backlog_s: target time to finish
    all waiting tasks; idle_s: how long a node without work is kept.
    """

    jobs: int
    cpus: int
    backlog_s: float
    idle_s: float


class System(Protocol):
    """A running system; as a context manager it ends with its jobs."""

    def __enter__(self) -> System: ...

    def __exit__(self, *exc: object) -> None: ...

    def submit(self, seconds: Sequence[float]) -> None:
        """Submit a task for each of these times to sleep."""

    def wait(self) -> None:
        """Wait until all tasks are done."""


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition. Raises RuntimeError on timeout."""
    limit = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > limit:
            raise RuntimeError(f"waited {LIMIT_S:g} s for {what}")
        time.sleep(0.05)


class Farm:
    """An elastic farm, with a model process for each CPU."""

    MODEL = """
import time
import farm

@farm.model(inputs={"seconds": 1}, outputs={"slept": 1})
def sleeper(seconds):
    time.sleep(seconds[0])
    return seconds
"""

    PLAN = """
host = "127.0.0.1"
mem = "4G"
time = "0:30:00"
backlog_s = {backlog_s}
grow_after_s = {grow_after_s}
idle_timeout_s = {idle_s}

[[workers]]
name = "sleepers"
workers = {cpus}
max_jobs = {jobs}
"""

    def __init__(self, folder: Path, size: Size, grow_after_s: float) -> None:
        self._folder = folder
        (folder / "model.py").write_text(self.MODEL)
        plan = self.PLAN.format(**vars(size), grow_after_s=grow_after_s)
        (folder / "farm.toml").write_text(plan)
        self._open: list[tuple[float, Future[Any]]] = []
        self._ends = ExitStack()

    def __enter__(self) -> Farm:
        command = ["serve", "model.py", "--slurm", "farm.toml", "--dir", "run", "--port", "0"]
        log = self._ends.enter_context((self._folder / "serve.log").open("w"))
        process = subprocess.Popen(
            [sys.executable, "-m", "farm", *command], cwd=self._folder, stdout=log, stderr=log
        )
        self._ends.callback(process.wait)
        self._ends.callback(process.terminate)
        wait_until((self._folder / "run" / "farm.json").exists, "the farm")
        client = self._ends.enter_context(farm.connect(self._folder / "run", wait=LIMIT_S))
        self._model = client.model()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ends.close()

    def submit(self, seconds: Sequence[float]) -> None:
        """See System."""
        self._open += [(s, self._model.submit(np.array([s]))) for s in seconds]

    def wait(self) -> None:
        """See System."""
        for seconds, future in self._open:
            assert future.result(LIMIT_S) == seconds
        self._open.clear()


class Dask:
    """dask-jobqueue with `adapt`; its wait_count is the number of intervals that a node is idle."""

    INTERVAL_S = 1.0

    def __init__(self, folder: Path, size: Size, processes: int) -> None:
        self._folder = folder
        self._size = size
        self._processes = processes
        self._open: list[Any] = []

    def __enter__(self) -> Dask:
        from dask_jobqueue.slurm import SLURMCluster
        from distributed import Client

        warnings.filterwarnings("ignore", module="distributed|dask_jobqueue")
        self._cluster = SLURMCluster(
            cores=self._size.cpus,
            processes=self._processes,
            memory="4GB",
            walltime="00:30:00",
            interface="lo",
            python=sys.executable,
            log_directory=str(self._folder),
            local_directory=str(self._folder),
            scheduler_options={"dashboard": False},
        )
        self._cluster.adapt(
            minimum_jobs=0,
            maximum_jobs=self._size.jobs,
            interval=self.INTERVAL_S,
            target_duration=self._size.backlog_s,
            wait_count=round(self._size.idle_s / self.INTERVAL_S),
            worker_key=_job_of,
        )
        self._client = Client(self._cluster)
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.close()
        self._cluster.close()

    def submit(self, seconds: Sequence[float]) -> None:
        """See System."""
        self._open += self._client.map(time.sleep, seconds, pure=False)

    def wait(self) -> None:
        """See System."""
        self._client.gather(self._open)
        self._open.clear()


def _job_of(worker: Any) -> str:
    """Return the job of a Dask worker: the processes of a job are to be let go together."""
    return "-".join(str(worker.name).split("-")[:2])


class Array:
    """A job array for each wave of tasks, split where MaxArraySize demands it; a CPU for a task."""

    SCRIPT = """#!/bin/bash
sleep "$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" {tasks})"
: > {done}.$SLURM_ARRAY_TASK_ID
"""

    def __init__(self, folder: Path, size: Size) -> None:
        self._folder = folder
        self._at_once = size.jobs * size.cpus
        self._most = int(setting("MaxArraySize"))
        self._arrays = 0
        self._tasks = 0

    def __enter__(self) -> Array:
        (self._folder / "done").mkdir()
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def submit(self, seconds: Sequence[float]) -> None:
        """See System."""
        for first in range(0, len(seconds), self._most):
            part = seconds[first : first + self._most]
            tasks = self._folder / f"tasks.{self._arrays}"
            tasks.write_text("".join(f"{s}\n" for s in part))
            script = self.SCRIPT.format(tasks=tasks, done=self._folder / "done" / tasks.name)
            array = f"--array=0-{len(part) - 1}%{self._at_once}"
            words = ("sbatch", array, "--output=/dev/null", "--time=30", f"--chdir={self._folder}")
            subprocess.run(words, input=script, check=True, capture_output=True, text=True)
            self._arrays += 1
            self._tasks += len(part)

    def wait(self) -> None:
        """See System."""
        done = self._folder / "done"
        wait_until(lambda: len(list(done.iterdir())) == self._tasks, "the job arrays")
