"""The batch job that a worker runs in: its identity and its end time."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping

from farm.provision.batch.systems import BUILT_IN, BatchSystem, of_this_job

ASK_TIMEOUT_S = 15.0
"""While slurmctld is away squeue blocks for about 9 s; a worker can work without the answer."""

STARTED_BY = "FARM_STARTED_BY"
"""The variable in which a supervisor passes `WorkerSettings.started_by` to its processes."""

SUPERVISOR, SEATS = "FARM_WORKER_SUPERVISOR", "FARM_WORKER_SEATS"
RESTARTS, LOG = "FARM_WORKER_RESTARTS", "FARM_WORKER_LOG"
"""The variables in which a supervisor passes its name, its number of processes, how many it had
before in the same place, and the name of the file with the process's output, if that is in the
farm's own folder.
"""

ENDS_AT = "FARM_ENDS_AT"
"""The variable that holds the Unix time at which the job ends, in the scripts that farm writes."""

LABELS = {
    "started_by": STARTED_BY,
    "supervisor": SUPERVISOR,
    "seats": SEATS,
    "restarts": RESTARTS,
    "log": LOG,
    "kind": "FARM_KIND",
    "restart": "FARM_JOB_RESTART",
}
"""Labels of a worker beside those of its job, and the variables that hold them.

The job id alone does not identify it: SLURM restarts a job of a lost node under the same id, while
the first copy may still run.
"""

STEP_SIZES = re.compile(
    r"^S(LURM|RUN)_((NTASKS|GPUS)(_PER_.+)?|(CPUS|MEM|TRES)_PER_.+|NPROCS|OVERCOMMIT"
    r"|(STEP_)?GRES|(GPU|TRES)_BIND)$"
)
"""Variables from which srun takes the tasks, CPUs, memory and GPUs of a new step. Jobs and steps
set them to their own. Source: srun(1), INPUT ENVIRONMENT VARIABLES."""

_TIME = re.compile(
    r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d+))?(?::(?P<third>\d+))?", re.ASCII
)


def seconds_of(text: str) -> float | None:
    """Return a SLURM time in seconds; None if it is not one, such as `UNLIMITED`.

    `minutes`, `minutes:seconds`, `hours:minutes:seconds`, `days-hours[:minutes[:seconds]]`.
    Source: sbatch(1), --time.
    """
    match = _TIME.fullmatch(text.strip())
    if match is None:
        return None
    numbers = [int(n) for n in (match["first"], match["second"], match["third"]) if n is not None]
    if match["days"] is not None or len(numbers) == 3:
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
    else:
        hours, (minutes, seconds) = 0, (*numbers, 0)[:2]
    return int(match["days"] or 0) * 86400.0 + hours * 3600.0 + minutes * 60.0 + seconds


def clock_of(seconds: float) -> str:
    """Return a time span as `hours:minutes:seconds`, which several batch systems take."""
    minutes, left = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{left:02}"


def end_time(environment: Mapping[str, str] = os.environ) -> float | None:
    """Return the Unix time at which this job ends; None outside a job, without a limit, or unknown.

    farm's scripts and new releases of SLURM set it in the environment; with older ones of SLURM
    farm asks squeue, with a timeout.
    """
    job = environment.get("SLURM_JOB_ID")
    for name in (ENDS_AT, "SLURM_JOB_END_TIME"):
        if environment.get(name, "").isdecimal():
            return float(environment[name])
    if not job:
        return None
    import subprocess  # only here, for a process that is to start soon

    try:
        answer = subprocess.run(
            ["squeue", "-h", "-j", job, "-o", "%L"],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ASK_TIMEOUT_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    # A heterogeneous job has a line for each component.
    left_s = [seconds for line in answer.splitlines() if (seconds := seconds_of(line)) is not None]
    return time.time() + min(left_s) if left_s else None


def job_id(
    environment: Mapping[str, str] = os.environ, systems: Iterable[BatchSystem] = BUILT_IN
) -> str:
    """Return the id of the batch job that this process is in; empty outside a job.

    The scripts that farm writes pass it on in all systems, and jobs of others in these `systems`.
    """
    if name := environment.get("FARM_JOB"):
        return name
    system = of_this_job(environment, systems)
    return "" if system is None else environment[system.job.id]


def labels(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return labels that identify one start of a worker, by its job and its supervisor."""
    found = {label: environment.get(name, "") for label, name in LABELS.items()}
    found["job"] = job_id(environment)
    if (system := of_this_job(environment)) is not None:
        found["task"] = environment.get(system.job.process, "")
        found["restart"] = found["restart"] or environment.get(system.job.restart, "")
    return {label: value for label, value in found.items() if value}
