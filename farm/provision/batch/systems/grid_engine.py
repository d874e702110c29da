"""Grid Engine: its commands as coroutines, and its words in a job's script. Contains no policy.

A job vanishes from qstat when it ends, and is in the accounts some seconds later. Sources: the
manual pages of Grid Engine 8.1.9, and what it did.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from farm.machine.private import user_name
from farm.provision.batch.allocation import clock_of
from farm.provision.batch.commands import IDS_AT_ONCE, Commands, parts, submitting
from farm.provision.batch.kinds import WorkerKind
from farm.provision.batch.system import BatchError, JobRow, Listing, OwnWords, Stand
from farm.provision.batch.systems.answers import quoted
from farm.provision.batch.systems.grid_engine_output import (
    SUBMITTED,
    UnknownJob,
    parse_accounted,
    parse_described,
    parse_id,
    parse_jobs,
    parse_reasons,
)
from farm.settings import SettingsError

COMMANDS = ("qsub", "qstat", "qdel")

EACH_HOST = Path(__file__).with_name("grid_engine_hosts.sh")

ACCOUNTS_LAG_S = 20.0
"""Time that the account of an ended job may take; flush_time of sge_conf(5) is 15 s by default."""

_REFUSED = re.compile(r"Unable to run job: |Unable to read script|Unable to initialize|qsub: ")
_IN_DOUBT = re.compile(r"qmaster|commlib|\bgdi\b|timed? ?out|communication", re.IGNORECASE)
"""Messages of qsub after which sge_qmaster may have the job, as the answer may have been lost."""

_DELETED = re.compile(
    r"\S+ has registered the (?:job|job-array task) \S+ for deletion|\S+ has deleted job \S+"
    r"|job \S+ is already in deletion|denied: job \S+ does not exist"
    r"|The job \S+ of user\(s\) \S+ does not exist",
)
"""Messages of qdel about jobs that it deletes, and about those that have ended."""


def clean(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables of a job, in which the server may run itself.

    The variables that say where the cluster is stay.
    """
    kept = {"ARCH", "CELL", "CLUSTER_NAME", "EXECD_PORT", "QMASTER_PORT", "ROOT"}
    of_job = {"ARC", "ENVIRONMENT", "NHOSTS", "NQUEUES", "NSLOTS", "PE", "PE_HOSTFILE", "QUEUE"}
    of_job |= {"JOB_ID", "JOB_NAME", "JOB_SCRIPT", "REQNAME", "REQUEST", "RESTARTED"}
    return {
        name: value
        for name, value in environment.items()
        if name not in of_job
        and not name.startswith("FARM_")
        and (not name.startswith("SGE_") or name.removeprefix("SGE_") in kept)
    }


class GridEngine:
    """The Grid Engine cluster of this machine's commands, as a `BatchSystem`."""

    title: ClassVar[str] = "Grid Engine"
    own_words: ClassVar[OwnWords] = OwnWords()
    own_jobs: ClassVar[str] = "qstat"
    lacks: ClassVar[frozenset[str]] = frozenset({"constraint", "mem", "qos", "srun"})
    starts_ranks: ClassVar[bool] = False
    warns: ClassVar[bool] = False

    def __init__(
        self, commands: Commands | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Raises Unavailable if commands are not given and missing on this machine."""
        if commands is None:
            hint = "; often $SGE_ROOT/default/common/settings.sh puts them there"
            commands = Commands.of(self.title, COMMANDS, clean, hint=hint)
        self._run = commands.run
        self._clock = clock
        self._user = user_name()
        self._cancelled: set[str] = set()
        self._ended_at: dict[str, float] = {}

    @staticmethod
    def directives(kind: WorkerKind, job_name: str, output: Path, folder: Path) -> list[str]:
        """See BatchSystem. Raises SettingsError if `options` lack a name that each site chooses.

        -notify: the job gets SIGUSR2 some time before SIGKILL. -r: it starts again after the loss
        of a node.
        """
        lines = ["-S /bin/bash", f"-N {job_name}", "-j y", "-r y", "-notify"]
        lines += [f"-o {_path(output / '$JOB_ID.out')}", f"-wd {_path(folder)}"]
        lines += [f"-q {kind.queue}"] * bool(kind.queue)
        lines += [f"-P {kind.account}"] * bool(kind.account)
        if kind.time_limit_s is not None:
            lines.append(f"-l h_rt={clock_of(kind.time_limit_s)}")
        lines += _slots(kind)
        if kind.gpus and not any("gpu" in option for option in kind.options):
            raise SettingsError(
                f"gpus is {kind.gpus}, and Grid Engine has no word for GPUs of its own: name that "
                'of your site, as options = ["-l gpu=1"]'
            )
        return [f"#$ {line}" for line in [*lines, *kind.options]]

    @staticmethod
    def preamble(kind: WorkerKind) -> list[str]:
        """See BatchSystem. RESTARTED only says that there was an earlier start, so the time counts.

        The shell survives the warnings that also reach the workers, and waits for them.
        """
        return [
            "export FARM_JOB=$JOB_ID FARM_JOB_RESTART=$RESTARTED.$(date +%s)",
            "trap : USR1 USR2 TERM",
        ]

    @staticmethod
    def launch(kind: WorkerKind) -> str:
        """See BatchSystem. On several nodes by `qrsh -inherit`, which runs in the job's slots."""
        return shlex.join(["bash", str(EACH_HOST)]) if kind.spreads else ""

    async def submit(self, script: str) -> str:
        """See BatchSystem. With a warning qsub fails, prints no id, and the job exists."""
        try:
            with submitting(_REFUSED, _IN_DOUBT):
                output = await self._run("qsub", "-terse", feed=script)
        except BatchError as error:
            if found := SUBMITTED.search(str(error)):
                return found[1]
            raise
        job_id = parse_id(output)
        if not job_id:
            raise BatchError(f"qsub printed no job id, but {quoted(output)}")
        return job_id

    async def jobs(self) -> Listing:
        """See BatchSystem. The list has no reasons: a second command asks for them."""
        listing = await self._list("prsz")
        waiting = [r.id for r in listing.rows if r.stand is Stand.PENDING and r.name[:5] == "farm-"]
        if not waiting:
            return listing
        reasons = {}
        with contextlib.suppress(BatchError):  # the list is of use without them
            text = await self._run("qstat", "-xml", "-j", ",".join(waiting[:IDS_AT_ONCE]))
            reasons = parse_reasons(text)
        rows = [
            replace(row, reason=reasons.get(row.id, row.reason)) if row.id in waiting else row
            for row in listing.rows
        ]
        return Listing(tuple(rows), listing.problem)

    async def job(self, job_id: str) -> JobRow | None:
        """See BatchSystem. An ended job is unknown until its account is there, or will not come."""
        try:
            text = await self._run("qstat", "-xml", "-j", job_id)
        except BatchError as error:
            if not re.search(rf"jobs do not exist.*\b{job_id}\b", str(error)):
                raise
        else:
            with contextlib.suppress(UnknownJob):
                return parse_described(job_id, text, self._user)
        with contextlib.suppress(BatchError):  # not every submit host sees the accounts
            accounts = await self._run("qacct", "-j", job_id)
            if (row := parse_accounted(job_id, accounts, self._user)) is not None:
                return row
        listing = await self._list("z")
        ended = [row for row in listing.rows if row.id == job_id and row.stand is Stand.ENDED]
        if not ended:
            return None
        now = self._clock()
        is_late = now - self._ended_at.setdefault(job_id, now) >= ACCOUNTS_LAG_S
        # A job that was deleted in the queue has no account.
        return ended[0] if is_late or job_id in self._cancelled else None

    async def _list(self, states: str) -> Listing:
        return parse_jobs(await self._run("qstat", "-xml", "-u", self._user, "-s", states))

    async def drain(self, jobs: Sequence[str]) -> None:
        """See BatchSystem. Impossible: Grid Engine has no such command."""

    async def cancel(self, jobs: Sequence[str]) -> None:
        """See BatchSystem."""
        self._cancelled.update(jobs)
        for part in parts(jobs):
            await self._delete(*part)

    async def cancel_named(self, name: str) -> None:
        """See BatchSystem."""
        await self._delete("-u", self._user, name)

    async def _delete(self, *arguments: str) -> None:
        """Run qdel, which fails if any of the jobs is gone."""
        try:
            await self._run("qdel", *arguments)
        except BatchError as error:
            if _DELETED.sub("", str(error)).strip():
                raise


def _path(path: Path) -> str:
    """Return a path as qsub reads it in a script. Raises SettingsError if it cannot be written."""
    if bad := set(str(path).replace("$JOB_ID", "")) & set("\"',:$\\"):
        raise SettingsError(
            f"the folder {path.parent} has {' '.join(sorted(bad))} in its name, which Grid Engine "
            "cannot take in a job script: run farm in another folder, or name one by --dir"
        )
    return f'"{path}"'


def _slots(kind: WorkerKind) -> list[str]:
    """Return the request of a parallel environment, unless `options` has one or one slot will do.

    Raises SettingsError for several nodes, as only a site knows how its environments place slots.
    """
    if any(re.match(r"-pe\s", option) for option in kind.options):
        return []
    if kind.nodes > 1:
        raise SettingsError(
            f"nodes is {kind.nodes}, and each site names its parallel environments itself: name "
            f'one that takes {kind.nodes} nodes, as options = ["-pe mpi {kind.nodes * 16}"]; '
            "qconf -spl lists them"
        )
    slots = kind.processes_per_node * kind.cpus
    return [f"-pe smp {slots}"] * (slots > 1)
