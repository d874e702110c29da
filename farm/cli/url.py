"""`farm url`: print the address of a running farm with its token, for clients elsewhere."""

from __future__ import annotations

import os

import click
import orjson

from farm.cli.options import json_option, target_argument
from farm.client.client import RUN_FOLDER
from farm.doctor.target import is_url
from farm.errors import Unavailable
from farm.transports.connection import Connection, read_connection

EXAMPLES = """\b
Examples:
  farm url                      the farm of ./farm-run
  farm url --to farm-4711       the farm of another run folder, such as one of a SLURM job
  FARM_URL=$(farm url) python client.py
  farm url --json | jq -r .token
"""


@click.command(epilog=EXAMPLES)
@target_argument
@json_option("Print address, token and URL as one JSON object.")
def url(target: str | None, as_json: bool) -> None:
    """Print the HTTP address of a farm with its token. Anyone who has it can call the models.

    TARGET is the farm, as after --to: here its run folder or connection file.
    """
    named = target or os.environ.get("FARM_CONNECTION")
    where = named or RUN_FOLDER
    if is_url(where):
        raise click.UsageError(f"{where} is an address; expected a run folder or connection file")
    connection = read_connection(where, named=bool(named))
    if not connection.url:
        raise Unavailable(f"the farm of {where} serves no HTTP, or is not up yet")
    if as_json:
        parts = {"address": connection.url, "token": connection.token, "grpc": connection.grpc}
        parts["url"] = with_token(connection)
        click.echo(orjson.dumps(parts, option=orjson.OPT_INDENT_2).decode())
    else:
        click.echo(with_token(connection))


def with_token(connection: Connection) -> str:
    """Return the HTTP address with the token in it, for clients that cannot set headers."""
    return f"http://farm:{connection.token}@{connection.url.removeprefix('http://')}"
