"""A running `slurm/dev-cluster` for tests: jobs, commands, failures."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest

from tests.slurm.status_asker import COMMAND, StatusAsker
from tests.support.time_limits import scaled

T = TypeVar("T")

PROGRAM = Path(__file__).parents[2] / "slurm" / "dev-cluster"
NODES = ("cpu1", "cpu2", "cpu3", "cpu4", "gpu1", "gpu2")
PORTS = 7

LIMIT_S = scaled(30.0)
"""Time limit for actions that take a second or two on an idle machine."""

CANNOT_RUN_HERE = 3
"""Exit status of `dev-cluster up` where there is no SLURM and none can be installed."""


class CannotRunHere(Exception):
    """This machine cannot have a cluster; the message says why."""


def wait_for(condition: Callable[[], T], what: str, limit_s: float = LIMIT_S) -> T:
    """Call `condition` repeatedly and return its first true value."""
    limit = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < limit, f"waited {limit_s:.0f} s for {what}"
        time.sleep(0.05)
    return value


def free_ports(count: int = PORTS) -> int:
    """Return the first of `count` consecutive free ports below the ephemeral ports."""
    while True:
        first = random.randrange(17900, 30000)
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first


class Cluster:
    """A cluster of the six `NODES`, with its own state folder and ports.

    state: an empty folder. settings: those of `dev-cluster --help`, such as `net="netns"`. folder:
    visible to all hosts; jobs run and write there. environment: that of this process with the
    variables of the SLURM commands, without settings of farm and of a job around the tests.
    """

    title = "SLURM"

    def __init__(self, state: Path, **settings: str) -> None:
        self._askers: dict[tuple[str, ...], StatusAsker] = {}
        self.state = state
        self.folder = state / "share"
        ours = {"state": str(state), "port": str(free_ports()), **settings}
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("FARM_", "SLURM_", "SBATCH_", "DEV_CLUSTER_"))
        }
        self.environment |= {f"DEV_CLUSTER_{name.upper()}": ours[name] for name in ours}
        self.environment["SLURM_CONF"] = str(state / "slurm.conf")

    def dev_cluster(
        self, *arguments: str, cwd: Path | None = None, timeout_s: float = LIMIT_S
    ) -> str:
        """Run `slurm/dev-cluster` to its end; returns its output, raises CalledProcessError."""
        return self._call([str(PROGRAM), *arguments], cwd, timeout_s)

    def up(self) -> None:
        """Start the cluster or its missing parts; raises CannotRunHere. May install packages."""
        try:
            self.dev_cluster("up", timeout_s=280)
        except subprocess.CalledProcessError as error:
            if error.returncode == CANNOT_RUN_HERE:
                raise CannotRunHere(error.stderr.strip()) from None
            raise

    def down(self) -> None:
        """Stop the cluster and remove its state."""
        for asker in self._askers.values():
            asker.close()
        self.dev_cluster("down", "--purge", timeout_s=60)

    def reset(self) -> None:
        """Restore the cluster: no jobs, all daemons running and cables plugged, no node drained."""
        self.up()
        if jobs := self.run(["squeue", "-h", "-o", "%A"]).split():
            self.run(["scancel", *jobs])
        for name in NODES:
            if self.node_state(name).startswith("drain"):
                self.node("resume", name)
        wait_for(lambda: not self.run(["squeue", "-h"]), "the jobs to end")

    @contextlib.contextmanager
    def running(self) -> Iterator[Self]:
        """Run the cluster for the block; skip the test if this machine cannot have it."""
        try:
            self.up()
            yield self
        except CannotRunHere as error:
            pytest.skip(f"no {self.title} here: {error}")
        finally:
            self.down()
            shutil.rmtree(self.state, ignore_errors=True)

    @property
    def has_host_names(self) -> bool:
        """Whether each node has its own host name, which requires root."""
        return "own host names" in self.dev_cluster("status")

    @property
    def refuses_an_account(self) -> bool:
        """Whether jobs for the account `closed` are refused, which requires a SLURM plugin."""
        return (self.state / "job_submit.lua").exists()

    def on(self, host: str, *command: str) -> list[str]:
        """Return the command line that runs `command` on a host, in the same process."""
        return [str(PROGRAM), "on", host, *command]

    def run(
        self,
        command: list[str],
        host: str = "login",
        cwd: Path | None = None,
        timeout_s: float = LIMIT_S,
    ) -> str:
        """Run a command to its end in `cwd` [folder]; returns stdout, raises CalledProcessError."""
        return self._call(self.on(host, *command), cwd or self.folder, timeout_s)

    def start(
        self,
        command: list[str],
        host: str = "login",
        cwd: Path | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> subprocess.Popen[str]:
        """Start a long-running command; signals reach it. The caller ends it."""
        return subprocess.Popen(
            self.on(host, *command),
            cwd=cwd or self.folder,
            env=self.environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def farm_status(
        self, run_folder: Path, host: str = "login", command: Sequence[str] = COMMAND
    ) -> dict[str, Any]:
        """Return what `farm status --json` prints for the farm of a run folder.

        command: `COMMAND` as the user who asks runs it. Raises ConnectionError if the farm does
        not answer, TimeoutError.
        """
        asker = self._askers.get((host, *command))
        if asker is None or asker.has_ended:
            asker = StatusAsker(self.start(list(command), host, stdin=subprocess.PIPE))
            self._askers[(host, *command)] = asker
        return asker.status(run_folder, LIMIT_S)

    def _call(self, command: list[str], cwd: Path | None, timeout_s: float) -> str:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if done.returncode:
            error = subprocess.CalledProcessError(
                done.returncode, command, done.stdout, done.stderr
            )
            error.add_note(done.stderr)  # its message does not include stderr
            raise error
        return done.stdout

    def sbatch(self, *arguments: str) -> str:
        """Submit a job, as `sbatch("-N2", "--wrap", "hostname")`; returns its id."""
        output = self.folder / "%j.out"
        return self.run(["sbatch", "--parsable", f"--output={output}", *arguments]).strip()

    def output(self, job: str) -> str:
        """Return the output of an `sbatch` job so far."""
        path = self.folder / f"{job}.out"
        return path.read_text() if path.exists() else ""

    def job(self, job: str) -> dict[str, str]:
        """Return SLURM's record of a job, even an ended one: JobState, Reason, NodeList, ..."""
        return dict(re.findall(r"(\S+?)=(\S*)", self.run(["scontrol", "-o", "show", "job", job])))

    def wait_for_job(self, job: str, *states: str, limit_s: float = LIMIT_S) -> dict[str, str]:
        """Wait until a job is in one of the states, such as "RUNNING"; return SLURM's record."""
        seen: dict[str, str] = {}

        def reached() -> bool:
            seen.update(self.job(job))
            return seen["JobState"] in states

        try:
            wait_for(reached, f"job {job} to be {' or '.join(states)}", limit_s)
        except AssertionError as error:
            error.add_note(f"it is {seen['JobState']}, reason {seen['Reason']}")
            error.add_note(self.output(job))
            raise
        return seen

    def node(self, verb: str, name: str) -> None:
        """Change a node: crash, start, stop, drain, resume, cut, plug; "login": stop, start."""
        self.dev_cluster("node", verb, name, timeout_s=60)

    def node_state(self, name: str) -> str:
        """Return the state as in sinfo: idle, mixed, down, ...; with * if the node is silent."""
        return self.run(["sinfo", "-h", "-n", name, "-o", "%T"]).split()[0]
