"""The interface of the adapter of a batch system, such as `systems.slurm`.

It runs the system's commands, parses their output, and writes its words in job scripts. `jobs` and
`absence` decide what its answers mean for a job, alike for all systems.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from farm.provision.batch.kinds import WorkerKind
    from farm.provision.batch.systems import BatchSystem


class Stand(Enum):
    """Where the batch system has a job: in its queue, on nodes, leaving its nodes, or ended."""

    PENDING = auto()
    RUNNING = auto()
    COMPLETING = auto()
    ENDED = auto()


class BatchError(Exception):
    """A command failed, or its output cannot be read: this says nothing about any job.

    The message is the batch system's own where it has one.
    """


class SubmissionRefused(BatchError):
    """The batch system did not take a job, and no job exists."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job as the batch system reports it.

    state, reason: in the system's words; reason: why the job waits, or how it ended. needs_action:
    it waits for something that people have to do. crashed: it ended because its program failed or
    its nodes did not start. taken: it ended because it lost its nodes. starts_at: when the system
    expects a pending job to start, by time.time(); None if it does not say.
    """

    id: str
    stand: Stand
    state: str
    name: str
    nodes: str = ""
    reason: str = ""
    needs_action: bool = False
    crashed: bool = False
    taken: bool = False
    starts_at: float | None = None

    @property
    def in_words(self) -> str:
        """Its state, and the reason if there is one."""
        return f"{self.state} ({self.reason})" if self.reason else self.state


@dataclass(frozen=True, slots=True)
class Listing:
    """The jobs that one command lists. problem: why the list may lack jobs; empty if it is whole.

    The rows of a list with a problem are still true.
    """

    rows: tuple[JobRow, ...]
    problem: str = ""


class Adapter(ABC):
    """Runs the commands of a batch system. Each call raises BatchError if there is no answer.

    Created without arguments, which raises Unavailable if its commands are missing on this machine.
    No call blocks the event loop, and each ends after a time limit.
    """

    system: ClassVar[BatchSystem]
    everywhere: ClassVar[str] = ""
    """Shell words that run the command after them once on each node of a job."""

    @staticmethod
    @abstractmethod
    def directives(kind: WorkerKind, job_name: str, output: Path, folder: Path) -> list[str]:
        """Return the lines of a job's script that tell the system what the job needs.

        output: the folder for the job's output, in a file `JOB ID.out`; folder: its working
        directory. Both are absolute.
        """

    @classmethod
    def preamble(cls, kind: WorkerKind) -> list[str]:
        """Return shell lines before all others.

        They set FARM_JOB to the job's id as `submit` returns it, and FARM_JOB_RESTART to a number
        or text that differs when the system starts the job again, if the system does that. These
        are for a system that then keeps the id.
        """
        return [f"export FARM_JOB=${cls.system.job.id}", "export FARM_JOB_RESTART=$(date +%s)"]

    @classmethod
    def launch(cls, kind: WorkerKind) -> str:
        """Return shell words that run the command after them on each node of the job, or once.

        Once for MPI ranks that `farm worker` starts itself, from the first node.
        """
        return cls.everywhere if kind.spreads else ""

    @abstractmethod
    async def submit(self, script: str) -> str:
        """Submit a job; return its id.

        Raises SubmissionRefused if no job exists. After any other BatchError there may be one,
        which can be found by its name.
        """

    @abstractmethod
    async def jobs(self) -> Listing:
        """Return all jobs of this user, with those that ended a short time ago if possible."""

    @abstractmethod
    async def job(self, job_id: str) -> JobRow | None:
        """Return one job, asked for by its id; None if the system says that it knows no such job.

        This asks the controller, and the accounts of ended jobs if there are any.
        """

    async def drain(self, jobs: Sequence[str]) -> None:  # noqa: B027  # many systems cannot
        """Send SIGTERM to the workers of running jobs, on all nodes; nothing if that is impossible.

        It is impossible where the signal would end the job's script. The farm asks the workers
        itself, too.
        """

    @abstractmethod
    async def cancel(self, jobs: Sequence[str]) -> None:
        """Cancel pending and running jobs; ignore those that have ended already."""

    @abstractmethod
    async def cancel_named(self, name: str) -> None:
        """Cancel all jobs of this user with this name, if there are any."""
