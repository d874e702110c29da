"""`farm serve`: serve models from this machine at one address."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, get_args

import click

from farm.cli.log_format import log_format_option, logged
from farm.cli.options import fork_option, mpi_options, record_options, time_limit_option
from farm.descriptors import Option, every
from farm.machine.keeper_line import keeper, start_under_keeper
from farm.provision.batch.plan import ClusterPlan, read_plan
from farm.provision.batch.script import job_script
from farm.settings import Auth, Settings, Transport, read_settings, settings_of

BEFORE_PROTOCOLS = "grpc_tls_key"
"""`--help` lists the protocols' options after this one."""

EXAMPLES = """\b
Examples:
  farm serve model.py --workers 4             the only model in a file, in 4 processes
  farm serve model.py:Beam plate.py:Plate     several models; each worker loads all of them
  farm serve mypackage.models:forward         a model in an importable module
  farm serve net.onnx                         a network in an ONNX file; net.pt2 works too
  farm serve fitted.skops                     scikit-learn; trees.ubj, plant.fmu, model.R too
  farm serve 'lines:./model --fine'           a program in any language: docs/lines.md
  farm serve docker://IMAGE -n 2              a container for each worker; apptainer:// too
  farm serve solver.py --mpi 4 -n 2           two groups of four MPI ranks
  farm serve http://127.0.0.1:4243            the models of a running UM-Bridge server
  farm serve m@http://a:4243,http://b:4243    one model on two servers that share its calls
  farm serve --workers 0                      no workers here; start them with farm worker
  farm serve model.py --cluster cluster.toml  workers in batch jobs, scaled with demand
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
    help="Model processes on this machine.  [default: 1; 0 with --cluster or --dask]",
)
@mpi_options
@click.option(
    "--cluster",
    "--slurm",
    "plan_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.TOML",
    help="Submit jobs of workers to a batch system as demand grows; the file names the system and "
    "describes the kinds of jobs.",
)
@click.option(
    "--supervise/--no-supervise",
    default=None,
    help="Start the front door again if it crashes, with the same ports and keys.  [default: only "
    "with --cluster]",
)
@click.option("--dry-run", is_flag=True, help="With --cluster: print the job scripts and exit.")
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
@fork_option
@time_limit_option
@click.option(
    "--start-timeout",
    "start_timeout_s",
    type=float,
    metavar="SECONDS",
    help="Time that the first worker may take to start; calls wait for it until then.  [default: "
    "600 for workers on this machine, 3600 for those elsewhere; calls do not wait for a SLURM job "
    "that SLURM expects to start later than that]",
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
@log_format_option
@click.option(
    "--otel",
    is_flag=True,
    help="Send spans of requests and calls to an OpenTelemetry collector, which the standard "
    "environment variables name, such as OTEL_EXPORTER_OTLP_ENDPOINT.",
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

    MODEL is FILE.py, FILE.py:NAME, package.module:NAME, FILE with the extension onnx, pt2, skops,
    ubj, fmu, R or jl, lines:COMMAND for another program, docker://IMAGE, podman://IMAGE or
    apptainer://IMAGE for a container with an UM-Bridge server, or the URL of a
    running server: http://... for UM-Bridge, kserve+http://... for KServe, graphpipe+http://...
    for GraphPipe, mip://... for MIP. MODEL@URL,URL spreads the calls of one model over several
    servers. NAME=MODEL serves the model under another name.
    """
    if values["workers"] is None:
        values["workers"] = 0 if plan_file or values["dask"] else 1
    if values["supervise"] is None:
        values["supervise"] = plan_file is not None
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
            "ranks of batch jobs in FILE.TOML; Dask does not support MPI groups"
        )
    settings = settings_of(values, _options())
    plan = read_plan(plan_file, models) if plan_file else None
    if dry_run:
        if plan is None:
            raise click.UsageError("--dry-run needs --cluster FILE.TOML")
        _print_scripts(plan, settings)
        return 0
    own_words = click.get_current_context().obj  # None if another program runs the command
    if settings.supervise and own_words is not None and keeper() is None:
        start_under_keeper(own_words)
    # Only now, as a front door under a keeper loads what it needs in a process of its own.
    with logged(settings.log_format, "farm serve"):
        status: int = importlib.import_module("farm.cli.front_door").run(models, settings, plan)
    return status


def _print_scripts(plan: ClusterPlan, settings: Settings) -> None:
    for kind in plan.kinds:
        script = job_script(
            kind,
            plan.system,
            job_name=f"farm-{kind.name}",
            connect=settings.dir / "farm.json",
            output=settings.dir / "jobs",
            folder=Path.cwd(),
        )
        first, _, rest = script.partition("\n")  # sbatch expects #! at the very start
        about = f"{kind.name}: {kind.min_jobs} to {kind.max_jobs} jobs of this"
        click.echo(f"{first}\n### {about}\n{rest}")
