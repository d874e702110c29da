"""`farm experiment`: points chosen one after another, for clients that ask and tell."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import click
import uvloop

from farm.cli import experiment_read, experiment_run
from farm.experiment.host import Experiments
from farm.server.access import Access
from farm.server.aepsych import AepsychServer, read_address
from farm.sweep.errors import SweepError
from farm.transports.connection import new_token

GRACE_S = 10.0
"""How long asks that run may take to end when the server stops."""

EXAMPLES = """\b
Examples:
  farm experiment serve                                 for AEPsych's clients at 127.0.0.1:5555
  farm experiment serve --aepsych 127.0.0.1:0 --journal study.db
  farm experiment run tune.ini model.py --workers 4     points evaluated by a farm
  farm experiment status study.db                       also while a server has it
  farm experiment export study.db trials.csv --id 0
  farm experiment export study.db trials.h5
  farm serve model.py --aepsych 127.0.0.1:5555          beside a model: farm serve
"""


class _Group(click.Group):
    """A group whose mistakes are one line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except (SweepError, OSError) as error:
            raise click.ClickException(str(error)) from error


@click.group(
    cls=_Group,
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
def experiment() -> None:
    """Experiments: ask for a point, tell what came out, ask for the next."""


@experiment.command(epilog=EXAMPLES, context_settings={"auto_envvar_prefix": "FARM"})
@click.option(
    "--aepsych",
    default="127.0.0.1:5555",
    show_default=True,
    metavar="HOST:PORT",
    help="Where to listen; port 0 picks a free one.",
)
@click.option(
    "--journal",
    default=Path("experiments.db"),
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="What keeps the experiments; those that are in it go on.",
)
@click.option(
    "--insecure", is_flag=True, help="Let it listen beyond this machine, for everybody there."
)
@click.option(
    "--grace",
    "grace_s",
    default=GRACE_S,
    show_default=True,
    metavar="SECONDS",
    help="How long asks that run may take at the end.",
)
def serve(aepsych: str, journal: Path, insecure: bool, grace_s: float) -> int:
    """Serve experiments to AEPsych's clients, until Ctrl-C or SIGTERM; no model is needed."""
    host, port = read_address(aepsych, insecure=insecure)
    access = Access(None if insecure else new_token())
    return uvloop.run(_serve(access, host, port, journal, grace_s))


async def _serve(access: Access, host: str, port: int, journal: Path, grace_s: float) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    experiments = Experiments(journal)
    await experiments.start()
    server = AepsychServer(experiments, access=access, host=host, port=port)
    try:
        address = await server.start()
        click.echo(f"experiments for AEPsych's clients at {address}")
        click.echo(f"journal {journal}: {len(experiments.experiments)} experiments so far")
        await stop.wait()
        click.echo("farm stops; once more to hurry", err=True)
        stop.clear()
        ending = loop.create_task(server.stop(grace_s))
        hurry = loop.create_task(stop.wait())
        await asyncio.wait({ending, hurry}, return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            experiments.hurry()
        await ending
        hurry.cancel()
    finally:
        await experiments.stop()
    return 0


for command in (experiment_run.run, *experiment_read.COMMANDS):
    experiment.add_command(command)
