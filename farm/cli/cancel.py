"""`farm cancel`: cancel the waiting calls of a client."""

from __future__ import annotations

import click

from farm.cli.options import target_option
from farm.client import connect

EXAMPLES = """\b
Examples:
  farm cancel sweep-3f2a                what this client, in the table of farm status, has waiting
  farm cancel sampler --chain "chain 3" only one of its chains
"""


@click.command(epilog=EXAMPLES)
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
    click.echo(f"cancelled {count} waiting call{'' if count == 1 else 's'}")
