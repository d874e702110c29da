"""`farm url`: print the address of a running farm with its token, for clients elsewhere."""

from __future__ import annotations

from pathlib import Path

import click
import orjson

from farm.errors import Unavailable
from farm.transports.connection import Connection, read_connection

EXAMPLES = """\b
Examples:
  farm url                      the farm of ./farm-run
  farm url farm-4711            the farm of another run folder, such as one of a SLURM job
  FARM_URL=$(farm url) python client.py
  farm url --json | jq -r .token
"""


@click.command(epilog=EXAMPLES)
@click.argument(
    "folder", type=click.Path(path_type=Path), default=Path("farm-run"), metavar="[DIR|FILE]"
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print address, token and URL as one JSON object."
)
def url(folder: Path, as_json: bool) -> None:
    """Print the HTTP address of a farm with its token. Anyone who has it can call the models.

    DIR is the run folder, FILE the connection file farm.json in it.  [default: farm-run]
    """
    connection = read_connection(folder)
    if not connection.url:
        raise Unavailable(f"the farm of {folder} serves no HTTP, or is not up yet")
    if as_json:
        parts = {"address": connection.url, "token": connection.token, "grpc": connection.grpc}
        parts["url"] = with_token(connection)
        click.echo(orjson.dumps(parts, option=orjson.OPT_INDENT_2).decode())
    else:
        click.echo(with_token(connection))


def with_token(connection: Connection) -> str:
    """Return the HTTP address with the token in it, for clients that cannot set headers."""
    return f"http://farm:{connection.token}@{connection.url.removeprefix('http://')}"
