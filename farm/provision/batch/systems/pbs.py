"""PBS Pro and OpenPBS: their commands as coroutines, and their words in a job's script.

qstat's format `dsv` has one line for each job, so a job of the same user with strange variables
damages at most its own line. Its JSON is invalid as soon as any job has such variables
(openpbs issues 1255, 2049, 2603), and some builds leave out jobs (issue 2672).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from farm.provision.batch.allocation import clock_of
from farm.provision.batch.commands import (
    CommandAdapter,
    CommandFailed,
    Commands,
    SubmitCommand,
    parts,
    quoted,
)
from farm.provision.batch.kinds import WorkerKind
from farm.provision.batch.system import BatchError, JobRow, Listing, Stand
from farm.provision.batch.systems import PBS, BatchSystem

STATES = {
    "B": (Stand.RUNNING, "begun"),
    "E": (Stand.COMPLETING, "exiting"),
    "F": (Stand.ENDED, "finished"),
    "H": (Stand.PENDING, "held"),
    "M": (Stand.PENDING, "moved to another server"),
    "Q": (Stand.PENDING, "queued"),
    "R": (Stand.RUNNING, "running"),
    "S": (Stand.RUNNING, "suspended"),
    "T": (Stand.PENDING, "in transit"),
    "U": (Stand.RUNNING, "suspended by its workstation's user"),
    "W": (Stand.PENDING, "waiting for its time"),
    "X": (Stand.ENDED, "expired"),
}
"""The letters of job_state, and what they mean in qstat(1B)."""

TERMINATED = "91"
DEPENDS = "22"
"""The substates of a finished job that was deleted, and of one that is held until others have
ended; source: JOB_SUBSTATE_TERMINATED and JOB_SUBSTATE_DEPNHOLD in job.h."""

TIME_IS_UP = -29
LOST_NODES = frozenset({-4, -5, -6, -11, -14, -20})
"""Values of Exit_status: the walltime is over; MOM or its connection was lost. Other negative ones
mean that the job could not be started or was killed for its resources. Source: JOB_EXEC_… in job.h.
"""

SIGNALLED = 256
"""Added to the number of the signal that ended the job's shell; source: the User's Guide."""

FOR_PEOPLE = re.compile(r"Can Never Run|not started|disabled|\bheld\b", re.IGNORECASE)
"""Comments of the scheduler about jobs that wait for more than free nodes."""

IS_OVER = re.compile("Unknown Job Id|Job has finished")
"""Messages of the commands; the source is PBS itself (pbs_err_txt in liberr)."""

EVERYWHERE = (
    r"""pbsdsh -- /bin/bash -c "$(export -p); cd $(printf %q "$PWD"); """
    r"""exec >> $(printf %q "$FARM_OUTPUT") 2>&1; exec \"\$@\"" farm"""
)
"""Words that run the command after them once on each node, with the variables of this shell:
pbsdsh passes none on, starts in the home directory, and prints to PBS's own output file."""

_ID = re.compile(r"(\d+(?:\[\d*\])?\.[\w.-]+)", re.ASCII)
_SIZE = re.compile(r"(\d+)([KMGT]?)B?", re.IGNORECASE)


def parse_jobs(text: str) -> tuple[dict[str, dict[str, str]], str]:
    """Return the jobs' attributes by job id in the output of `qstat -f -F dsv -D '|'`.

    The text is a line that is damaged; empty if there is none.
    """
    jobs: dict[str, dict[str, str]] = {}
    damaged = ""
    *lines, rest = text.split("\n")
    for line in lines:
        head, *fields = re.split(r"(?<!\\)\|", line)
        job_id = head.removeprefix("Job Id: ")
        found = {name: value for name, _, value in (field.partition("=") for field in fields)}
        needed = {"Job_Name", "Job_Owner", "job_state"} <= set(found)
        if job_id == head:
            continue  # a banner
        if needed and "\0" not in line and found["job_state"] in STATES and _ID.fullmatch(job_id):
            jobs[job_id] = found
        else:
            damaged = line
    return jobs, damaged or rest


def row_of(job_id: str, job: Mapping[str, str]) -> JobRow:
    """Return the row of a job from its attributes."""
    stand, state = STATES[job["job_state"]]
    comment = re.sub(r"\\(.)", r"\1", job.get("comment", ""))
    reasons = []
    code = int(job["Exit_status"]) if re.fullmatch(r"-?\d+", job.get("Exit_status", "")) else 0
    if stand is Stand.ENDED and code:
        signal = code - SIGNALLED
        reasons.append(f"killed by signal {signal}" if signal > 0 else f"exit status {code}")
    deleted = job.get("substate") == TERMINATED
    is_waiting = stand is Stand.PENDING
    held = job["job_state"] == "H" and job.get("substate") != DEPENDS
    if comment and stand is not Stand.RUNNING:
        reasons.append(comment)
    ended = stand is Stand.ENDED
    return JobRow(
        job_id,
        stand,
        state,
        job["Job_Name"],
        job.get("exec_host", ""),
        "; ".join(reasons),
        needs_action=held or (is_waiting and bool(FOR_PEOPLE.search(comment))),
        crashed=ended and not deleted and code not in {0, TIME_IS_UP, *LOST_NODES},
        taken=ended and code in LOST_NODES,
    )


class Pbs(CommandAdapter):
    """The PBS server of this machine's commands, as an `Adapter`.

    It cannot drain: a signal of qsig reaches the job's login shell, too, and with that shell the
    job ends.
    """

    system: ClassVar[BatchSystem] = PBS
    everywhere = EVERYWHERE
    submits = SubmitCommand(("qsub", "-f"), _ID, re.compile("qsub: "))  # no process stays behind
    cancels = ("qdel",)
    begins = re.compile(r"\bq[a-z]+: ")
    harmless = IS_OVER

    def __init__(self, commands: Commands | None = None) -> None:
        """Raises Unavailable if commands are not given and missing on this machine."""
        super().__init__(commands)
        self._keeps_history = True

    @staticmethod
    def directives(kind: WorkerKind, job_name: str, output: Path, folder: Path) -> list[str]:
        """PBS itself delivers output only after the end, and under other names.

        A resource that `options` name is left to them, because qsub takes the first of two.
        """
        options = {
            "-N": job_name,
            "-S": "/bin/bash",
            "-j": "oe",
            "-o": "/dev/null",
            "-r": "y",
            "-q": kind.queue,
            "-A": kind.account,
        }
        resources = {
            "select": _chunks(kind),
            "place": "scatter" if kind.nodes > 1 else "",  # chunks may share a node otherwise
            "walltime": "" if kind.time_limit_s is None else clock_of(kind.time_limit_s),
        }
        lines = [f"{name} {value}" for name, value in options.items() if value]
        own = re.findall(r"\b(select|place|walltime)=", " ".join(kind.options))
        lines += [f"-l {k}={value}" for k, value in resources.items() if value and k not in own]
        return [
            *(f"#PBS {line}" for line in [*lines, *kind.options]),
            f'FARM_OUTPUT={shlex.quote(str(output))}/"$PBS_JOBID.out"',
            'exec >> "$FARM_OUTPUT" 2>&1',
            f"cd {shlex.quote(str(folder))}",
        ]

    async def jobs(self) -> Listing:
        """Only this user's jobs: a list of all may have many thousands."""
        ids = await self._select()
        if not ids:
            return Listing((), await self._no_jobs())
        jobs: dict[str, dict[str, str]] = {}
        problem = ""
        gone: set[str] = set()
        for part in parts(ids):
            try:
                text = await self._show(part)
            except CommandFailed as error:
                for complaint in self._complaints(error):
                    gone.update(_ID.findall(complaint))  # they ended meanwhile
                text = error.output
            found, damaged = parse_jobs(text)
            jobs |= found
            if damaged:
                problem = f"qstat printed a damaged line: {quoted(damaged)}"
        missing = [job_id for job_id in ids if job_id not in jobs and job_id not in gone]
        if missing and not problem:
            problem = f"qstat did not describe job {missing[0]}, which qselect lists"
        rows = (row_of(job_id, job) for job_id, job in jobs.items() if self._owns(job))
        return Listing(tuple(rows), problem)

    async def job(self, job_id: str) -> JobRow | None:
        """PBS knows ended jobs only where the site has it keep their history."""
        try:
            text = await self._show([job_id])
        except CommandFailed as error:
            if IS_OVER.search(str(error)):
                return None
            raise
        jobs, _ = parse_jobs(text)
        if job_id not in jobs:
            raise BatchError(f"qstat did not describe job {job_id}, but printed {quoted(text)}")
        return row_of(job_id, jobs[job_id]) if self._owns(jobs[job_id]) else None

    async def cancel_named(self, name: str) -> None:
        await self.cancel(await self._select("-N", name))

    async def _select(self, *criteria: str) -> list[str]:
        """Return the ids of this user's jobs that wait or run."""
        text = await self._run("qselect", "-u", self._user, *criteria)
        lines = [line.strip() for line in text.splitlines()]
        wrong = [line for line in lines if line[:1].isdigit() and not _ID.fullmatch(line)]
        if wrong or (text and not text.endswith("\n")):
            raise BatchError(f"qselect printed a damaged line: {quoted([*wrong, *lines[-1:]][0])}")
        return [line for line in lines if _ID.fullmatch(line)]

    async def _no_jobs(self) -> str:
        """Return why an empty answer of qselect may be wrong; empty if the server is there."""
        text = await self._run("qstat", "-B", "-f", "-F", "dsv", "-D", "|")
        there = re.search(r"^Server: .*\bserver_state=", text, re.MULTILINE)
        return "" if there else f"qselect printed nothing, and qstat -B only {quoted(text)}"

    async def _show(self, jobs: Sequence[str]) -> str:
        """Return qstat's description of jobs, with ended ones if it keeps them."""
        show = ["qstat", "-f", "-F", "dsv", "-D", "|"]
        if self._keeps_history:
            text = await self._run(*show, "-x", *jobs)
            if "Job Id: " in text:
                return text
            # Where PBS keeps no history, qstat -x complains and shows no job, but does not fail.
            text = await self._run(*show, *jobs)
            self._keeps_history = "Job Id: " not in text
            return text
        return await self._run(*show, *jobs)

    def _owns(self, job: Mapping[str, str]) -> bool:
        return job["Job_Owner"].partition("@")[0] == self._user


def _chunks(kind: WorkerKind) -> str:
    """Return the chunks to ask for: one for each node."""
    processes = kind.processes_per_node
    ranks = processes if kind.ranks else 1
    chunk = f"{kind.nodes}:ncpus={processes * kind.cpus}:mpiprocs={ranks}"
    if kind.gpus:
        chunk += f":ngpus={kind.gpus}"
    if kind.mem:
        chunk += f":mem={_size(kind.mem)}"
    return chunk


def _size(text: str) -> str:
    """Return a size such as `8G`, or `500` in MiB, in PBS's form; other texts as they are."""
    match = _SIZE.fullmatch(text)
    return f"{match[1]}{(match[2] or 'm').lower()}b" if match else text
