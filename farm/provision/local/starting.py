"""The arguments and the environment with which a supervisor starts a model process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from farm.machine.json_log import LOG_FORMAT
from farm.provision.batch.allocation import (
    LOG,
    RESTARTS,
    SEATS,
    STARTED_BY,
    STEP_SIZES,
    SUPERVISOR,
)
from farm.provision.local.devices import cpus_here
from farm.worker.servers import SEAT

if TYPE_CHECKING:
    from farm.provision.local.supervisor import WorkerSettings


def arguments_of(settings: WorkerSettings, number: int) -> list[str]:
    """Return the arguments of the process in place `number`."""
    arguments = [*settings.models, "--connect", str(settings.connect)]
    arguments += ["--lost-after", str(settings.lost_after_s)]
    if settings.devices:
        arguments += ["--device", settings.devices[number % len(settings.devices)]]
    if settings.ends_at is not None:
        arguments += ["--ends-at", str(settings.ends_at)]
    return arguments


def shared_environment(settings: WorkerSettings, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the part of `environment_of` that is the same for all places and restarts."""
    own = {SEAT, STARTED_BY, SUPERVISOR, SEATS, RESTARTS, LOG}
    if settings.devices:
        own.add("CUDA_VISIBLE_DEVICES")
    return {name: value for name, value in environment.items() if name not in own}


def environment_of(
    settings: WorkerSettings, number: int, *, log: Path, supervisor: str, restarts: int
) -> dict[str, str]:
    """Return the environment of the process in place `number`.

    log: the file of its output, which the farm can read if it is in the run folder. supervisor: the
    name under which the farm reaches this one. restarts: earlier processes in the same place.
    """
    environment = dict(os.environ)
    if settings.launch is None:
        # A model's own srun takes no request from the step of this supervisor, one task on a node.
        environment = {name: v for name, v in environment.items() if not STEP_SIZES.match(name)}
    processes = settings.count * (settings.launch.ranks if settings.launch else 1)
    threads = settings.cpus or max(1, cpus_here() // processes)
    environment.setdefault("OMP_NUM_THREADS", str(threads))
    environment.setdefault("NPROC", environment["OMP_NUM_THREADS"])  # read by JAX
    if settings.log_format is not None:
        environment[LOG_FORMAT] = settings.log_format
    environment[SEAT] = str(number)
    environment[STARTED_BY] = settings.started_by
    environment[SUPERVISOR] = supervisor
    environment[SEATS] = str(settings.count)
    environment[RESTARTS] = str(restarts)
    is_known = settings.logs.resolve() == settings.connect.parent.resolve() / "logs"
    environment[LOG] = log.name if is_known else ""
    if settings.devices:
        environment["CUDA_VISIBLE_DEVICES"] = settings.devices[number % len(settings.devices)]
    return environment
