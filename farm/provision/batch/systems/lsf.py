"""LSF: its commands as coroutines, and its words in a job's script.

Sources: the command reference of IBM Spectrum LSF 10.1, and recorded answers in the tests of other
projects, which tests/provision/batch/systems/test_lsf.py names.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
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
from farm.provision.batch.system import BatchError, JobRow, Listing, Stand
from farm.provision.batch.systems import LSF, BatchSystem

STANDS = {
    "PEND": Stand.PENDING,
    "PROV": Stand.PENDING,
    "PSUSP": Stand.PENDING,
    "WAIT": Stand.PENDING,
    "FWD_PEND": Stand.PENDING,
    "RUN": Stand.RUNNING,
    "SSUSP": Stand.RUNNING,
    "USUSP": Stand.RUNNING,
    "UNKWN": Stand.RUNNING,
    "ZOMBI": Stand.COMPLETING,
    "DONE": Stand.ENDED,
    "EXIT": Stand.ENDED,
    "PDONE": Stand.ENDED,
    "PERR": Stand.ENDED,
}
"""The states of a job; source: "LSF terms and concepts", and bjobs(1), JOB STATUS."""

NO_FAULT = re.compile(r"TERM_(OWNER|ADMIN|FORCE_OWNER|FORCE_ADMIN|RUNLIMIT|DEADLINE|WINDOW)\b")
TAKEN = re.compile(r"TERM_(PREEMPT|LOAD|REQUEUE\w*|ZOMBIE|REMOVE_HUNG_JOB|RMS|SLURM)\b")
"""Reasons why LSF ended a job; source: "Termination reasons displayed by bacct, bhist, and bjobs".
"""

FOR_PEOPLE = re.compile(r"administrator|inactiv|suspended|not specify|dependency", re.IGNORECASE)
"""Reasons for waiting that are not about free hosts."""

NONE_FOUND = re.compile(r"No (?:unfinished )?job found")
NOT_FOUND = re.compile(r"is not found|No matching job found|No (?:unfinished )?job found")
IS_OVER = re.compile(rf"{NOT_FOUND.pattern}|already finished|not started|is being terminated")
"""Messages of bjobs and bkill."""

NOT_SUBMITTED = re.compile(
    r"Job not submitted|illegal option|Bad argument|Usage: bsub", re.IGNORECASE
)
"""Messages of bsub after which no job exists, unless the answer of LSF was lost."""

COLUMNS = "jobid stat job_name user exec_host pend_reason exit_reason exit_code"

EVERYWHERE = """blaunch -z "$(sort -u "$LSB_DJOB_HOSTFILE" | tr '\\n' ' ')\""""
"""Words that run the command after them once on each host of the job, with this environment."""

_SUBMITTED = re.compile(r"Job <([1-9]\d*)> is submitted to .*", re.ASCII)
_ID = re.compile(r"[1-9]\d*(\[\d+\])?", re.ASCII)


def row_of(record: Mapping[str, Any]) -> JobRow:
    """Return the row of a job in the JSON of bjobs. Raises ValueError if it cannot be read."""
    job_id, state, name = (text_of(record, key) for key in ("JOBID", "STAT", "JOB_NAME"))
    if not _ID.fullmatch(job_id) or state not in STANDS or "JOB_NAME" not in record:
        raise ValueError(f"job {job_id!r} in state {state!r}")
    stand = STANDS[state]
    reason = ""
    if stand is Stand.PENDING:
        reason = text_of(record, "PEND_REASON").rstrip(";")
    elif stand is Stand.ENDED:
        code = text_of(record, "EXIT_CODE")
        reason = text_of(record, "EXIT_REASON") or (f"exit code {code}" if code else "")
    elif state == "UNKWN":
        reason = "LSF has lost contact with its host"
    taken = state == "EXIT" and bool(TAKEN.search(reason))
    waits_for_people = state == "PSUSP" or bool(FOR_PEOPLE.search(reason))
    return JobRow(
        job_id,
        stand,
        state,
        name,
        text_of(record, "EXEC_HOST"),
        reason,
        needs_action=stand is Stand.PENDING and waits_for_people,
        crashed=state == "EXIT" and not taken and not NO_FAULT.search(reason),
        taken=taken,
    )


def parse_jobs(text: str, user: str) -> Listing:
    """Return the rows in the output of `bjobs -json`, and whether it is whole."""
    try:
        answer = json_object(text, "RECORDS")
    except ValueError:
        if NONE_FOUND.search(text):
            return Listing(())
        return Listing((), f"bjobs printed no list of jobs, but {quoted(text)}")
    records = answer["RECORDS"] if isinstance(answer["RECORDS"], list) else []
    rows = []
    problem = ""
    if text_of(answer, "JOBS") != str(len(records)):
        count = quoted(text_of(answer, "JOBS"))
        problem = f"bjobs printed {len(records)} records, and that there are {count}"
    for record in records:
        try:
            row = row_of(record if isinstance(record, dict) else {})
        except ValueError as error:
            problem = f"bjobs printed a record that cannot be read: {error}"
        else:
            if text_of(record, "USER") == user:
                rows.append(row)
    return Listing(tuple(rows), problem)


def parse_job(job_id: str, text: str, user: str) -> JobRow | None:
    """Return one job in the output of `bjobs -json ID`; None if it says that there is none.

    Raises BatchError if it says neither.
    """
    not_found = f"Job <{job_id}> is not found"
    try:
        (record,) = json_object(text, "RECORDS")["RECORDS"]
        if not_found in text_of(record, "ERROR"):
            return None
        row = row_of(record)
    except (ValueError, TypeError, AttributeError):
        if not_found in text and "{" not in text:
            return None
        row = None
    if row is None or row.id != job_id:
        raise BatchError(f"bjobs did not describe job {job_id}, but printed {quoted(text)}")
    return row if text_of(record, "USER") == user else None


class Lsf(CommandAdapter):
    """The LSF cluster of this machine's commands, as an `Adapter`.

    It cannot drain: bkill signals the shell of the script, too.
    """

    system: ClassVar[BatchSystem] = LSF
    everywhere = EVERYWHERE
    submits = SubmitCommand(("bsub",), _SUBMITTED, NOT_SUBMITTED)
    cancels = ("bkill",)
    begins = re.compile(r"(?=Job <)")
    harmless = IS_OVER

    @staticmethod
    def directives(kind: WorkerKind, job_name: str, output: Path, folder: Path) -> list[str]:
        """LSF itself delivers output only after the end, with a report in it."""
        per_node = kind.cpus * kind.processes_per_node
        options = {
            "-J": job_name,
            "-o": "/dev/null",
            "-cwd": str(folder),
            "-q": kind.queue,
            "-P": kind.account,
            "-n": str(per_node * kind.nodes),
            "-R": f"span[ptile={per_node}]",
            "-gpu": f"num={kind.gpus}" if kind.gpus else "",
            "-W": "" if kind.time_limit_s is None else _minutes(kind.time_limit_s),
        }
        lines = [f"{name} {shlex.quote(value)}" for name, value in options.items() if value]
        return [
            *(f"#BSUB {line}" for line in [*lines, "-r", *kind.options]),
            f'exec >> {shlex.quote(str(output))}/"$LSB_JOBID.out" 2>&1',
        ]

    async def jobs(self) -> Listing:
        """Ended jobs are in it for an hour, or what a site has set."""
        return parse_jobs(await self._bjobs("-u", self._user), self._user)

    async def job(self, job_id: str) -> JobRow | None:
        return parse_job(job_id, await self._bjobs(job_id), self._user)

    async def _bjobs(self, *which: str) -> str:
        """Return all that bjobs prints: where it finds no job, its message is on stderr."""
        try:
            command = ["bjobs", "-a", "-json", "-o", COLUMNS, *which]
            return await self._run(*command, with_errors=True)
        except CommandFailed as error:
            if NOT_FOUND.search(error.output):
                return error.output
            raise

    async def cancel_named(self, name: str) -> None:
        """Job 0 means all that fit."""
        await self._each("bkill", "-u", self._user, "-J", name, jobs=["0"])


def _minutes(seconds: float) -> str:
    """Return a time limit in LSF's form, hours:minutes, rounded up."""
    minutes = -(-int(seconds) // 60)
    return f"{minutes // 60}:{minutes % 60:02}"
