"""`farm experiment`: serve, run and inspect experiments, which choose points one by one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click
import uvloop

from farm.cli import experiment_read, experiment_run, signals
from farm.cli.exits import on_this_machine
from farm.cli.groups import CommandGroup
from farm.cli.options import ANY_FILE
from farm.experiment.host import Experiments
from farm.http1.access import Access
from farm.protocols.aepsych.service import AepsychServer, read_address
from farm.transports.connection import new_token
from farm.wording import counted

GRACE_S = 10.0
"""Time in seconds that running asks get to finish when the server stops."""

EXAMPLES = """\b
Examples:
  farm experiment serve                                 serve AEPsych clients at 127.0.0.1:5555
  farm experiment serve --aepsych 127.0.0.1:0 --journal study.db
  farm experiment run tune.ini model.py --workers 4     evaluate the points on a farm
  farm experiment status study.db                       works while a server runs, too
  farm experiment export study.db trials.csv --id 0
  farm experiment export study.db trials.h5
  farm serve model.py --aepsych 127.0.0.1:5555          serve experiments and a model
"""


@click.group(
    cls=CommandGroup,
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
def experiment() -> None:
    """Run experiments: ask for a point, evaluate it, tell the outcome, ask for the next."""


@experiment.command(epilog=EXAMPLES, context_settings={"auto_envvar_prefix": "FARM"})
@click.option(
    "--aepsych",
    default="127.0.0.1:5555",
    show_default=True,
    metavar="HOST:PORT",
    help="Address to listen on; port 0 picks a free port.",
)
@click.option(
    "--journal",
    default=Path("experiments.db"),
    show_default=True,
    type=ANY_FILE,
    metavar="FILE",
    help="File that stores the experiments; experiments in it are continued.",
)
@click.option(
    "--insecure",
    is_flag=True,
    help="Allow an address that other machines can reach; anyone there can connect.",
)
@click.option(
    "--grace",
    "grace_s",
    default=GRACE_S,
    show_default=True,
    metavar="SECONDS",
    help="Time that running asks get to finish at shutdown.",
)
def serve(aepsych: str, journal: Path, insecure: bool, grace_s: float) -> int:
    """Serve experiments to AEPsych clients until Ctrl-C or SIGTERM. No model is needed."""
    host, port = read_address(aepsych, insecure=insecure)
    access = Access(None if insecure else new_token())
    with signals.restored(), on_this_machine():
        return uvloop.run(_serve(access, host, port, journal, grace_s))


async def _serve(access: Access, host: str, port: int, journal: Path, grace_s: float) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in signals.ending():
        loop.add_signal_handler(number, stop.set)
    experiments = Experiments(journal)
    await experiments.start()
    server = AepsychServer(experiments, access=access)
    try:
        address = await server.start(host, port)
        click.echo(f"experiments for AEPsych's clients at {address}")
        click.echo(
            f"journal {journal}: {counted(len(experiments.experiments), 'experiment')} so far"
        )
        await stop.wait()
        click.echo("farm stops; Ctrl-C again to hurry", err=True)
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
