"""A farm of `farm serve --slurm` in its own folder on the cluster, as a user runs it."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil

import farm
from farm.errors import Unavailable
from farm.transports.connection import read_connection
from tests.slurm.cluster import LIMIT_S, Cluster, wait_for
from tests.slurm.status_asker import COMMAND

FARM = [sys.executable, "-m", "farm"]

IN_JOBS_ONLY = "import os; os.environ['SLURM_JOB_ID']\n"
"""The start of a model that the front door cannot describe, so the first job comes at once."""

MODEL = """
import time
import farm

class {name}(farm.Model):
    name = "{name}"
    inputs = {{"x": 1}}
    outputs = {{"y": 1}}

    def evaluate(self, inputs, config):
        time.sleep(config.get("sleep", 0.0))
        return {factor} * inputs["x"]
"""

CALLS = """
import sys
import farm

name, count, sleep = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
with farm.connect("run") as client:
    model = client.model(name)
    futures = [model.submit([float(n)], config={"sleep": sleep}) for n in range(count)]
    print([float(future.result()[0]) for future in futures])
"""
"""A script that makes many calls at once in its own process, which outlives a front door."""

ONE_KIND = """
backlog_s = 2
grow_after_s = 0.5
idle_timeout_s = 3

[[workers]]
name = "small"
models = ["double.py"]
partition = "cpu"
max_jobs = 3
"""
TWO_KINDS = """
backlog_s = 2
grow_after_s = 0.5
idle_timeout_s = 3

[[workers]]
name = "cheap"
models = ["double.py"]
partition = "cpu"
workers = 2
max_jobs = 2

[[workers]]
name = "fast"
models = ["triple.py"]
partition = "gpu"
cpus = 2
gpus = 1
max_jobs = 1
time = "5:00"
"""
TWO_NODES = """
backlog_s = 60

[[workers]]
name = "small"
models = ["double.py"]
min_jobs = 2
max_jobs = 3
sbatch = ["--exclusive"]
"""
"""One worker on each of two or three nodes, which it uses exclusively."""


def front_door_of(folder: Path) -> int:
    """Return the process id in the connection file, once its farm serves."""

    def serving() -> int:
        with contextlib.suppress(Unavailable):
            connection = read_connection(folder)
            if connection.url and psutil.pid_exists(connection.pid):
                return connection.pid
        return 0

    return wait_for(serving, "a front door")


class Elastic:
    """A folder with models, and a farm that may run there, as a user has them.

    host: runs the farm and the commands; user: their owner, "" for the user who runs the tests.
    """

    def __init__(self, cluster: Cluster, folder: Path, *, user: str = "") -> None:
        self.cluster = cluster
        self.folder = folder
        self.host = "login"
        self.user = user
        self.python = python_of(user) if user else sys.executable
        folder.mkdir()
        if user:
            shutil.chown(folder, user)
        for factor, name in enumerate(("double", "triple", "quadruple"), 2):
            text = IN_JOBS_ONLY + MODEL.format(name=name, factor=factor)
            (folder / f"{name}.py").write_text(text)
        (folder / "calls.py").write_text(CALLS)
        self.process: subprocess.Popen[str] | None = None

    def serve(self, plan: str, *arguments: str, site: Path | None = None) -> None:
        """Start the farm; site: a folder of commands that it finds before SLURM's own."""
        (self.folder / "farm.toml").write_text(plan)
        options = ["--slurm", "farm.toml", "--dir", "run", "--port", "0", *arguments]
        wrapped = [] if site is None else ["env", f"PATH={site}:{os.environ['PATH']}"]
        self.process = self.start(*wrapped, *FARM, "serve", *options)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("farm serves"), self.process.communicate(timeout=LIMIT_S)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.communicate(timeout=LIMIT_S)

    def stop(self) -> str:
        """Stop the farm like Ctrl-C and return what it wrote to stderr."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        _, errors = self.process.communicate(timeout=LIMIT_S)
        assert self.process.returncode == 0, errors
        self.process = None
        return errors

    def run(self, *command: str, timeout_s: float = LIMIT_S) -> str:
        return self.cluster.run(self._ours(command), self.host, self.folder, timeout_s)

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Start a command as the farm's user."""
        return self.cluster.start(self._ours(command), self.host, self.folder)

    def _ours(self, command: Sequence[str]) -> list[str]:
        """Return the command line that runs a command as the farm's user."""
        if not self.user:
            return list(command)
        return [*as_user(self.user), *(self.python if c == sys.executable else c for c in command)]

    def status(self) -> dict[str, Any]:
        return self.cluster.farm_status(self.folder / "run", self.host, self._ours(COMMAND))

    def jobs(self) -> dict[str, str]:
        """Return the pending and running jobs with their states; COMPLETING counts as ended."""
        lines = self.run("squeue", "-h", "-o", "%i %T").splitlines()
        jobs = dict(line.split() for line in lines)
        return {job: state for job, state in jobs.items() if state != "COMPLETING"}

    def events(self, kind: str) -> list[str]:
        return [
            f"{event['worker']}: {event['text']}"
            for event in self.status()["events"]
            if event["event"] == kind
        ]

    def wait_for_no_jobs(self) -> None:
        wait_for(lambda: not self.jobs(), "the jobs to be let go")

    def wait_for_workers(self, count: int) -> list[dict[str, Any]]:
        def found() -> list[dict[str, Any]]:
            rows: list[dict[str, Any]] = self.status()["workers"]
            return rows if len(rows) == count else []

        try:
            return wait_for(found, f"{count} workers")
        except AssertionError as error:
            error.add_note(self.run(*FARM, "status", "--to", "run"))
            raise

    @contextlib.contextmanager
    def calling(self, name: str, count: int, sleep_s: float) -> Iterator[Callable[[], list[float]]]:
        """Start calls; the yielded function waits for their answers."""
        command = [sys.executable, "calls.py", name, str(count), str(sleep_s)]
        process = self.start(*command)

        def answers() -> list[float]:
            out, errors = process.communicate(timeout=4 * LIMIT_S)
            assert process.returncode == 0, errors
            return [float(word) for word in out.strip("[]\n").split(",")]

        try:
            yield answers
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()


E = TypeVar("E", bound=Elastic)


def as_user(name: str) -> list[str]:
    """Return the prefix by which root runs a command as another user, with our farm on its path."""
    path = os.pathsep.join([str(Path(farm.__file__).parents[1]), sysconfig.get_path("purelib")])
    who = [f"--reuid={name}", f"--regid={name}", "--clear-groups"]
    return ["setpriv", *who, "env", f"PYTHONPATH={path}"]


@functools.cache
def python_of(user: str) -> str:
    """Return a Python that this user can run farm with, or "": ours may be in a home folder."""
    for python in (sys.executable, "/usr/bin/python3"):
        command = [*as_user(user), python, "-P", "-m", "farm", "--version"]
        if subprocess.run(command, capture_output=True, cwd="/", check=False).returncode == 0:
            return python
    return ""


@contextlib.contextmanager
def elastic_on(cluster: Cluster, name: str, *, user: str = "") -> Iterator[Elastic]:
    with ending(Elastic(cluster, cluster.folder / name, user=user)) as elastic:
        yield elastic


@contextlib.contextmanager
def ending(farm: E) -> Iterator[E]:
    """Kill a farm after the block if it still runs."""
    try:
        yield farm
    finally:
        if farm.process is not None:
            farm.kill()
