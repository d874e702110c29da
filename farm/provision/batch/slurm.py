"""SLURM's commands as coroutines: submit, list, drain, cancel. Contains no policy.

Each command is a process with a timeout, awaited in a thread; while slurmctld is away the commands
block for seconds and then fail, which says nothing about the jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farm.errors import Unavailable

COMMAND_TIMEOUT_S = 60.0
"""A busy controller may take its time; its own message timeout is ten seconds by default."""

COMMANDS = ("sbatch", "squeue", "scancel", "scontrol")

PENDING = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
ENDED = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"),
        *("OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
    }
)
"""Final states in squeue(1), JOB STATE CODES; all other jobs have nodes, or will get them."""

ORDINARY_REASONS = frozenset({"", "Priority", "Resources", "BeginTime"})
"""Reasons for waiting that need no action."""

FORMAT = "%i|%T|%N|%L|%j|%r"


class SlurmError(Exception):
    """A command failed; the message is SLURM's own."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job in the output of squeue.

    reason: why it waits, or how it ended, in SLURM's words; empty where SLURM says None.
    """

    id: str
    state: str
    name: str
    nodes: str = ""
    time_left: str = ""
    reason: str = ""

    @property
    def is_pending(self) -> bool:
        """Whether it has no nodes and waits for them."""
        return self.state in PENDING

    @property
    def has_ended(self) -> bool:
        """Whether it has ended for good."""
        return self.state in ENDED

    @property
    def in_words(self) -> str:
        """Its state, and the reason if there is one."""
        return f"{self.state} ({self.reason})" if self.reason else self.state


def parse_jobs(text: str) -> list[JobRow]:
    """Return the rows that squeue prints with FORMAT; other lines are skipped."""
    rows = []
    for line in text.splitlines():
        words = line.split("|", 5)
        if len(words) == 6:
            job, state, nodes, left, name, reason = words
            rows.append(JobRow(job, state, name, nodes, left, _reason(reason)))
    return rows


def _reason(word: str) -> str:
    word = word.strip("()")
    return "" if word == "None" else word


def clean(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without variables that change SLURM's commands or leak between jobs.

    The server may run in a job itself: its own resources are no defaults for the jobs it submits.
    """
    kept = ("SLURM_CONF", "SLURM_CLUSTERS")
    foreign = ("SLURM_", "SLURMD_", "SRUN_", "SQUEUE_", "SCANCEL_", "PMI_", "PMIX_", "FARM_")
    return {k: v for k, v in environment.items() if k in kept or not k.startswith(foreign)}


class Slurm:
    """The SLURM cluster of this machine's commands."""

    def __init__(self, *, timeout_s: float = COMMAND_TIMEOUT_S) -> None:
        """Raises Unavailable if the commands are missing."""
        missing = [name for name in COMMANDS if shutil.which(name) is None]
        if missing:
            raise Unavailable(
                f"SLURM's commands are not on the PATH of this machine: {', '.join(missing)}"
            )
        self._timeout_s = timeout_s

    async def submit(self, script: str) -> str:
        """Submit a job; return its id. Raises SlurmError; the job may exist even so."""
        output = await self._run("sbatch", "--parsable", feed=script)
        return output.strip().split(";")[0]

    async def jobs(self) -> list[JobRow]:
        """Return all jobs of this user that SLURM knows, including those that ended minutes ago."""
        user = str(os.getuid())
        return parse_jobs(await self._run("squeue", "-h", "-t", "all", "-u", user, "-o", FORMAT))

    async def drain(self, jobs: Sequence[str]) -> None:
        """Send SIGTERM to the steps of running jobs: they finish their calls, and the job ends."""
        await self._to_jobs("--signal=TERM", jobs)

    async def cancel(self, jobs: Sequence[str]) -> None:
        """Cancel pending and running jobs."""
        await self._to_jobs("--quiet", jobs)

    async def _to_jobs(self, option: str, jobs: Sequence[str]) -> None:
        for first in range(0, len(jobs), 200):  # the length of a command line is limited
            await self._run("scancel", option, *jobs[first : first + 200])

    async def fate(self, job: str) -> str:
        """Return how a job ended that squeue no longer lists; empty if unknown."""
        commands = (
            ("scontrol", "-o", "show", "job", job),
            ("sacct", "-n", "-P", "-X", "-j", job, "-o", "State,ExitCode"),
        )
        for command in commands:
            with contextlib.suppress(SlurmError):
                output = (await self._run(*command)).strip()
                if command[0] == "sacct" and output:
                    state, code = output.splitlines()[0].split("|")
                    return JobRow(job, state, "", reason=f"exit code {code}").in_words
                words = dict(w.split("=", 1) for w in output.split() if "=" in w)
                if "JobState" in words:
                    reason = _reason(words.get("Reason", ""))
                    return JobRow(job, words["JobState"], "", reason=reason).in_words
        return ""

    async def _run(self, *command: str, feed: str = "") -> str:
        """Return a command's output. Raises SlurmError if it fails or takes too long."""
        return await asyncio.to_thread(self._wait_for, command, feed)

    def _wait_for(self, command: Sequence[str], feed: str) -> str:
        try:
            done = subprocess.run(
                command,
                env=clean(os.environ),
                input=feed,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=self._timeout_s,
                check=False,
            )
        except OSError as error:
            raise SlurmError(f"{command[0]} cannot be started: {error}") from None
        except subprocess.TimeoutExpired:
            raise SlurmError(f"{command[0]} did not answer in {self._timeout_s:g} s") from None
        if done.returncode:
            said = " ".join((done.stderr or done.stdout).split())
            raise SlurmError(said or f"{command[0]} ended with exit code {done.returncode}")
        return done.stdout
