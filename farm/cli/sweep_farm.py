"""The farm behind a sweep: a running one, or one that lives as long as the sweep."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import click

from farm.cli.mpi_options import mpi_options
from farm.client import Client, connect
from farm.errors import FarmError
from farm.provision.local import WorkersFailed
from farm.server.farm import Farm, running
from farm.settings import Settings
from farm.sweep.errors import SweepError
from farm.sweep.signature import is_ours
from farm.sweep.window import PER_WORKER, START
from farm.worker.load import is_package, located

Command = Callable[..., Any]

STATUS_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Target:
    """Which farm: models to serve here, or else where one runs; kept with the sweep as JSON."""

    models: tuple[str, ...] = ()
    to: str | None = None
    workers: int | None = None
    time_limit_s: float | None = None
    dask: str | None = None
    dask_slots: int = 0
    mpi: int | None = None
    mpi_launch: str | None = None

    def to_json(self) -> str:
        """As text that means the same in every folder; `from_json` reads it back.

        Paths are absolute. `folder` is where packages are looked up first.
        """
        data = asdict(self) | {"models": [located(spec) for spec in self.models]}
        if self.to is not None and Path(self.to).exists():
            data["to"] = str(Path(self.to).absolute())
        return json.dumps(data | {"folder": str(Path.cwd())})

    @staticmethod
    def from_json(text: str) -> Target:
        """Read what `to_json` wrote; no farm in particular from anything else."""
        try:
            data = json.loads(text)
            known = {f.name: data[f.name] for f in fields(Target) if f.name in data}
            return Target(**known | {"models": tuple(data["models"])})
        except (ValueError, TypeError, KeyError):
            return Target()

    def __str__(self) -> str:
        """What it runs, in words."""
        parts = [*self.models]
        parts += [f"the farm at {self.to}"] if self.to else []
        parts += [f"on the Dask cluster at {self.dask}"] if self.dask else []
        parts += [f"on {self.mpi} MPI ranks"] if self.mpi else []
        parts += [f"started by `{self.mpi_launch}`"] if self.mpi_launch else []
        return ", ".join(parts)


def kept_target(facts: Mapping[str, str], path: Path, *, trust: bool) -> Target:
    """The farm that the sweep file at `path` names in its provenance.

    Raises click.ClickException unless the user who runs this has signed that part of the file, or
    says `--trust`: a file that somebody else made would choose which program runs here.
    """
    text = facts.get("target", "")
    target = Target.from_json(text)
    if trust or target == Target():
        return target
    if not is_ours(facts):
        raise click.ClickException(
            f"{path} was not written by you, or was changed since. It would run: "
            f"{target}. If you trust that, add --trust; or name the model yourself"
        )
    folder = Path(json.loads(text).get("folder", ""))
    packages = [m for m in target.models if located(m) == m and is_package(m)]
    if packages and folder != Path.cwd():
        raise click.ClickException(
            f"{', '.join(packages)} is looked up in the current folder first, and {path} was "
            f"begun in {folder}: run this command there, add --trust, or name the model yourself"
        )
    return target


@dataclass(frozen=True, slots=True)
class OpenFarm:
    """A farm to give points to. start: points in flight at first, enough for its workers.

    hurry: kills what it runs, if it ends with the sweep.
    """

    client: Client
    start: int
    reconnect: Callable[[], Client] | None
    hurry: Callable[[], None] = lambda: None


def farm_options(command: Command) -> Command:
    """The options that say which farm runs a sweep; the command gets them as its `target`."""

    @functools.wraps(command)
    def with_target(**values: Any) -> Any:
        chosen = {f.name: values.pop(f.name) for f in fields(Target)}
        return command(target=Target(**chosen), **values)

    asked: Command = mpi_options(with_target)
    for option in (
        click.option(
            "--dask-slots",
            default=0,
            metavar="COUNT",
            help="Points the Dask cluster gets at once even if it has fewer threads: for an "
            "adaptive one.",
        ),
        click.option(
            "--dask",
            metavar="ADDRESS|FILE",
            help="Have a Dask cluster run MODEL: its scheduler's address or scheduler file.",
        ),
        click.option(
            "--time-limit",
            "time_limit_s",
            type=click.FloatRange(min=0, min_open=True),
            metavar="SECONDS",
            help="Kill a model call that runs longer (when MODEL is served here).",
        ),
        click.option(
            "-n",
            "--workers",
            type=click.IntRange(min=1),
            help="Model processes when MODEL is served here. Default: as many as keep all cores "
            "busy, or none with --dask.",
        ),
        click.option(
            "--to",
            "--url",
            "--connect",
            "to",
            metavar="URL|FILE|DIR",
            help="A running farm or UM-Bridge server: its URL, its connection file farm.json, or "
            "its run folder. Default: $FARM_CONNECTION, $FARM_URL, then ./farm-run.",
        ),
        click.argument("models", nargs=-1, metavar="[MODEL]..."),
    ):
        asked = option(asked)
    return asked


@contextlib.contextmanager
def open_farm(target: Target, out: Path) -> Iterator[OpenFarm]:
    """A client of the farm that runs the sweep `out`; models are served until the block ends.

    Raises click.UsageError, FarmError.
    """
    if target.models and target.to:
        raise click.UsageError("give MODEL to serve it here, or --to for a running farm, not both")
    if target.dask and not target.models:
        raise click.UsageError("--dask needs the MODEL that the Dask cluster is to run")
    if target.mpi is not None and (target.dask or not target.models):
        raise click.UsageError("--mpi needs the MODEL, which is then served here and not by Dask")
    if target.dask and target.time_limit_s is not None:
        raise click.UsageError("--time-limit kills model processes; those of Dask are not farm's")
    if target.models:
        with _served(target, out) as own, connect(str(own.connection_file)) as client:
            start = max(_start(client), PER_WORKER * _workers(target))
            yield OpenFarm(client, start, None, own.hurry)
        return
    current = connect(target.to)

    def reconnect() -> Client:
        # A farm that was started anew has another address and other keys.
        nonlocal current
        new = connect(target.to)
        current.close()
        current = new
        return new

    try:
        yield OpenFarm(current, _start(current), reconnect)
    finally:
        current.close()


@contextlib.contextmanager
def _served(target: Target, out: Path) -> Iterator[Farm]:
    """A farm in this process for the block.

    Its run folder, with what the models print, stays when the farm fails, or a call's answer.
    """
    folder = out.with_name(out.name + ".run")
    settings = Settings(
        port=0,
        dir=folder,
        workers=_workers(target),
        time_limit_s=target.time_limit_s,
        dask=target.dask,
        dask_slots=target.dask_slots,
        mpi=target.mpi,
        mpi_launch=target.mpi_launch,
    )
    farm = Farm(list(target.models), settings, doors=False)
    try:
        with running(farm):
            yield farm
    except WorkersFailed as error:
        said = f" (what the models said is in {folder}/logs)" * _is_of_worth(folder)
        raise click.ClickException(f"{error}{said}") from None
    except (SweepError, click.ClickException, KeyboardInterrupt):
        shutil.rmtree(folder, ignore_errors=True)  # the sweep is refused: no fault of the models
        raise
    else:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        if not _is_of_worth(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_of_worth(folder: Path) -> bool:
    """Whether models have said something there, or another farm lives in it."""
    return any(folder.glob("logs/*.log")) or (folder / "farm.json").exists()


def _workers(target: Target) -> int:
    if target.workers or target.dask:
        return target.workers or 0
    return max(1, len(os.sched_getaffinity(0)) // (target.mpi or 1))


def _start(client: Client) -> int:
    """Points to give at first: a farm tells how many calls it runs at once, other servers few."""
    try:
        slots: int = sum(worker["slots"] for worker in client.status()["workers"])
    except (FarmError, KeyError):
        return START
    return max(START, PER_WORKER * slots)
