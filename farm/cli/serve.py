"""`farm serve`: serve models from this machine at one address."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any, get_args

import click
import uvloop

from farm.cli import signals
from farm.cli.options import mpi_options, record_options
from farm.cli.url import with_token
from farm.descriptors import Option, every
from farm.errors import FarmError
from farm.machine.addresses import is_loopback
from farm.machine.freed_memory import keep_freed_memory
from farm.provision.batch.kinds import ClusterPlan, read_plan
from farm.provision.batch.script import job_script
from farm.provision.local.supervisor import WorkersFailed
from farm.server.farm import Farm
from farm.server.garbage import (
    search_no_more,
    search_now_and_then,
    search_young_in_time,
    search_young_only,
)
from farm.settings import Auth, Settings, Transport, read_settings, settings_of

BEFORE_PROTOCOLS = "grpc_tls_key"
"""`--help` lists the protocols' options after this one."""

EXAMPLES = """\b
Examples:
  farm serve model.py --workers 4             the only model in a file, in 4 processes
  farm serve model.py:Beam plate.py:Plate     several models; each worker loads all of them
  farm serve mypackage.models:forward         a model in an importable module
  farm serve net.onnx                         a network in an ONNX file; net.pt2 works too
  farm serve solver.py --mpi 4 -n 2           two groups of four MPI ranks
  farm serve http://127.0.0.1:4243            the models of a running UM-Bridge server
  farm serve m@http://a:4243,http://b:4243    one model on two servers that share its calls
  farm serve --workers 0                      no workers here; start them with farm worker
  farm serve model.py --slurm cluster.toml    workers in SLURM jobs, scaled with demand
  farm serve model.py --dask tcp://node1:8786 run the model on a Dask cluster
  farm serve model.py --record beam.record --reuse   keep each evaluation, and never repeat one
  farm serve model.py --host 0.0.0.0          serve other machines too, with the token of farm url
  farm serve model.py --grpc-port 8001        serve KServe v2 over gRPC in addition to HTTP
  farm serve model.py --mip 127.0.0.1:9000    serve KubeMo clients over MIP in addition to HTTP
  farm serve model.py --aepsych 127.0.0.1:5555  serve AEPsych clients in addition to HTTP

\b
Then, in another terminal:
  farm call 1,2,3
  farm status --watch
"""


def _settings_file(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    if path is not None:
        ctx.default_map = {**(ctx.default_map or {}), **read_settings(path, _options())}


def _options() -> list[Option]:
    return [option for protocol in every() for option in protocol.options]


class _Serve(click.Command):
    """A command that adds the options of all installed protocols, looked up on first use."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        given = super().get_params(ctx)
        theirs = [_click_option(option) for option in _options() if option.help]
        place = next(i for i, each in enumerate(given) if each.name == BEFORE_PROTOCOLS) + 1
        return [*given[:place], *theirs, *given[place:]]


def _click_option(option: Option) -> click.Option:
    return click.Option(
        ["--" + option.name.replace("_", "-")],
        type=click.Path(dir_okay=False, path_type=Path) if option.kind is Path else option.kind,
        default=option.default,
        multiple=option.repeatable,
        metavar=option.metavar or None,
        help=option.help,
    )


@click.command(cls=_Serve, epilog=EXAMPLES, context_settings={"auto_envvar_prefix": "FARM"})
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option(
    "-n",
    "--workers",
    type=int,
    metavar="COUNT",
    help="Model processes on this machine.  [default: 1; 0 with --slurm or --dask]",
)
@mpi_options
@click.option(
    "--slurm",
    "plan_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.TOML",
    help="Submit SLURM jobs of workers as demand grows; the file describes the kinds of jobs.",
)
@click.option("--dry-run", is_flag=True, help="With --slurm: print the job scripts and exit.")
@click.option(
    "--dask",
    metavar="ADDRESS|FILE",
    help="Run the models on a Dask cluster: its scheduler's address or scheduler file.",
)
@click.option(
    "--dask-slots",
    default=0,
    metavar="COUNT",
    help="Minimum number of calls to keep at the Dask cluster; lets an adaptive cluster scale up.",
)
@click.option(
    "--dask-resources",
    multiple=True,
    metavar="NAME=AMOUNT",
    help="Resource of Dask's workers that a call holds while it runs, such as GPU=1; repeatable.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", default=4242, show_default=True, help="Port to listen on; 0 picks a free port."
)
@click.option(
    "--unix",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PATH",
    help="Also serve HTTP at this Unix socket, which only your user can open.",
)
@click.option(
    "--grpc-port",
    type=int,
    metavar="PORT",
    help="Also serve KServe v2 over gRPC at this port; 0 picks a free port.",
)
@click.option(
    "--grpc-tls-cert",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.PEM",
    help="Encrypt gRPC with this server certificate, followed by its certificate chain.",
)
@click.option(
    "--grpc-tls-key",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.PEM",
    help="Private key of --grpc-tls-cert.",
)
@click.option(
    "--auth",
    type=click.Choice(get_args(Auth)),
    default="other-users",
    show_default=True,
    help="Clients that must send the token: all clients, clients of other users than you, or "
    "clients on other machines.",
)
@click.option(
    "--allow-origin",
    multiple=True,
    metavar="ORIGIN",
    help="Allow requests from web pages of this origin, such as https://hub.example; repeatable. "
    "[default: only farm's own pages]",
)
@click.option(
    "--transport",
    type=click.Choice(get_args(Transport)),
    default="auto",
    show_default=True,
    help="Transport to workers and native clients. auto: a socket in the run folder on this "
    "machine, ZeroMQ to other machines. zmq: ZeroMQ to all.",
)
@click.option(
    "--insecure",
    is_flag=True,
    help="Allow --mip and --aepsych addresses that other machines can reach; anyone there can "
    "connect.",
)
@click.option(
    "--dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("farm-run"),
    show_default=True,
    help="Run folder, which holds the connection file farm.json and the models' logs.",
)
@click.option(
    "--time-limit",
    "time_limit_s",
    type=float,
    metavar="SECONDS",
    help="Kill a model process when one of its calls runs longer.",
)
@click.option(
    "--start-timeout",
    "start_timeout_s",
    type=float,
    metavar="SECONDS",
    help="Time that the first worker may take to start; calls wait for it until then.  [default: "
    "600 for workers on this machine, 3600 for those elsewhere]",
)
@click.option(
    "--retries",
    default=3,
    show_default=True,
    help="Times that a call is retried after its worker died.",
)
@click.option(
    "--reserve",
    multiple=True,
    metavar="NAME=COUNT|SHARE%",
    help="Keep workers of this model free from calls that run ten times longer, such as beam=1 or "
    "beam=25%; they may idle. Repeatable.",
)
@click.option(
    "--model-priority",
    multiple=True,
    metavar="NAME=PRIORITY",
    help="Add this to the priority of each call of the model, such as beam=5. Repeatable.",
)
@record_options
@click.option(
    "--grace",
    "grace_s",
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Time that running calls get to finish at shutdown.",
)
@click.option(
    "--non-finite",
    type=click.Choice(["literal", "null", "error"]),
    default="literal",
    show_default=True,
    help="NaN and infinity in JSON answers: write NaN and Infinity, write null, or send an error.",
)
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    expose_value=False,
    is_eager=True,
    callback=_settings_file,
    metavar="FARM.TOML",
    help="Read settings from this file; options on the command line override it.",
)
def serve(models: tuple[str, ...], plan_file: Path | None, dry_run: bool, **values: Any) -> int:
    """Serve one or more MODELs to every client until Ctrl-C or SIGTERM.

    MODEL is FILE.py, FILE.py:NAME, package.module:NAME, FILE.onnx, FILE.pt2, or the URL of a
    running server: http://... for UM-Bridge, kserve+http://... for KServe, graphpipe+http://...
    for GraphPipe, mip://... for MIP. MODEL@URL,URL spreads the calls of one model over several
    servers. NAME=MODEL serves the model under another name.
    """
    if values["workers"] is None:
        values["workers"] = 0 if plan_file or values["dask"] else 1
    if not models and (values["workers"] or values["dask"]):
        raise click.UsageError(
            "missing MODEL; use --workers 0 if all workers are started elsewhere"
        )
    if values["dask"] and values["time_limit_s"] is not None:
        raise click.UsageError(
            "--time-limit needs workers of farm's own (farm worker, --slurm): Dask can end a call "
            "only with the whole Dask worker, and then runs it again. Limit the run in the model, "
            "such as by CommandModel(timeout_s=...)"
        )
    if values["mpi"] is not None and not values["workers"]:
        raise click.UsageError(
            "--mpi applies to workers on this machine: set their number with --workers. Set the "
            "ranks of SLURM jobs in FILE.TOML; Dask does not support MPI groups"
        )
    settings = settings_of(values, _options())
    plan = read_plan(plan_file, models) if plan_file else None
    if dry_run:
        if plan is None:
            raise click.UsageError("--dry-run needs --slurm FILE.TOML")
        _print_scripts(plan, settings)
        return 0
    search_young_only()
    keep_freed_memory()
    try:
        with signals.restored():
            return uvloop.run(_serve(Farm(models, settings, plan=plan)))
    except (WorkersFailed, FarmError) as error:
        if error.detail:
            click.echo(error.detail, err=True)
        raise click.ClickException(str(error)) from None
    finally:
        search_no_more()


def _print_scripts(plan: ClusterPlan, settings: Settings) -> None:
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
    for line in farm.announced:
        click.echo(line)
    click.echo(f"connection file {farm.connection_file.absolute()}")
    if farm.has_plan:
        click.echo(f"SLURM jobs come with demand: farm status --to {farm.settings.dir}")
    if not is_loopback(farm.settings.host):
        # Others may read a file that holds our output, such as that of a job: show no token there.
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
    click.echo("farm stops; Ctrl-C again to hurry", err=True)
    ending = loop.create_task(farm.stop())
    await asyncio.wait({ending, hurry}, return_when=asyncio.FIRST_COMPLETED)
    if not ending.done():
        farm.hurry()
    await ending
    hurry.cancel()
    if failed.done():
        failed.result()
    return 0
