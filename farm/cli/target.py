"""The option that says which farm a command talks to."""

from __future__ import annotations

import click

target_option = click.option(
    "--to",
    "target",
    metavar="URL|FILE|DIR",
    help="Which farm: its URL, its connection file farm.json, or its run folder. "
    "Default: $FARM_CONNECTION, $FARM_URL, then ./farm-run.",
)
