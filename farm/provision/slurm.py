"""SLURM's commands as coroutines: submit, look, ask to drain, cancel. No policy.

Each is a process of its own with a time-out, waited for by a thread; while slurmctld is away they
block for seconds and then fail, which says nothing of the jobs.
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
"""A busy controller may take its time; its own message time-out is ten seconds by default."""

COMMANDS = ("sbatch", "squeue", "scancel", "scontrol")

PENDING = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
ENDED = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"),
        *("OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
    }
)
"""States in squeue(1), JOB STATE CODES; all others have nodes, or are about to."""

ORDINARY_REASONS = frozenset({"", "Priority", "Resources", "BeginTime"})
"""Reasons for waiting that nobody has to do anything about."""

FORMAT = "%i|%T|%N|%L|%j|%r"


class SlurmError(Exception):
    """A command failed; the text is SLURM's own."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """What squeue says of a job.

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
    """The rows that squeue prints with FORMAT; lines of another form are passed over."""
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
    """The environment without what would change SLURM's commands, or leak from one job to the next.

    A front door may be a job itself: its own sizes are no defaults for the jobs it submits.
    """
    kept = ("SLURM_CONF", "SLURM_CLUSTERS")
    foreign = ("SLURM_", "SLURMD_", "SRUN_", "SQUEUE_", "SCANCEL_", "PMI_", "PMIX_", "FARM_")
    return {k: v for k, v in environment.items() if k in kept or not k.startswith(foreign)}


class Slurm:
    """The cluster that this machine's SLURM commands speak to."""

    def __init__(self, *, timeout_s: float = COMMAND_TIMEOUT_S) -> None:
        """Raises Unavailable when the commands are not there."""
        missing = [name for name in COMMANDS if shutil.which(name) is None]
        if missing:
            raise Unavailable(
                f"SLURM's commands are not on the PATH of this machine: {', '.join(missing)}"
            )
        self._timeout_s = timeout_s

    async def submit(self, script: str) -> str:
        """The id of a new job. Raises SlurmError with sbatch's words; the job may exist even so."""
        output = await self._run("sbatch", "--parsable", feed=script)
        return output.strip().split(";")[0]

    async def jobs(self) -> list[JobRow]:
        """All jobs of this user that SLURM knows of, the ended ones of the last minutes too."""
        user = str(os.getuid())
        return parse_jobs(await self._run("squeue", "-h", "-t", "all", "-u", user, "-o", FORMAT))

    async def drain(self, jobs: Sequence[str]) -> None:
        """Send SIGTERM to the steps of running jobs: they finish what runs, and the job ends."""
        await self._to_jobs("--signal=TERM", jobs)

    async def cancel(self, jobs: Sequence[str]) -> None:
        """End jobs that wait or run."""
        await self._to_jobs("--quiet", jobs)

    async def _to_jobs(self, option: str, jobs: Sequence[str]) -> None:
        for first in range(0, len(jobs), 200):  # a command line has its limits
            await self._run("scancel", option, *jobs[first : first + 200])

    async def fate(self, job: str) -> str:
        """How a job ended that squeue has forgotten; empty when nobody knows."""
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
        """What a command prints. Raises SlurmError when it fails or takes too long."""
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
