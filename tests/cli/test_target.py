"""The option --to, which several commands share."""

from __future__ import annotations

import click
from click.testing import CliRunner

from farm.cli.target import target_option


def test_it_hands_on_what_is_given_and_none_otherwise() -> None:
    @click.command()
    @target_option
    def command(target: str | None) -> None:
        click.echo(repr(target))

    runner = CliRunner()
    assert runner.invoke(command, ["--to", "http://node3:4242"]).output == "'http://node3:4242'\n"
    assert runner.invoke(command, []).output == "None\n"
