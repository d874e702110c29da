"""The farm that evaluates a sweep: a running farm, or one that is started for the sweep."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import click

from farm.cli.call import await_model
from farm.cli.options import TARGET, setting_options, workers_option
from farm.client import Client, connect
from farm.machine.json_log import LOG_FORMAT
from farm.machine.resources import allowed_cpus
from farm.provision.local.supervisor import WorkersFailed
from farm.server.farm import Farm
from farm.server.in_process import running
from farm.settings import Settings
from farm.sweep.design.plan import Plan
from farm.sweep.errors import SweepError
from farm.sweep.file.signature import is_ours
from farm.worker.specs import located, needs_folder, source_of, version_of

OF_DASK = ("dask", "dask_slots", "dask_resources")
SHARED = ("time_limit_s", *OF_DASK, "mpi", "mpi_launch", "record", "reuse")
"""Fields of a Target that are the settings of the farm that serves its models."""


@dataclass(frozen=True, slots=True)
class Target:
    """Models to serve here, or the address of a running farm; stored with the sweep as JSON."""

    models: tuple[str, ...] = ()
    to: str | None = None
    workers: int | None = None
    time_limit_s: float | None = None
    dask: str | None = None
    dask_slots: int = 0
    dask_resources: tuple[str, ...] = ()
    mpi: int | None = None
    mpi_launch: str | None = None
    record: str | None = None
    reuse: bool = False

    def to_json(self) -> str:
        """Return JSON text that is valid in every folder; `from_json` reads it back.

        Paths are absolute. `folder` is the folder in which packages are looked up first.
        """
        data = asdict(self) | {"models": [located(spec) for spec in self.models]}
        if self.record is not None:
            data["record"] = str(Path(self.record).absolute())
        if self.to is not None and Path(self.to).exists():
            data["to"] = str(Path(self.to).absolute())
        return json.dumps(data | {"folder": str(Path.cwd())})

    @staticmethod
    def from_json(text: str) -> Target:
        """Parse the text that `to_json` wrote; any other text gives the default Target."""
        try:
            data = json.loads(text)
            known = {f.name: data[f.name] for f in fields(Target) if f.name in data}
            known["dask_resources"] = tuple(known.get("dask_resources", ()))
            return Target(**known | {"models": tuple(data["models"])})
        except (ValueError, TypeError, KeyError):
            return Target()

    def __str__(self) -> str:
        """Describe the models and the farm in words."""
        parts = [*self.models]
        parts += [f"the farm at {self.to}"] if self.to else []
        parts += [f"on the Dask cluster at {self.dask}"] if self.dask else []
        parts += [f"on {self.mpi} MPI ranks"] if self.mpi else []
        parts += [f"started by `{self.mpi_launch}`"] if self.mpi_launch else []
        parts += [f"recorded in {self.record}"] if self.record else []
        return ", ".join(parts)


trust_option = click.option(
    "--trust", is_flag=True, help="Run the model that FILE names even if you did not write FILE."
)


def chosen_farm(target: Target, plan: Plan, path: Path, *, trust: bool) -> Target:
    """Return the farm that the command line names, or the one that the file names."""
    if target.models or target.to:
        return target
    return kept_target(plan, path, trust=trust)


def kept_target(plan: Plan, path: Path, *, trust: bool) -> Target:
    """Return the farm that the plan of the sweep file at `path` names in its provenance.

    Raises click.ClickException unless the current user signed the plan or passes `--trust`:
    otherwise a file from another user could choose the program that runs here.
    """
    text = plan.provenance.get("target", "")
    target = Target.from_json(text)
    if trust or target == Target():
        return target
    if not is_ours(plan):
        raise click.ClickException(
            f"{path} was not written by you, or was changed since. It would run: {target}. "
            "If you trust it, add --trust; or name the model yourself"
        )
    folder = Path(json.loads(text).get("folder", ""))
    packages = [m for m in target.models if located(m) == m and needs_folder(m)]
    if packages and folder != Path.cwd():
        raise click.ClickException(
            f"{', '.join(packages)} is looked up in the current folder first, and {path} was "
            f"started in {folder}: run this command there, add --trust, or name the model yourself"
        )
    return target


def file_version(target: Target) -> str:
    """Return the version that the file of the only model of `target` gives it, without loading it.

    "" if there is none, or if it is known only once the model is loaded.
    """
    return version_of(target.models[0]) if len(target.models) == 1 else ""


def is_unchanged(target: Target, plan: Plan) -> bool:
    """Whether `target` surely serves the model that a sweep was planned for, without loading it.

    That is known for the same file, if its version is that of its content.
    """
    models = tuple(map(located, target.models))
    if models != Target.from_json(plan.provenance.get("target", "")).models:
        return False
    return file_version(target) == plan.info.version != ""


def sources_of(target: Target, plan: Plan) -> tuple[str, str]:
    """Return the files of the models that a sweep was planned for, and those of `target`.

    "" for models of a server.
    """
    kept = Target.from_json(plan.provenance.get("target", ""))
    then, now = (", ".join(sorted(filter(None, map(source_of, t.models)))) for t in (kept, target))
    return then, now


@dataclass(frozen=True, slots=True)
class OpenFarm:
    """A connection to the farm that evaluates a sweep's points.

    hurry: kills the running model processes of a farm that was started for the sweep.
    """

    client: Client
    reconnect: Callable[[], Client] | None
    hurry: Callable[[], None] = lambda: None


def farm_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select a sweep's farm; the command receives them as `target`."""

    @functools.wraps(command)
    def with_target(**values: Any) -> Any:
        chosen = {f.name: values.pop(f.name) for f in fields(Target)}
        if chosen["record"] is not None:
            chosen["record"] = str(chosen["record"])
        return command(target=Target(**chosen), **values)

    asked: Callable[..., Any] = setting_options(*SHARED)(with_target)
    for option in (
        workers_option(
            "workers",
            1,
            "With MODEL: model processes on this machine. Default: one per core, or one per "
            "--mpi RANKS cores; none with --dask.",
        ),
        click.option(
            "--to",
            "to",
            metavar=TARGET,
            help="A running farm or UM-Bridge server: its URL, its connection file farm.json, or "
            "its run folder. Default: $FARM_CONNECTION, $FARM_URL, then ./farm-run.",
        ),
        click.argument("models", nargs=-1, metavar="[MODEL]..."),
    ):
        asked = option(asked)
    return asked


@contextlib.contextmanager
def open_farm(target: Target, out: Path, model: str | None = None) -> Iterator[OpenFarm]:
    """Connect to the farm that runs the sweep `out`; the target's models are served for the block.

    model: the one that a running farm needs to have; None: any. Raises click.UsageError, FarmError.
    """
    if target.models and target.to:
        raise click.UsageError("give MODEL to serve it here, or --to for a running farm, not both")
    if target.dask and not target.models:
        raise click.UsageError("--dask needs MODEL, which the Dask cluster runs")
    if target.mpi is not None and (target.dask or not target.models):
        raise click.UsageError("--mpi needs MODEL and cannot be combined with --dask")
    if target.dask and target.time_limit_s is not None:
        raise click.UsageError(
            "--time-limit needs workers of farm's own (farm worker, --slurm): Dask can end a call "
            "only with the whole Dask worker, and then runs it again. Limit the run in the model, "
            "such as by CommandModel(timeout_s=...)"
        )
    if target.reuse and not target.record:
        raise click.UsageError("--reuse needs --record FILE, from which it answers")
    if target.record and not target.models:
        raise click.UsageError(
            "--record needs MODEL: a running farm records if it was started with --record"
        )
    if target.models:
        with _served(target, out) as own, connect(str(own.folder.for_clients)) as client:
            yield OpenFarm(client, None, own.hurry)
        return
    current = connect(target.to)

    def reconnect() -> Client:
        # A restarted farm has a new address and new keys.
        nonlocal current
        new = connect(target.to)
        current.close()
        current = new
        return new

    try:
        await_model(current, model, patient=True)
        yield OpenFarm(current, reconnect)
    finally:
        current.close()


@contextlib.contextmanager
def _served(target: Target, out: Path) -> Iterator[Farm]:
    """Run a farm in this process for the block.

    The run folder with the models' logs is kept if the farm or a call fails.
    """
    folder = out.with_name(out.name + ".run")
    given = {name: getattr(target, name) for name in SHARED}
    if target.record is not None:
        given["record"] = Path(target.record)
    settings = Settings(
        port=0,
        dir=folder,
        workers=_workers(target),
        **given,
        log_format=os.environ.get(LOG_FORMAT, "text"),  # type: ignore[arg-type]  # it is checked
    )
    farm = Farm(list(target.models), settings, doors=False)
    try:
        with running(farm):
            yield farm
    except WorkersFailed as error:
        said = f" (the models' logs are in {folder}/logs)" * _is_of_worth(folder)
        raise click.ClickException(f"{error}{said}") from None
    except (SweepError, click.ClickException, KeyboardInterrupt):
        shutil.rmtree(folder, ignore_errors=True)  # the request is wrong, not the models
        raise
    else:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        if not _is_of_worth(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_of_worth(folder: Path) -> bool:
    """Whether the run folder has logs of models or belongs to another farm."""
    return any(folder.glob("logs/*.log")) or (folder / "farm.json").exists()


def _workers(target: Target) -> int:
    if target.workers or target.dask:
        return target.workers or 0
    return max(1, allowed_cpus() // (target.mpi or 1))
