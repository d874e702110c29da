"""`farm worker`: model processes that dial in to a running farm."""

from __future__ import annotations

from pathlib import Path

import click

from farm.cli.mpi_options import mpi_options
from farm.errors import InvalidInput
from farm.provision.allocation import end_time
from farm.provision.devices import cpus_here, devices
from farm.provision.group import launch_of
from farm.provision.local import Workers, WorkerSettings, WorkersFailed
from farm.transports.connection import workers_file
from farm.worker.mpi import told_size

EXAMPLES = """\b
Examples:
  farm worker model.py --connect farm-run -n 8
  farm worker model.py --connect /shared/run7 -n 2 --time-limit 600
  farm worker solver.py --mpi 4 -n 2
  srun --mpi=pmi2 -n 64 farm worker solver.py --mpi 4
  farm worker solver.py --cpus 8              as many as fit
  farm worker surrogate.py --gpus auto        one on each GPU; -n 2 puts two on each
"""


@click.command(epilog=EXAMPLES)
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.option(
    "--connect",
    type=click.Path(path_type=Path),
    default=Path("farm-run"),
    envvar="FARM_CONNECTION",
    show_default=True,
    metavar="FILE|DIR",
    help="The farm's run folder, or its file workers.json; farm.json names the one beside it.",
)
@click.option(
    "-n",
    "count",
    type=click.IntRange(1),
    help="Number of model processes; with --gpus, on each GPU; with --mpi, of groups.  "
    "[default: 1]",
)
@mpi_options
@click.option(
    "--cpus",
    type=click.IntRange(1),
    metavar="CPUS",
    help="CPUs of each process: without -n as many are started as this machine, or the SLURM job's "
    "part of it, has room for.",
)
@click.option(
    "--gpus",
    metavar="auto|per-node|0,1",
    help="One process for each GPU, or for each of these; it sees only its own.",
)
@click.option(
    "--time-limit",
    "time_limit_s",
    type=float,
    metavar="SECONDS",
    help="Kill a model call that runs longer.",
)
@click.option(
    "--logs",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for what the models print. Default: logs in the run folder.",
)
def worker(
    models: tuple[str, ...],
    connect: Path,
    count: int | None,
    mpi: int | None,
    mpi_launch: str | None,
    cpus: int | None,
    gpus: str | None,
    time_limit_s: float | None,
    logs: Path | None,
) -> int:
    """Load MODELs in N processes and answer calls of a running farm, until SIGTERM or Ctrl-C.

    The first signal drains: what runs is finished, the rest handed back. A second one hurries.

    With --mpi under srun or mpiexec the processes that are there form the groups.
    """
    file = workers_file(connect)
    if mpi_launch is not None and mpi is None:
        raise click.UsageError("--mpi-launch needs --mpi RANKS")
    if mpi is not None and mpi_launch is None and told_size() > 1:
        if count or cpus or gpus or logs:
            raise click.UsageError(
                "-n, --cpus, --gpus and --logs are for processes that farm starts; under srun or "
                "mpiexec give these to the launcher, or have farm use one by --mpi-launch"
            )
        from farm.provision.rank import serve_rank

        return serve_rank(models, file, ranks=mpi, time_limit_s=time_limit_s)
    if gpus is not None and mpi is not None:
        raise click.UsageError("--gpus is for single processes; ranks get theirs by --mpi-launch")
    try:
        its_devices = () if gpus is None else devices(gpus)
    except InvalidInput as error:
        raise click.UsageError(error.message) from None
    if count is None:
        count = max(1, cpus_here() // (cpus * (mpi or 1))) if cpus and not its_devices else 1
    count *= max(1, len(its_devices))
    workers = Workers(
        WorkerSettings(
            models=models,
            count=count,
            cpus=cpus,
            devices=its_devices,
            connect=file,
            logs=logs or file.parent / "logs",
            time_limit_s=time_limit_s,
            ends_at=end_time(),
            launch=launch_of(mpi, mpi_launch),
        )
    )
    workers.drain_on_signals()
    try:
        workers.start()
        workers.ready.result()
        if not workers.ended.done():
            click.echo(f"{count} workers ready", err=True)
        workers.ended.result()
    except WorkersFailed as error:
        if error.detail:
            click.echo(error.detail, err=True)
        raise click.ClickException(str(error)) from None
    return 0
