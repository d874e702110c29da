"""A kind of workers: the models they load, the resources of their jobs, and how many jobs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from farm.provision.batch.allocation import seconds_of
from farm.settings import SettingsError

LONGEST_WARNING_S = 60
"""Maximum time before a job's time limit at which it is asked to drain, unless `warn_s` is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerKind:
    """One kind of workers: the models they load, the resources of their jobs, and how many jobs.

    name: in job names and in `farm status`. models: as for `farm worker`.
    min_jobs, max_jobs: minimum and maximum number of jobs.
    workers: model processes on each node of a job, or with gpus on each of its GPUs; with ranks the
    MPI groups of the job.
    ranks: MPI ranks of one worker; 0: no MPI. cpus: of one model process or rank.
    nodes, gpus, mem: of one job, the last two per node; mem as `8G`.
    time: its limit, in the forms of `seconds_of`. warn_s: seconds before the limit at which it
    drains.
    queue (a partition of SLURM), account: where the jobs run, and who pays. qos, constraint, srun:
    only of SLURM, as for sbatch; the last: options of srun. options: more of the system's own
    options, one per directive line. mpi_launch: as for `farm worker`, not for SLURM.
    setup: shell lines before the workers start. template: the script, if not farm's own.
    call_limit_s: a model call that runs longer is killed.
    backlog_s: target time to finish all queued work; determines the number of jobs.
    grow_after_s: how long a need for more jobs must last before jobs are submitted.
    idle_timeout_s: how long a job may be idle before it is released.
    """

    name: str
    models: Sequence[str] = ()
    min_jobs: int = 0
    max_jobs: int = 10
    workers: int = 1
    ranks: int = 0
    cpus: int = 1
    nodes: int = 1
    gpus: int = 0
    mem: str = ""
    time: str = ""
    warn_s: int | None = None
    queue: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    options: Sequence[str] = ()
    srun: Sequence[str] = ()
    mpi_launch: str = ""
    setup: Sequence[str] = ()
    template: str = ""
    call_limit_s: float | None = None
    backlog_s: float = 60.0
    grow_after_s: float = 2.0
    idle_timeout_s: float = 300.0

    def __post_init__(self) -> None:
        def expect(name: str, right: bool, expected: str) -> None:
            if not right:
                value = getattr(self, name)
                raise SettingsError(f"{name} is {value!r}; expected {expected}")

        form = r"[A-Za-z0-9_.-]{1,40}"
        expect("name", bool(re.fullmatch(form, self.name)), "letters, digits and . _ -")
        expect("models", bool(self.models), "at least one model, here or on the command line")
        for name in ("workers", "cpus", "nodes", "max_jobs"):
            expect(name, getattr(self, name) >= 1, "1 or more")
        for name in ("ranks", "gpus", "grow_after_s"):
            expect(name, getattr(self, name) >= 0, "0 or more")
        expect("min_jobs", 0 <= self.min_jobs <= self.max_jobs, f"0 to max_jobs={self.max_jobs}")
        for name in ("backlog_s", "idle_timeout_s"):
            expect(name, getattr(self, name) > 0, "a number of seconds above 0")
        limit = self.call_limit_s
        expect("call_limit_s", limit is None or limit > 0, "a number of seconds above 0")
        limit_s = self.time_limit_s
        expect(
            "time",
            not self.time or (limit_s is not None and limit_s > 0),
            "minutes, hours:minutes:seconds or days-hours",
        )
        if self.warn_s is not None:
            right = self.warn_s > 0 and (limit_s is None or self.warn_s < limit_s)
            expect("warn_s", right, "a number of seconds above 0 and below `time`")

    @property
    def time_limit_s(self) -> float | None:
        """The time limit of a job in seconds; None if the partition's applies."""
        return seconds_of(self.time) if self.time else None

    @property
    def warning_s(self) -> int:
        """Seconds before its end at which a job is asked to drain: at most a sixth of its time."""
        if self.warn_s is not None:
            return self.warn_s
        limit_s = self.time_limit_s
        return LONGEST_WARNING_S if limit_s is None else int(min(LONGEST_WARNING_S, limit_s / 6))

    @property
    def workers_per_node(self) -> int:
        """Model processes on each node, without MPI ranks."""
        return self.workers * max(1, self.gpus)

    @property
    def processes_per_node(self) -> int:
        """MPI ranks, or model processes, on each node."""
        if self.ranks:
            return -(-self.workers * self.ranks // self.nodes)
        return self.workers_per_node

    @property
    def tasks(self) -> int:
        """Number of tasks of a job: the MPI ranks, or a supervisor of model processes per node."""
        return self.workers * self.ranks if self.ranks else self.nodes

    @property
    def cpus_per_task(self) -> int:
        """Number of CPUs of one of the `tasks`."""
        return self.cpus if self.ranks else self.cpus * self.workers_per_node

    @property
    def spreads(self) -> bool:
        """Whether `farm worker` starts on each node where farm itself starts the MPI ranks."""
        return self.nodes > 1 and not self.ranks

    @property
    def workers_per_job(self) -> int:
        """Number of workers that one job adds to the scheduler."""
        return self.workers if self.ranks else self.workers_per_node * self.nodes
