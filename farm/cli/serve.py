"""`farm serve`: serve models from this machine at one address."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import click

from farm.cli.options import ANY_FILE, setting_options, workers_option
from farm.descriptors import Option, every
from farm.machine.json_log import logged
from farm.machine.keeper_line import keeper, start_under_keeper
from farm.provision.batch.plan import ClusterPlan, read_plan
from farm.provision.batch.script import JobScripts
from farm.settings import SETTINGS, Settings, read_settings, settings_of

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
        theirs = [_click_option(option) for option in _options()]
        place = next(i for i, each in enumerate(given) if each.name == BEFORE_PROTOCOLS) + 1
        return [*given[:place], *theirs, *given[place:]]


def _click_option(option: Option) -> click.Option:
    return click.Option(
        ["--" + option.name.replace("_", "-")],
        type=ANY_FILE if option.kind is Path else option.kind,
        default=option.default,
        multiple=option.repeatable,
        metavar=option.metavar or None,
        help=option.help,
    )


@click.command(cls=_Serve, epilog=EXAMPLES, context_settings={"auto_envvar_prefix": "FARM"})
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@workers_option("workers", 0, SETTINGS["workers"]["help"])
@click.option(
    "--cluster",
    "--slurm",
    "plan_file",
    type=ANY_FILE,
    metavar="FILE.TOML",
    help="Submit jobs of workers to a batch system as demand grows; the file names the system and "
    "describes the kinds of jobs.",
)
@click.option("--dry-run", is_flag=True, help="With --cluster: print the job scripts and exit.")
@setting_options(*(name for name in SETTINGS if name != "workers"), unset=("supervise",))
@click.option(
    "--config",
    type=ANY_FILE,
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
    scripts = JobScripts(plan.system, settings.dir / "farm.json", settings.dir / "jobs")
    for kind in plan.kinds:
        script = scripts.of(kind, f"farm-{kind.name}")
        first, _, rest = script.partition("\n")  # sbatch expects #! at the very start
        about = f"{kind.name}: {kind.min_jobs} to {kind.max_jobs} jobs of this"
        click.echo(f"{first}\n### {about}\n{rest}")
