"""The options that have models run on groups of MPI ranks, for all commands that start workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from farm.provision.group import DEFAULT_LINE

Command = Callable[..., Any]


def mpi_options(command: Command) -> Command:
    """Give a command `--mpi` and `--mpi-launch`; it gets them as `mpi` and `mpi_launch`."""
    for option in (
        click.option(
            "--mpi-launch",
            metavar="LINE",
            help=f"What starts a group.  [default: {DEFAULT_LINE}]",
        ),
        click.option(
            "--mpi",
            type=click.IntRange(1),
            metavar="RANKS",
            help="Each worker is a group of so many MPI ranks, started by --mpi-launch.",
        ),
    ):
        command = option(command)
    return command
