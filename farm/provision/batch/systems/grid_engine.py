"""Grid Engine: its commands as coroutines, and its words in a job's script. Contains no policy.

A job vanishes from qstat when it ends, and is in the accounts some seconds later. Sources: the
manual pages of Grid Engine 8.1.9, and what it did.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from farm.provision.batch.allocation import clock_of
from farm.provision.batch.commands import IDS_AT_ONCE, CommandAdapter, Commands, SubmitCommand
from farm.provision.batch.kinds import WorkerKind
from farm.provision.batch.system import BatchError, JobRow, Listing, Stand
from farm.provision.batch.systems import GRID_ENGINE, BatchSystem
from farm.provision.batch.systems.grid_engine_output import (
    ID,
    SUBMITTED,
    UnknownJob,
    parse_accounted,
    parse_described,
    parse_jobs,
    parse_reasons,
)
from farm.settings import SettingsError

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
"""Messages of qdel about jobs that it deletes, and about those that have ended. It fails if any of
the jobs is gone; a line of another kind is a fault."""


class GridEngine(CommandAdapter):
    """The Grid Engine cluster of this machine's commands, as an `Adapter`.

    It cannot drain: Grid Engine has no such command.
    """

    system: ClassVar[BatchSystem] = GRID_ENGINE
    everywhere = shlex.join(["bash", str(EACH_HOST)])  # by `qrsh -inherit`, in the job's slots
    submits = SubmitCommand(("qsub", "-terse"), ID, _REFUSED, _IN_DOUBT)
    cancels = ("qdel",)
    begins = _DELETED

    def __init__(
        self, commands: Commands | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Raises Unavailable if commands are not given and missing on this machine."""
        super().__init__(commands)
        self._clock = clock
        self._cancelled: set[str] = set()
        self._ended_at: dict[str, float] = {}

    @staticmethod
    def directives(kind: WorkerKind, job_name: str, output: Path, folder: Path) -> list[str]:
        """Raises SettingsError if `options` lack a name that each site chooses.

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
        """RESTARTED only says that there was an earlier start, so the time counts.

        The shell survives the warnings that also reach the workers, and waits for them.
        """
        return [
            "export FARM_JOB=$JOB_ID FARM_JOB_RESTART=$RESTARTED.$(date +%s)",
            "trap : USR1 USR2 TERM",
        ]

    async def submit(self, script: str) -> str:
        """With a warning qsub fails, prints no id, and the job exists."""
        try:
            return await super().submit(script)
        except BatchError as error:
            if found := SUBMITTED.search(str(error)):
                return found[1]
            raise

    async def jobs(self) -> Listing:
        """The list has no reasons: a second command asks for them."""
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
        """An ended job is unknown until its account is there, or will not come."""
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

    async def cancel(self, jobs: Sequence[str]) -> None:
        self._cancelled.update(jobs)
        await super().cancel(jobs)

    async def cancel_named(self, name: str) -> None:
        await self._each("qdel", "-u", self._user, jobs=[name])


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
