"""`farm logs`: print what a worker prints, or list the workers whose output can be read."""

from __future__ import annotations

import contextlib
import sys
import time

import click
from rich.console import Console

from farm.cli.options import target_option
from farm.cli.tables import Columns, printable, rows_table, size
from farm.client import connect
from farm.client.client import Client

LOOK_EVERY_S = 0.5

EXAMPLES = """\b
Examples:
  farm logs                       the workers whose output can be read
  farm logs node3/4412            the last lines of one; the beginning of its name is enough
  farm logs node3/4412 -f         and what it prints from now on, until Ctrl-C
"""


@click.command(epilog=EXAMPLES)
@click.argument("worker", required=False)
@target_option
@click.option("-f", "--follow", is_flag=True, help="Go on with what it prints, until Ctrl-C.")
@click.option(
    "--lines",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="Lines to begin with, of the last 64 KiB.",
)
def logs(worker: str | None, target: str | None, follow: bool, lines: int) -> None:
    """Print the last lines that WORKER has printed, also one that left lately.

    On a terminal, control characters are shown as escapes.
    """
    with connect(target) as client:
        if worker is None:
            _list(client)
            return
        piece = client.ask("log", worker=worker, lines=str(lines))
        _print(piece["text"])
        with contextlib.suppress(KeyboardInterrupt):
            while follow:
                if not piece["text"]:
                    time.sleep(LOOK_EVERY_S)
                piece = client.ask("log", worker=piece["worker"], after=piece["next"])
                _print(piece["text"])


def _print(text: str) -> None:
    # With `color`, click leaves a script everything that the worker printed.
    click.echo(on_terminal(text) if sys.stdout.isatty() else text, nl=False, color=True)


def on_terminal(text: str) -> str:
    """Return the text with all but line ends and tabs that a terminal would obey as escapes."""
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in lines)


def _list(client: Client) -> None:
    now = time.time()
    rows = client.ask("logs")
    if not rows:
        click.echo("no worker has a log in the farm's folder", err=True)
        return
    columns: Columns = {
        "worker": "worker",
        "state": lambda row: "here" if row["here"] else "left",
        ">size": lambda row: size(row["bytes"]),
        ">written": lambda row: f"{max(0.0, now - row['written']):.0f} s ago",
        "file": "file",
    }
    Console().print(rows_table(columns, rows))
