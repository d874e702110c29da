"""`farm serve`: a model on this machine behind one address."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any, get_args

import click
import uvloop

from farm.cli.mpi_options import mpi_options
from farm.cli.url import with_token
from farm.errors import FarmError
from farm.provision.kinds import Plan, read_plan
from farm.provision.local import WorkersFailed
from farm.provision.script import job_script
from farm.server.farm import Farm
from farm.server.garbage import (
    search_no_more,
    search_now_and_then,
    search_young_in_time,
    search_young_only,
)
from farm.settings import Auth, Settings, Transport, read_settings
from farm.transports.connection import is_loopback
from farm.worker.freed_memory import keep_freed_memory

EXAMPLES = """\b
Examples:
  farm serve model.py --workers 4             the one model in a file
  farm serve model.py:Beam plate.py:Plate     several models, each worker has all
  farm serve mypackage.models:forward         anything that can be imported
  farm serve net.onnx                         a network in a file, also net.pt2
  farm serve solver.py --mpi 4 -n 2           two groups of four MPI ranks
  farm serve http://127.0.0.1:4243            a running UM-Bridge server's models
  farm serve m@http://a:4243,http://b:4243    two servers of one model share its calls
  farm serve --workers 0                      workers come from elsewhere: farm worker
  farm serve model.py --slurm cluster.toml    SLURM jobs of workers, as many as calls need
  farm serve model.py --dask tcp://node1:8786 a Dask cluster runs the model
  farm serve model.py --host 0.0.0.0          other machines too; needs the token: farm url
  farm serve model.py --grpc-port 8001        KServe v2 clients over gRPC, beside HTTP
  farm serve model.py --mip 127.0.0.1:9000    KubeMo's clients over MIP, beside HTTP
  farm serve model.py --aepsych 127.0.0.1:5555  AEPsych's clients, beside HTTP

\b
Then, in another terminal:
  farm call 1,2,3
  farm status --watch
"""


def _settings_file(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    if path is not None:
        ctx.default_map = {**(ctx.default_map or {}), **read_settings(path)}


@click.command(epilog=EXAMPLES, context_settings={"auto_envvar_prefix": "FARM"})
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option(
    "-n",
    "--workers",
    type=int,
    help="Model processes here.  [default: 1; 0 with --slurm or --dask]",
)
@mpi_options
@click.option(
    "--slurm",
    "plan_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.TOML",
    help="Submit SLURM jobs of workers as demand grows; the file says of what kinds.",
)
@click.option("--dry-run", is_flag=True, help="With --slurm: print the job scripts and end.")
@click.option(
    "--dask",
    metavar="ADDRESS|FILE",
    help="Have a Dask cluster run the models: its scheduler's address or scheduler file.",
)
@click.option(
    "--dask-slots",
    default=0,
    metavar="COUNT",
    help="Calls the Dask cluster gets at once even if it has fewer threads: for an adaptive one.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", default=4242, show_default=True, help="Port; 0 picks a free one.")
@click.option(
    "--unix",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PATH",
    help="Serve HTTP at this Unix socket too, for nobody but you.",
)
@click.option(
    "--grpc-port", type=int, help="Serve KServe v2 over gRPC at this port too; 0 picks a free one."
)
@click.option(
    "--grpc-tls-cert",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.PEM",
    help="Encrypt gRPC: the server's certificate, and those that vouch for it.",
)
@click.option(
    "--grpc-tls-key",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.PEM",
    help="The certificate's key.",
)
@click.option(
    "--graphpipe-default",
    metavar="NAME",
    help="The model that GraphPipe's clients find at /.  [default: the only one]",
)
@click.option(
    "--mip",
    multiple=True,
    metavar="NAME=ADDRESS",
    help="Serve a model over MIP, for KubeMo's clients, at HOST:PORT or unix:/path; repeatable.",
)
@click.option(
    "--aepsych",
    metavar="HOST:PORT",
    help="Serve experiments to AEPsych's clients; port 0 picks a free one.",
)
@click.option(
    "--journal",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="What keeps these experiments.  [default: experiments.db in the run folder]",
)
@click.option(
    "--auth",
    type=click.Choice(get_args(Auth)),
    default="other-users",
    show_default=True,
    help="Who shows the token: everybody, whoever is another user than you, or whoever is not on "
    "this machine.",
)
@click.option(
    "--allow-origin",
    multiple=True,
    metavar="ORIGIN",
    help="Serve web pages of this origin, such as https://hub.example; repeatable. "
    "[default: farm's own only]",
)
@click.option(
    "--transport",
    type=click.Choice(get_args(Transport)),
    default="auto",
    show_default=True,
    help="Workers and native clients of this machine talk over a socket in the run folder and "
    "those of others over ZeroMQ (auto), or all over ZeroMQ.",
)
@click.option(
    "--insecure",
    is_flag=True,
    help="Let --mip and --aepsych listen beyond this machine, for everybody there.",
)
@click.option(
    "--dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("farm-run"),
    show_default=True,
    help="Run folder: farm.json (how to connect) and the models' logs.",
)
@click.option(
    "--time-limit",
    "time_limit_s",
    type=float,
    metavar="SECONDS",
    help="Kill a model call that runs longer.",
)
@click.option(
    "--retries",
    default=3,
    show_default=True,
    help="How often a call runs again after its worker died.",
)
@click.option(
    "--grace",
    "grace_s",
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long running calls may finish at the end.",
)
@click.option(
    "--non-finite",
    type=click.Choice(["literal", "null", "error"]),
    default="literal",
    show_default=True,
    help="NaN and infinities in JSON answers.",
)
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    expose_value=False,
    is_eager=True,
    callback=_settings_file,
    metavar="FARM.TOML",
    help="A file with settings; options given here win.",
)
def serve(models: tuple[str, ...], plan_file: Path | None, dry_run: bool, **values: Any) -> int:
    """Serve one or more MODELs to every client, until Ctrl-C or SIGTERM.

    MODEL is FILE.py, FILE.py:NAME, package.module:NAME, FILE.onnx, FILE.pt2, or the URL of a
    running server, http://... for UM-Bridge, kserve+http://... for KServe, graphpipe+http://...
    for GraphPipe and mip://... for MIP; MODEL@URL,URL is several servers of one model. NAME=MODEL
    gives it another name.
    """
    if values["workers"] is None:
        values["workers"] = 0 if plan_file or values["dask"] else 1
    if not models and (values["workers"] or values["dask"]):
        raise click.UsageError("which MODEL? Or --workers 0 if all workers come from elsewhere")
    if values["dask"] and values["time_limit_s"] is not None:
        raise click.UsageError("--time-limit kills model processes; those of Dask are not farm's")
    if values["mpi"] is not None and not values["workers"]:
        raise click.UsageError(
            "--mpi is for workers here: say how many by --workers; for SLURM jobs ranks are set in "
            "their FILE.TOML, and Dask has none"
        )
    settings = Settings(**values)
    plan = read_plan(plan_file, models) if plan_file else None
    if dry_run:
        if plan is None:
            raise click.UsageError("--dry-run needs --slurm FILE.TOML")
        _print_scripts(plan, settings)
        return 0
    search_young_only()
    keep_freed_memory()
    try:
        return uvloop.run(_serve(Farm(models, settings, plan=plan)))
    except (WorkersFailed, FarmError) as error:
        if error.detail:
            click.echo(error.detail, err=True)
        raise click.ClickException(str(error)) from None
    finally:
        search_no_more()


def _print_scripts(plan: Plan, settings: Settings) -> None:
    for kind in plan.kinds:
        script = job_script(
            kind,
            job_name=f"farm-{kind.name}",
            connect=settings.dir / "farm.json",
            output=settings.dir / "jobs",
            folder=Path.cwd(),
        )
        click.echo(f"### {kind.name}: {kind.min_jobs} to {kind.max_jobs} jobs of this")
        click.echo(script)


async def _serve(farm: Farm) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    stopped = loop.create_task(stop.wait())
    started = loop.create_task(farm.start())
    await asyncio.wait({started, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if not started.done():
        started.cancel()
        await asyncio.wait({started})
        return 130
    connection = started.result()
    names = ", ".join(farm.dispatcher.models()) or "no model yet"
    click.echo(f"farm serves {names} at {connection.url}")
    if farm.settings.unix:
        click.echo(f"HTTP at unix:{farm.settings.unix.absolute()}")
    if connection.grpc:
        tls = " with TLS" if farm.settings.grpc_tls_cert else ""
        click.echo(f"gRPC for KServe v2 clients{tls} at {connection.grpc}")
    for address, name in connection.mip.items():
        click.echo(f"MIP for {name} at {address}")
    if connection.aepsych:
        click.echo(f"experiments for AEPsych's clients at {connection.aepsych}")
    click.echo(f"connection file {farm.connection_file.absolute()}")
    if farm.has_plan:
        click.echo(f"SLURM jobs come with demand: farm status --to {farm.settings.dir}")
    if not is_loopback(farm.settings.host):
        # A token in a file that others may read, such as a job's output, is no secret.
        how = with_token(connection) if sys.stdout.isatty() else f"farm url {farm.settings.dir}"
        click.echo(f"clients elsewhere: {how}")
    searches = search_now_and_then(farm.dispatcher.calls_open), search_young_in_time()
    tidying = [loop.create_task(search) for search in searches]
    failed = loop.create_task(farm.wait_failed())
    await asyncio.wait({failed, stopped}, return_when=asyncio.FIRST_COMPLETED)
    for task in tidying:
        task.cancel()
    stop.clear()
    hurry = loop.create_task(stop.wait())
    click.echo("farm stops; once more to hurry", err=True)
    ending = loop.create_task(farm.stop())
    await asyncio.wait({ending, hurry}, return_when=asyncio.FIRST_COMPLETED)
    if not ending.done():
        farm.hurry()
    await ending
    hurry.cancel()
    if failed.done():
        failed.result()
    return 0
