"""Options and checks that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from farm.provision.local.group import DEFAULT_LINE

Command = Callable[..., Any]


class Renamed(click.Option):
    """An option that old spellings set as well, which neither help nor completion shows.

    old: these spellings.
    """

    def __init__(self, *arguments: Any, old: tuple[str, ...] = (), **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._old = old

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Make the parser of a command line know all spellings."""
        shown = self.opts
        self.opts = [*shown, *self._old]
        try:
            super().add_to_parser(parser, ctx)
        finally:
            self.opts = shown


TARGET = "URL|FILE|DIR"
TARGET_HELP = (
    "The farm: its URL, its connection file farm.json, or its run folder. "
    "Default: $FARM_CONNECTION, $FARM_URL, then ./farm-run."
)

target_option = click.option("--to", "target", metavar=TARGET, help=TARGET_HELP)


def target_argument(command: Command) -> Command:
    """Add `[TARGET]` and `--to`, two ways to name the farm; the command receives `target`."""

    @functools.wraps(command)
    def with_target(*, named: str | None, to: str | None, **values: Any) -> Any:
        if named is not None and to is not None:
            raise click.UsageError(f"expected one farm, got {named!r} and --to {to!r}")
        return command(target=named if to is None else to, **values)

    asked: Command = click.option("--to", metavar=TARGET, help=TARGET_HELP)(with_target)
    return click.argument("named", metavar="[TARGET]", required=False)(asked)


time_limit_option = click.option(
    "--time-limit",
    "time_limit_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Kill a model process when one of its calls runs longer.",
)


fork_option = click.option(
    "--fork/--no-fork",
    default=True,
    help="Fork model processes from one that has loaded numpy, if there are several; or start each "
    "as a fresh interpreter.  [default: fork]",
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
