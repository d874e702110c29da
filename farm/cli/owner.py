"""`farm cancel`, `drain` and `restart`: what the farm's owner does to its calls and workers."""

from __future__ import annotations

import click

from farm.cli.options import target_option
from farm.cli.tables import printable
from farm.client import connect
from farm.wording import counted

CANCEL = """\b
Examples:
  farm cancel sweep-3f2a                what this client, in the table of farm status, has waiting
  farm cancel sampler --chain "chain 3" only one of its chains
"""

DRAIN = """\b
Examples:
  farm drain node3/4412-9f0c       let a worker leave after its calls
  farm drain node3/4412            the beginning of its name is enough
"""

RESTART = """\b
Examples:
  farm restart node3/4412-9f0c       replace a worker that hangs
  farm restart node3/4412            the beginning of its name is enough
"""


@click.command(epilog=CANCEL)
@click.argument("client")
@click.option("--chain", metavar="NAME", help="Cancel only the calls of this chain.")
@target_option
def cancel(client: str, chain: str | None, target: str | None) -> None:
    """Cancel the waiting calls of CLIENT, a name in the table of `farm status`.

    Each call fails with the error Cancelled, and its text says that the owner of the farm cancelled
    it. Calls that run go on, and so does the program: stop it where it runs, or it may submit more.
    """
    with connect(target) as farm:
        count = farm.cancel_calls(client, chain=chain)
    click.echo(f"cancelled {counted(count, 'waiting call')}")


@click.command(epilog=DRAIN)
@click.argument("worker")
@target_option
def drain(worker: str, target: str | None) -> None:
    """Let WORKER finish its running calls and leave; no other one starts in its place.

    Calls that wait at it run elsewhere.
    """
    with connect(target) as client:
        name = printable(client.drain(worker))
    click.echo(f"{name} finishes its calls and leaves")


@click.command(epilog=RESTART)
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
