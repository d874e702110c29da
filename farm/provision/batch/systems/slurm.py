"""SLURM: its commands as coroutines, and its words in a job's script. Contains no policy.

While slurmctld is away the commands block for seconds and then fail, which says nothing about the
jobs. Only output that parses counts: sites wrap the commands in scripts that print banners, answer
from a cache or print nothing at all.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import ClassVar

from farm.provision.batch.commands import CommandAdapter, SubmitCommand, quoted
from farm.provision.batch.kinds import WorkerKind
from farm.provision.batch.system import BatchError, JobRow, Listing, Stand
from farm.provision.batch.systems import SLURM, BatchSystem

PENDING = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
CRASHED = frozenset({"BOOT_FAIL", "FAILED", "OUT_OF_MEMORY"})
TAKEN = frozenset({"NODE_FAIL", "PREEMPTED"})
ENDED = CRASHED | TAKEN | {"CANCELLED", "COMPLETED", "DEADLINE", "REVOKED", "TIMEOUT"}
"""Final states in squeue(1), JOB STATE CODES; all other jobs have nodes, or will get them."""

ORDINARY_REASONS = frozenset({"", "Priority", "Resources", "BeginTime"})
"""Reasons for waiting that need no action."""

FORMAT = "farm|%i|%T|%N|%j|%r|%S|end"
HEADER = "farm|JOBID|STATE|NODELIST|NAME|REASON|START_TIME|end"
"""The first line of squeue's answer with FORMAT, which it prints even if there are no jobs. The
words at both ends tell a row from a banner and from a part of a row."""

_ROW = re.compile(
    r"farm\|(?P<id>[0-9][\w+%,\[\]-]*)\|(?P<state>[A-Z_]+)\|(?P<nodes>[^|]*)"
    r"\|(?P<name>.*)\|(?P<reason>[^|]*)\|(?P<start>[^|]*)\|end",
    re.ASCII,
)
ID = re.compile(
    r"\s*(?:Submitted batch job )?([1-9]\d*)(?:;[\w.-]+| on cluster [\w.-]+)?\s*", re.ASCII
)
"""The line of sbatch's output with the job's id, among a site's banners."""

_SHOWN = re.compile(r"\b(\w+)=(\S*)")
_ACCOUNTED = re.compile(r"(?P<state>[A-Z_]+)(?: by \d+)?\|(?P<code>\d+:\d+)\|(?P<name>.*)")

UNKNOWN_ID = "Invalid job id specified"
"""SLURM's message for a job that slurmctld does not know; source: slurm_errno.c."""

_IN_DOUBT = re.compile(
    r"timed out|time ?out|receive failure|send failure|shutdown failure|zero bytes"
    r"|unexpected message|message length|lengths are longer|authentication|reset by peer"
    r"|broken pipe|standby|interrupted|temporarily unable",
    re.IGNORECASE,
)
"""Messages of sbatch after which slurmctld may have the job: the request was sent, and the answer
was lost. Source: slurm_errno.c."""


def parse_jobs(text: str) -> Listing:
    """Return the rows that squeue prints with FORMAT, and whether its answer is whole.

    It is whole if it begins with the header, apart from a site's banners, has no line that is a
    damaged row, and ends with a whole line.
    """
    rows = []
    has_header = False
    damaged = ""
    *lines, rest = text.split("\n")
    for line in lines:
        found = None if "\0" in line else _ROW.fullmatch(line)
        if line == HEADER:
            has_header = True
        elif found is not None:
            state, reason = found["state"], found["reason"]
            about = (found["name"], found["nodes"], reason, found["start"])
            rows.append(_row(found["id"], state, *about))
        elif "\0" in line or line.startswith("farm|") or line.endswith("|end"):
            damaged = line
    if not text.strip():
        problem = "squeue printed nothing, not even its header"
    elif not has_header:
        problem = f"squeue printed no header, but {quoted(text)}"
    elif damaged or rest:
        problem = f"squeue printed a damaged line: {quoted(damaged or rest)}"
    else:
        problem = ""
    return Listing(tuple(rows), problem)


def parse_shown(job_id: str, text: str) -> JobRow | None:
    """Return the job in the output of `scontrol -o show job`; None if another user has its id.

    Of several parts of a job one that lives is returned. Raises BatchError if the job is not there.
    """
    found: JobRow | None = None
    foreign = False
    for line in text.split("\n"):
        words: dict[str, str] = dict(reversed(_SHOWN.findall(line)))  # the first of a name counts
        ids = {words.get(f"{part}JobId") for part in ("", "Array", "Het")}
        state = words.get("JobState", "")
        if job_id not in ids or not re.fullmatch("[A-Z_]+", state) or "UserId" not in words:
            continue
        if not words["UserId"].endswith(f"({os.getuid()})"):
            foreign = True
            continue
        nodes = words.get("NodeList", "")
        nodes = "" if nodes == "(null)" else nodes
        about = (words.get("JobName", ""), nodes, words.get("Reason", ""))
        row = _row(job_id, state, *about, words.get("StartTime", ""))
        if found is None or found.stand is Stand.ENDED:
            found = row
    if found is None and not foreign:
        raise BatchError(f"scontrol did not describe job {job_id}, but printed {quoted(text)}")
    return found


def parse_accounted(job_id: str, text: str) -> JobRow | None:
    """Return the job in the output of sacct if it has ended; None otherwise.

    The accounts lag behind: a job that they report as running may have ended long ago.
    """
    row = None
    for line in text.split("\n"):
        number, _, rest = line.partition("|")
        match = _ACCOUNTED.fullmatch(rest)
        if number == job_id and match is not None:
            row = _row(job_id, match["state"], match["name"], "", f"exit code {match['code']}")
    return row if row is not None and row.stand is Stand.ENDED else None


def _row(job_id: str, state: str, name: str, nodes: str, reason: str, start: str = "") -> JobRow:
    reason = reason.strip("()")
    reason = "" if reason == "None" else reason
    stand = Stand.COMPLETING if state == "COMPLETING" else Stand.RUNNING
    if state in PENDING:
        stand = Stand.PENDING
    elif state in ENDED:
        stand = Stand.ENDED
    return JobRow(
        job_id,
        stand,
        state,
        name,
        nodes,
        reason,
        needs_action=stand is Stand.PENDING and reason not in ORDINARY_REASONS,
        crashed=state in CRASHED,
        taken=state in TAKEN,
        starts_at=_time(start) if stand is Stand.PENDING else None,
    )


def _time(text: str) -> float | None:
    """Return a time of SLURM's, in the zone of this machine; None for N/A, Unknown and the like."""
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", text, re.ASCII):
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


class Slurm(CommandAdapter):
    """The SLURM cluster of this machine's commands, as an `Adapter`."""

    system: ClassVar[BatchSystem] = SLURM
    submits = SubmitCommand(("sbatch", "--parsable"), ID, re.compile("sbatch: "), _IN_DOUBT)
    cancels = ("scancel", "--quiet")

    @staticmethod
    def directives(kind: WorkerKind, job_name: str, output: Path, folder: Path) -> list[str]:
        """The values are quoted for sbatch."""
        options = {
            "job-name": job_name,
            "output": f"{output}/%j.out",
            "open-mode": "append",
            "chdir": str(folder),
            "partition": kind.queue,
            "account": kind.account,
            "qos": kind.qos,
            "constraint": kind.constraint,
            "time": kind.time,
            "nodes": str(kind.nodes),
            "ntasks": str(kind.tasks),
            "ntasks-per-node": "" if kind.ranks else "1",
            "cpus-per-task": str(kind.cpus_per_task),
            "mem": kind.mem,
            "gres": f"gpu:{kind.gpus}" if kind.gpus else "",
            "signal": f"TERM@{kind.warning_s}",
        }
        lines = [f"--{name}={shlex.quote(value)}" for name, value in options.items() if value]
        return [f"#SBATCH {line}" for line in [*lines, "--requeue", *kind.options]]

    @staticmethod
    def preamble(kind: WorkerKind) -> list[str]:
        """SLURM's own variables identify the job.

        Where sbatch exports nothing, as with SBATCH_EXPORT=NONE, steps would get nothing either.
        """
        return ["export SLURM_EXPORT_ENV=ALL"]

    @staticmethod
    def launch(kind: WorkerKind) -> str:
        """By srun, as SLURM's warning goes to the processes that srun starts.

        From SLURM 22.05 on srun does not inherit --cpus-per-task from the job. Without
        --kill-on-bad-exit ranks would wait for ever for one that died.
        """
        words = ["srun", f"--cpus-per-task={kind.cpus_per_task}"]
        words += ["--kill-on-bad-exit=1"] * bool(kind.ranks)
        return shlex.join([*words, *kind.srun])

    async def jobs(self) -> Listing:
        user = str(os.getuid())
        return parse_jobs(await self._run("squeue", "-t", "all", "-u", user, "-o", FORMAT))

    async def job(self, job_id: str) -> JobRow | None:
        try:
            return parse_shown(job_id, await self._run("scontrol", "-o", "show", "job", job_id))
        except BatchError as error:
            if UNKNOWN_ID not in str(error):
                raise
        columns = "JobID,State,ExitCode,JobName"
        with contextlib.suppress(BatchError):  # many clusters have no accounting
            output = await self._run("sacct", "-n", "-P", "-X", "-j", job_id, "-o", columns)
            return parse_accounted(job_id, output)
        return None

    async def drain(self, jobs: Sequence[str]) -> None:
        """The signal goes to the steps, which have a process on each node."""
        await self._each("scancel", "--signal=TERM", jobs=jobs)

    async def cancel_named(self, name: str) -> None:
        """scancel asks slurmctld itself which jobs have the name."""
        await self._run("scancel", "--quiet", f"--user={os.getuid()}", f"--name={name}")
