"""The farm behind a sweep: a running one, or one that lives as long as the sweep."""

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

from farm.cli.mpi_options import mpi_options
from farm.client import Client, connect
from farm.errors import FarmError
from farm.provision.local import WorkersFailed
from farm.server.farm import Farm, running
from farm.settings import Settings
from farm.sweep.errors import SweepError
from farm.sweep.window import PER_WORKER, START

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
        """As text; `from_json` reads it back."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Target:
        """Read what `to_json` wrote; no farm in particular from anything else."""
        try:
            data = json.loads(text)
            return Target(**data | {"models": tuple(data["models"])})
        except (ValueError, TypeError, KeyError):
            return Target()

    def or_else(self, other: Target) -> Target:
        """This farm, or the other one when this says neither models nor where."""
        return self if self.models or self.to else other


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
