"""`farm worker`: start model processes that connect to a running farm."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from farm import wording
from farm.cli.options import setting_options, workers_option
from farm.cli.signals import drained_by_signals
from farm.errors import InvalidInput
from farm.machine.json_log import LOG_FORMAT, logged
from farm.provision.batch.allocation import ENDS_AT, end_time, job_id
from farm.provision.batch.systems import usable
from farm.provision.local.devices import cpus_here, devices
from farm.provision.local.group import launch_of
from farm.provision.local.starter import WorkerSettings
from farm.provision.local.supervisor import Workers, WorkersFailed
from farm.settings import LogFormat
from farm.transports.connection import read_connection, workers_file
from farm.worker.mpi.world import told_size

FILE_S = 60.0
"""Time that workers in a job wait for the connection file; file servers show new files late."""

EXAMPLES = """\b
Examples:
  farm worker model.py --to farm-run -n 8
  farm worker model.py --to /shared/run7 -n 2 --time-limit 600
  farm worker solver.py --mpi 4 -n 2
  srun --mpi=pmi2 -n 64 farm worker solver.py --mpi 4
  farm worker solver.py --cpus 8              as many processes as fit, with 8 CPUs each
  farm worker surrogate.py --gpus auto        one process per GPU; -n 2 starts two per GPU
  farm worker model.py --time-left 3600 --drain-before 60      in a job of an hour
"""


@click.command(epilog=EXAMPLES)
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.option(
    "--to",
    "connect",
    type=click.Path(path_type=Path),
    default=Path("farm-run"),
    envvar="FARM_CONNECTION",
    show_default=True,
    metavar="FILE|DIR",
    help="The farm's run folder, or the file workers.json in it; farm.json works as well.",
)
@workers_option(
    "count",
    1,
    "Number of model processes; with --gpus: per GPU; with --mpi: number of groups.  [default: 1]",
)
@setting_options("mpi", "mpi_launch")
@click.option(
    "--cpus",
    type=click.IntRange(1),
    metavar="CPUS",
    help="CPUs per process. Without -n, farm starts as many processes as fit on this machine or "
    "in the batch job's share of it.",
)
@click.option(
    "--gpus",
    metavar="auto|per-node|0,1",
    help="Start one process for each GPU, or for each listed GPU; a process sees only its own.",
)
@setting_options("fork", "time_limit_s")
@click.option(
    "--ends-at",
    type=float,
    envvar=ENDS_AT,
    metavar="UNIX_TIME",
    help="When this machine is taken away: workers get no call that would not finish before.  "
    "[default: the end of the SLURM job]",
)
@click.option(
    "--time-left", type=click.FloatRange(0.0), metavar="SECONDS", help="The same, counted from now."
)
@click.option(
    "--drain-before",
    "drain_before_s",
    type=click.FloatRange(0.0),
    metavar="SECONDS",
    help="Drain the workers this long before that time, as SIGTERM does.",
)
@click.option(
    "--logs",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the models' output. Default: logs in the run folder.",
)
@setting_options("log_format", envvar=LOG_FORMAT)
def worker(
    models: tuple[str, ...],
    connect: Path,
    ends_at: float | None,
    time_left: float | None,
    drain_before_s: float | None,
    log_format: LogFormat,
    **asked: Any,
) -> int:
    """Load MODELs in model processes and work for a running farm until SIGTERM or Ctrl-C.

    The first signal drains the workers: they finish their running calls and return the queued ones
    to the farm. A second signal stops them at once.

    With --mpi under srun or mpiexec, the processes that the launcher started form the groups.
    """
    file = _awaited(connect)
    source = click.get_current_context().get_parameter_source("connect")
    if file.exists():
        read_connection(file, named=source is not ParameterSource.DEFAULT)
    if time_left is not None:
        ends_at = time.time() + time_left
    if drain_before_s is not None and ends_at is None:
        raise click.UsageError("--drain-before needs --ends-at or --time-left")
    if asked["mpi_launch"] is not None and asked["mpi"] is None:
        raise click.UsageError("--mpi-launch needs --mpi RANKS")
    if asked["mpi"] is not None and asked["mpi_launch"] is None and told_size() > 1:
        if any(asked[name] for name in ("count", "cpus", "gpus", "logs")):
            raise click.UsageError(
                "-n, --cpus, --gpus and --logs are for processes that farm starts; under srun or "
                "mpiexec pass these to the launcher, or let farm start one with --mpi-launch"
            )
        from farm.provision.local.rank import serve_rank

        os.environ[LOG_FORMAT] = log_format
        limits = {"time_limit_s": asked["time_limit_s"], "ends_at": ends_at}
        with _at(ends_at, drain_before_s, lambda: os.kill(os.getpid(), signal.SIGTERM)):
            return serve_rank(models, file, ranks=asked["mpi"], **limits)
    workers = Workers(_settings(models, file, ends_at, **asked))
    logs_here = logged(log_format, "farm worker")
    try:
        with logs_here, drained_by_signals(workers), _at(ends_at, drain_before_s, workers.drain):
            workers.start()
            _wait_ready(workers)
            if not workers.ended.done():
                click.echo(f"{wording.counted(workers.settings.count, 'worker')} ready", err=True)
            workers.ended.result()
    except WorkersFailed as error:
        if error.detail:
            click.echo(error.detail, err=True)
        raise click.ClickException(str(error)) from None
    return 0


def _settings(
    models: tuple[str, ...],
    file: Path,
    ends_at: float | None,
    *,
    count: int | None,
    mpi: int | None,
    mpi_launch: str | None,
    cpus: int | None,
    gpus: str | None,
    fork: bool,
    time_limit_s: float | None,
    logs: Path | None,
) -> WorkerSettings:
    """Return the settings of processes that farm starts. Raises UsageError."""
    if gpus is not None and mpi is not None:
        raise click.UsageError(
            "--gpus assigns GPUs to single processes; assign those of ranks with --mpi-launch"
        )
    try:
        its_devices = () if gpus is None else devices(gpus)
    except InvalidInput as error:
        raise click.UsageError(error.message) from None
    if count is None:
        count = max(1, cpus_here() // (cpus * (mpi or 1))) if cpus and not its_devices else 1
    return WorkerSettings(
        models=models,
        count=count * max(1, len(its_devices)),
        cpus=cpus,
        devices=its_devices,
        fork=fork,
        connect=file,
        logs=logs or file.parent / "logs",
        time_limit_s=time_limit_s,
        # Ask SLURM once here, instead of in each process.
        ends_at=ends_at or end_time() or math.inf,
        launch=launch_of(mpi, mpi_launch),
    )


def _wait_ready(workers: Workers) -> None:
    """Wait until the farm has accepted all workers; say once if that takes long.

    Raises WorkersFailed.
    """
    try:
        workers.ready.result(wording.JOIN_S)
    except TimeoutError:
        text = wording.have_joined(workers.settings.count, workers.joined())
        click.echo(f"{text}; they try {workers.connection.address()}", err=True)
        workers.ready.result()


@contextlib.contextmanager
def _at(ends_at: float | None, before_s: float | None, drain: Callable[[], None]) -> Iterator[None]:
    """Call `drain` that long before the end, if the block lasts until then."""
    if ends_at is None or before_s is None:
        yield
        return
    timer = threading.Timer(max(0.0, ends_at - before_s - time.time()), drain)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _awaited(connect: Path) -> Path:
    """Return the file for workers; in a job whose script has just started the farm, wait for it."""
    file = workers_file(connect)
    if file.is_file() or not job_id(systems=usable()):
        return file
    click.echo(f"waiting for {file}", err=True)
    limit = time.monotonic() + FILE_S
    while not (file := workers_file(connect)).is_file() and time.monotonic() < limit:
        time.sleep(0.1)
    return file
