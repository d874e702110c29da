"""`farm restart`: start another process in place of a worker."""

from __future__ import annotations

import click

from farm.cli.options import target_option
from farm.cli.tables import printable
from farm.client import connect

EXAMPLES = """\b
Examples:
  farm restart node3/4412-9f0c       replace a worker that hangs
  farm restart node3/4412            the beginning of its name is enough
"""


@click.command(epilog=EXAMPLES)
@click.argument("worker")
@target_option
def restart(worker: str, target: str | None) -> None:
    """Kill WORKER, in the middle of a call too, and start another process in its place.

    The call that it runs is tried again, like that of any lost worker. This is for a worker that
    hangs or has grown too large; `farm drain` waits for the running call.
    """
    with connect(target) as client:
        name = printable(client.restart(worker))
    click.echo(f"{name} is killed and started again")
