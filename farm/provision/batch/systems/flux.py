"""Flux: its commands as coroutines, and its words in a job's script.

A job is the script itself, which `flux submit` starts on each node, or for each MPI rank. `flux
batch` would start brokers of Flux on the nodes first: a signal to such a job takes away those of
the other nodes, so that it cannot be drained.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from farm.provision.batch.commands import (
    CommandAdapter,
    CommandFailed,
    SubmitCommand,
    json_object,
    quoted,
    text_of,
)
from farm.provision.batch.kinds import WorkerKind
from farm.provision.batch.system import (
    BatchError,
    JobRow,
    Listing,
    Stand,
    SubmissionRefused,
)
from farm.provision.batch.systems import FLUX, BatchSystem
from farm.settings import SettingsError

STANDS = {
    "DEPEND": Stand.PENDING,
    "PRIORITY": Stand.PENDING,
    "SCHED": Stand.PENDING,
    "RUN": Stand.RUNNING,
    "CLEANUP": Stand.COMPLETING,
    "INACTIVE": Stand.ENDED,
}
"""The states of a job; source: flux-jobs(1), JOB STATUS, and RFC 21."""

LOST_NODES = re.compile(r"node[- ]failure|lost contact", re.IGNORECASE)
"""Exceptions that end a job as it lost a node; source: the module job-exec of flux-core."""

UNKNOWN_ID = re.compile(r"JobID \S+ unknown|unknown job id")
IS_OVER = re.compile("unknown job id|job is inactive|job is not running")
"""Messages of `flux jobs`, `flux cancel` and `flux job kill`."""

REFUSED = re.compile(r"flux[- ]submit: |\[Errno \d+\]|cannot be started")

PREFIX = "#flux: "

SINCE = "--since=-10m"
"""List jobs that have ended in this time, with all that have not."""

_ID = re.compile(r"(?:ƒ|f)([1-9A-HJ-NP-Za-km-z]+)")
"""A job id in base 58: with ƒ, or with f where the locale is not UTF-8. farm has the latter."""


def plain_id(text: str) -> str:
    """Return a job id in ASCII."""
    return "f" + text[1:] if text.startswith("ƒ") else text


def row_of(job: Mapping[str, Any]) -> JobRow:
    """Return the row of a job in the JSON of `flux jobs`. Raises ValueError if it lacks a key."""
    for key in ("jobid", "name", "state", "status", "userid"):
        if key not in job:
            raise ValueError(f"no {key}")
    if not _ID.fullmatch(str(job["jobid"])) or job["state"] not in STANDS:
        raise ValueError(f"job {job['jobid']!r} in state {job['state']!r}")
    stand = STANDS[job["state"]]
    exception = job.get("exception") or {}
    note = " ".join(f"{exception.get('type', '')} {exception.get('note', '')}".split())
    ended = stand is Stand.ENDED
    held = stand is Stand.PENDING and job.get("urgency") == 0
    starts_at = None
    failed = ended and job["status"] == "FAILED"
    if ended:
        reason = note or (f"exit code {job.get('returncode')}" if failed else "")
    elif stand is Stand.PENDING:
        waits_for = ", ".join(map(str, job.get("dependencies") or ()))
        annotations = job.get("annotations") or {}
        sched, user = annotations.get("sched") or {}, annotations.get("user") or {}
        reason = "held: its urgency is 0" if held else waits_for and f"depends on {waits_for}"
        reason = reason or text_of(sched, "reason_pending") or text_of(user, "reason_pending")
        estimate = sched.get("t_estimate")
        starts_at = float(estimate) if isinstance(estimate, int | float) and estimate else None
    else:
        reason = ""
    taken = failed and bool(LOST_NODES.search(note))
    return JobRow(
        plain_id(str(job["jobid"])),
        stand,
        str(job["status"]),
        str(job["name"]),
        text_of(job, "nodelist"),
        reason,
        needs_action=held,
        crashed=failed and not taken,
        taken=taken,
        starts_at=starts_at,
    )


def parse_jobs(text: str) -> Listing:
    """Return the rows in the output of `flux jobs --json`, and whether all of them can be read."""
    try:
        jobs = json_object(text, "jobs")["jobs"]
    except ValueError:
        return Listing((), f"flux jobs printed no list of jobs, but {quoted(text)}")
    rows = []
    problem = ""
    for job in jobs if isinstance(jobs, list) else [None]:
        try:
            row = row_of(job if isinstance(job, dict) else {})
        except ValueError as error:
            text = quoted(json.dumps(job, default=str))
            problem = f"flux jobs printed a job that cannot be read ({error}): {text}"
        else:
            rows.append(row)
    return Listing(tuple(rows), problem)


def words_of(script: str) -> list[str]:
    """Return the options of `flux submit` in the script's lines that begin with `#flux: `."""
    lines = [line for line in script.splitlines() if line.startswith(PREFIX)]
    return [word for line in lines for word in shlex.split(line.removeprefix(PREFIX))]


class Flux(CommandAdapter):
    """The Flux instance of this machine's commands, as an `Adapter`."""

    system: ClassVar[BatchSystem] = FLUX
    submits = SubmitCommand(("flux", "submit"), _ID, REFUSED)
    cancels = ("flux", "cancel")
    begins = re.compile(r"flux-\w+: (?:ERROR: )?")
    harmless = IS_OVER

    @staticmethod
    def directives(kind: WorkerKind, job_name: str, output: Path, folder: Path) -> list[str]:
        """The lines are options of `flux submit`."""
        options = {
            "job-name": job_name,
            "output": f"{output}/{{{{id.f58plain}}}}.out",
            "cwd": str(folder),
            "queue": kind.queue,
            "bank": kind.account,
            "time-limit": "" if kind.time_limit_s is None else f"{kind.time_limit_s:.0f}s",
            "nodes": str(kind.nodes),
            "ntasks": str(kind.tasks),
            "cores-per-task": str(kind.cpus_per_task),
            "gpus-per-task": _gpus_per_task(kind),
        }
        lines = [f"--{name}={shlex.quote(value)}" for name, value in options.items() if value]
        return [f"{PREFIX}{line}" for line in [*lines, *kind.options]]

    @staticmethod
    def preamble(kind: WorkerKind) -> list[str]:
        """Flux starts no job twice. The shell must outlive the workers' SIGTERM.

        The bytes are those of ƒ in UTF-8.
        """
        return [
            "case $FLUX_JOB_ID in",
            r"f*) export FARM_JOB=$FLUX_JOB_ID ;;",
            r"*) export FARM_JOB=f${FLUX_JOB_ID#$'\xc6\x92'} ;;",
            "esac",
            "trap : TERM",
        ]

    async def submit(self, script: str) -> str:
        try:
            words = [*self.submits.command, *words_of(script)]
        except ValueError as error:  # of shlex
            raise SubmissionRefused(f"the options cannot be read: {error}") from None
        return f"f{await self._submit(*words, '--', 'bash', '-c', script, 'farm')}"

    async def jobs(self) -> Listing:
        return await self._jobs(SINCE)

    async def _jobs(self, *which: str) -> Listing:
        user = str(os.getuid())
        return parse_jobs(
            await self._run("flux", "jobs", "--json", "-c", "0", "-u", user, "-a", *which)
        )

    async def job(self, job_id: str) -> JobRow | None:
        try:
            text = await self._run("flux", "jobs", "--json", job_id)
        except CommandFailed as error:
            if UNKNOWN_ID.search(str(error)):
                return None
            raise
        try:
            found = json_object(text, "jobid")
            row = row_of(found)
        except ValueError as error:
            problem = f"flux jobs did not describe job {job_id} ({error}), but printed"
            raise BatchError(f"{problem} {quoted(text)}") from None
        if row.id != job_id:
            raise BatchError(f"flux jobs described job {row.id}, expected {job_id}")
        return row if found["userid"] == os.getuid() else None

    async def drain(self, jobs: Sequence[str]) -> None:
        """The command takes one job at a time."""
        for job_id in jobs:
            await self._each("flux", "job", "kill", "--signal=TERM", jobs=[job_id])

    async def cancel_named(self, name: str) -> None:
        listing = await self._jobs(f"--name={name}")
        if listing.problem:
            raise BatchError(listing.problem)
        live = [row.id for row in listing.rows if row.stand is not Stand.ENDED and row.name == name]
        await self.cancel(live)


def _gpus_per_task(kind: WorkerKind) -> str:
    """Return the GPUs of each task. Raises SettingsError if they cannot be divided among them."""
    gpus, tasks = kind.gpus * kind.nodes, kind.tasks
    if gpus % tasks:
        raise SettingsError(
            f"gpus is {kind.gpus}: expected a number that {tasks} ranks on {kind.nodes} nodes can "
            "share evenly, as Flux gives each rank its own"
        )
    return str(gpus // tasks) if gpus else ""
