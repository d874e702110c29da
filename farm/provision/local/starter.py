"""Starts a supervisor's model processes: forks them where that is safe.

A lone process starts as a fresh interpreter. From the second one on, they are forked from a parent
(`farm.machine.fork_parent`), with which each spares the time and the memory of importing numpy.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from farm.machine.fork_parent import CAN_FORK, ForkParent, ParentLost
from farm.machine.json_log import LOG_FORMAT
from farm.machine.private import private_opener
from farm.provision.batch.allocation import LOG, RESTARTS, SEATS, STARTED_BY, STEP_SIZES, SUPERVISOR
from farm.provision.local.child import MODULE, Child
from farm.provision.local.devices import cpus_here
from farm.provision.local.group import Group, Launch
from farm.provision.local.worker_log import first_line
from farm.worker.servers import SEAT

log = logging.getLogger(__name__)

FORK, NO = "FARM_FORK", ("0", "false", "f", "no", "n", "off")
"""An environment variable that turns forking off in all of farm's commands, and its values."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The configuration of a supervisor.

    models: as in `farm.worker.loader`; count: model processes, raised to at least one for each of
    several servers of one model, which are assigned in turn; connect: connection file;
    logs: folder for the models' output. launch: how to start each one as a group of MPI ranks.
    cpus: threads that numerical libraries use in each process; None: its share of the CPUs here.
    devices: CUDA devices, assigned in turn. time_limit_s: a process whose model call takes longer
    is killed. ends_at: Unix time at which the machine is taken away; inf: at no known time; None:
    each process finds out itself. lost_after_s: silence of the dispatcher after which a process
    ends itself; if its replacement hears nothing either, the supervisor ends too. frozen_after_s: a
    process that has been stopped this long, as by SIGSTOP, is killed and replaced. started_by: a
    label of the workers, by which a farm recognizes those of its own supervisor. fork: fork the
    processes from one that has loaded numpy, if there are several or one is replaced. log_format:
    of their logs; None: this process's. first_s, longest_s, good_while_s: see `restart_delay_s`.
    """

    models: Sequence[str]
    count: int
    connect: Path
    logs: Path
    launch: Launch | None = None
    cpus: int | None = None
    devices: Sequence[str] = ()
    time_limit_s: float | None = None
    ends_at: float | None = None
    lost_after_s: float = 60.0
    frozen_after_s: float = 5.0
    started_by: str = ""
    fork: bool = True
    log_format: str | None = None
    first_s: float = 0.25
    longest_s: float = 30.0
    good_while_s: float = 10.0

    def restart_delay_s(self, crashes: int, served_s: float | None) -> float:
        """Return the delay after `crashes` in a row; 0 after the first of a process that served.

        first_s, then twice that, and so on up to longest_s; but for a process that has served, not
        longer than it did: one call in a hundred that crashes must not idle the machine. A process
        that served for good_while_s resets the count. served_s: None if it crashed while it loaded.
        """
        doublings = crashes - (1 if served_s is None else 2)
        if doublings < 0:
            return 0.0
        delay_s = min(self.first_s * 2.0 ** min(doublings, 60), self.longest_s)
        return delay_s if served_s is None else min(delay_s, max(served_s, self.first_s))


class Starter:
    """Starts processes, from one thread. Groups of MPI ranks are started by their launcher.

    parent: the process that others are forked from, if there is one.
    """

    def __init__(self, settings: WorkerSettings, supervisor: str) -> None:
        """supervisor: the name under which the farm reaches this one."""
        self._settings = settings
        self._supervisor = supervisor
        may_fork = CAN_FORK and os.environ.get(FORK, "").lower() not in NO
        self._forks = settings.fork and may_fork and settings.launch is None
        self._starts = 0
        self.parent: ForkParent | None = None
        self._parents_place: tuple[Mapping[str, str], str] = {}, ""  # environment, folder

    def start(self, number: int, *, log: Path, restarts: int, loopback: bool) -> Child | None:
        """Start the process in place `number`; None: its parent still loads, try again later.

        log, restarts: as for `environments_of`; loopback: as for `Group`. Raises OSError, and
        WorldError for groups.
        """
        settings = self._settings
        arguments = arguments_of(settings, number)
        shared, own = environments_of(
            settings, number, log=log, supervisor=self._supervisor, restarts=restarts
        )
        environment = shared | own
        if self._forks and (settings.count > 1 or self._starts > 0):
            self._choose_parent(shared)
            if self.parent is not None and not self.parent.ready:
                return None
        self._starts += 1
        with open(log, "a", opener=private_opener) as output:
            output.write(first_line(environment))
        if settings.launch is not None:
            return Group(
                settings.launch, arguments, log=log, environment=environment, loopback=loopback
            )
        if self.parent is not None:
            try:
                return Child(arguments, log=log, environment=environment, parent=self.parent)
            except ParentLost as error:
                self._lost(error)
        return Child(arguments, log=log, environment=environment)

    def look(self, now: float) -> None:
        """Notice that the parent has loaded or ended. Call it before `start`, at each look."""
        if self.parent is not None:
            try:
                self.parent.look(now)
            except ParentLost as error:
                self._lost(error)

    def loads_until(self) -> float:
        """Return until when `start` may have to wait; 0.0 if it does not."""
        parent = self.parent
        return 0.0 if parent is None or parent.ready else parent.load_until

    def close(self) -> None:
        """End the parent."""
        if self.parent is not None:
            self.parent.close()
            self.parent = None

    def _choose_parent(self, environment: Mapping[str, str]) -> None:
        """Start a parent, if there is none with this environment and this folder."""
        place = environment, _folder()
        if place != self._parents_place:
            self.close()
        if self.parent is None:
            words = arguments_of(replace(self._settings, devices=()), 0)
            self.parent = ForkParent(MODULE, words, environment)
            self._parents_place = place

    def _lost(self, error: ParentLost) -> None:
        parent = self.parent
        assert parent is not None
        self.close()
        if parent.forks:
            log.warning(
                "the process that worker processes are forked from has ended, another one is "
                "started when it is needed: %s",
                error,
            )
        else:
            self._forks = False
            log.warning(
                "worker processes are not forked but each started as a fresh interpreter: the "
                "process to fork them from cannot: %s",
                error,
            )


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it has been removed
        return ""


def arguments_of(settings: WorkerSettings, number: int) -> list[str]:
    """Return the arguments of the process in place `number`."""
    arguments = [*settings.models, "--connect", str(settings.connect)]
    arguments += ["--lost-after", str(settings.lost_after_s)]
    if settings.devices:
        arguments += ["--device", settings.devices[number % len(settings.devices)]]
    if settings.ends_at is not None:
        arguments += ["--ends-at", str(settings.ends_at)]
    return arguments


def environments_of(
    settings: WorkerSettings, number: int, *, log: Path, supervisor: str, restarts: int
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the environment of all places and restarts, and what is added for place `number`.

    log: the file of its output, which the farm can read if it is in the run folder. supervisor: the
    name under which the farm reaches this one. restarts: earlier processes in the same place.
    """
    is_known = settings.logs.resolve() == settings.connect.parent.resolve() / "logs"
    own = {
        SEAT: str(number),
        STARTED_BY: settings.started_by,
        SUPERVISOR: supervisor,
        SEATS: str(settings.count),
        RESTARTS: str(restarts),
        LOG: log.name if is_known else "",
    }
    if settings.devices:
        own["CUDA_VISIBLE_DEVICES"] = settings.devices[number % len(settings.devices)]
    shared = {name: value for name, value in os.environ.items() if name not in own}
    if settings.launch is None:
        # A model's own srun takes no request from the step of this supervisor, one task on a node.
        shared = {name: value for name, value in shared.items() if not STEP_SIZES.match(name)}
    processes = settings.count * (settings.launch.ranks if settings.launch else 1)
    threads = settings.cpus or max(1, cpus_here() // processes)
    shared.setdefault("OMP_NUM_THREADS", str(threads))
    shared.setdefault("NPROC", shared["OMP_NUM_THREADS"])  # read by JAX
    if settings.log_format is not None:
        shared[LOG_FORMAT] = settings.log_format
    return shared, own
