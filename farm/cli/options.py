"""Options and checks that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from farm.provision.local.group import DEFAULT_LINE

Command = Callable[..., Any]

target_option = click.option(
    "--to",
    "target",
    metavar="URL|FILE|DIR",
    help="The farm: its URL, its connection file farm.json, or its run folder. "
    "Default: $FARM_CONNECTION, $FARM_URL, then ./farm-run.",
)


time_limit_option = click.option(
    "--time-limit",
    "time_limit_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Kill a model process when one of its calls runs longer.",
)


def mpi_options(command: Command) -> Command:
    """Add `--mpi` and `--mpi-launch` to a command, which receives `mpi` and `mpi_launch`."""
    for option in (
        click.option(
            "--mpi-launch",
            metavar="LINE",
            help=f"Command line that starts a group.  [default: {DEFAULT_LINE}]",
        ),
        click.option(
            "--mpi",
            type=click.IntRange(1),
            metavar="RANKS",
            help="MPI ranks per worker: each worker is a group of ranks, see --mpi-launch.",
        ),
    ):
        command = option(command)
    return command


def record_options(command: Command) -> Command:
    """Add `--record` and `--reuse` to a command, which receives `record` and `reuse`."""
    for option in (
        click.option(
            "--reuse",
            is_flag=True,
            help="Answer exact repeats of evaluations from the record, and join calls for the same "
            "evaluation. Needs the model's `version`, or a model in one file: docs/record.md.",
        ),
        click.option(
            "--record",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Keep every evaluation of repeatable models in this file, for --reuse and "
            "`farm record export`.",
        ),
    ):
        command = option(command)
    return command


def report_option(source: str) -> Callable[[Command], Command]:
    """The option `-o`, `--out` of a command that writes a report.

    source: names, in the help text, the file whose name the report takes by default.
    """
    return click.option(
        "-o",
        "--out",
        type=click.Path(dir_okay=False, path_type=Path),
        help=f"File for the report.  [default: {source} with the ending .html]",
    )


def new_file(path: Path) -> Path:
    """Return `path`, which must not exist. Raises UsageError."""
    if path.exists():
        raise click.UsageError(f"{path} exists; name another file")
    return path
