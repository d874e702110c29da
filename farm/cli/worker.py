"""`farm worker`: model processes that dial in to a running farm."""

from __future__ import annotations

from pathlib import Path

import click

from farm.provision.allocation import end_time
from farm.provision.local import Workers, WorkerSettings, WorkersFailed

EXAMPLES = """\b
Examples:
  farm worker model.py --connect farm-run/farm.json -n 8
  farm worker model.py --connect /shared/run7 -n 2 --time-limit 600
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
    help="The farm's connection file farm.json, or its run folder.",
)
@click.option(
    "-n",
    "count",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Number of model processes.",
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
    count: int,
    time_limit_s: float | None,
    logs: Path | None,
) -> None:
    """Load MODELs in N processes and answer calls of a running farm, until SIGTERM or Ctrl-C.

    The first signal drains: what runs is finished, the rest handed back. A second one hurries.
    """
    file = connect / "farm.json" if connect.is_dir() else connect
    workers = Workers(
        WorkerSettings(
            models=models,
            count=count,
            connect=file,
            logs=logs or file.parent / "logs",
            time_limit_s=time_limit_s,
            ends_at=end_time(),
        )
    )
    workers.drain_on_signals()
    workers.start()
    try:
        workers.ready.result()
        click.echo(f"{count} workers ready", err=True)
        workers.ended.result()
    except WorkersFailed as error:
        if error.detail:
            click.echo(error.detail, err=True)
        raise click.ClickException(str(error)) from None
