"""`farm drain`: ask a worker to leave."""

from __future__ import annotations

import click

from farm.cli.options import target_option
from farm.cli.tables import printable
from farm.client import connect

EXAMPLES = """\b
Examples:
  farm drain node3/4412-9f0c       let a worker leave after its calls
  farm drain node3/4412            the beginning of its name is enough
"""


@click.command(epilog=EXAMPLES)
@click.argument("worker")
@target_option
def drain(worker: str, target: str | None) -> None:
    """Let WORKER finish its running calls and leave; no other one starts in its place.

    Calls that wait at it run elsewhere.
    """
    with connect(target) as client:
        name = printable(client.drain(worker))
    click.echo(f"{name} finishes its calls and leaves")
