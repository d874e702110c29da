"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from farm.cli import cli, run
from farm.cli.options import Renamed, new_file, target_argument, target_option


def test_it_hands_on_what_is_given_and_none_otherwise() -> None:
    @click.command()
    @target_option
    def command(target: str | None) -> None:
        click.echo(repr(target))

    runner = CliRunner()
    assert runner.invoke(command, ["--to", "http://node3:4242"]).output == "'http://node3:4242'\n"
    assert runner.invoke(command, []).output == "None\n"


def test_a_file_to_write_must_be_new(tmp_path: Path) -> None:
    assert new_file(tmp_path / "out.csv") == tmp_path / "out.csv"
    (tmp_path / "out.csv").touch()
    with pytest.raises(click.UsageError, match=r"out.csv exists; name another file"):
        new_file(tmp_path / "out.csv")


@pytest.mark.parametrize("verb", ["sweep", "experiment"])
def test_reports_have_the_same_option(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    assert run([verb, "plot", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "-o, --out FILE File for the report. [default: " in text
    assert "with the ending .html]" in text


def test_a_target_is_an_argument_or_an_option() -> None:
    @click.command()
    @target_argument
    @click.option("--json", "as_json", is_flag=True)
    def command(target: str | None, as_json: bool) -> None:
        """Show something."""
        click.echo(f"{target!r} {as_json}")

    runner = CliRunner()
    assert runner.invoke(command, ["run", "--json"]).output == "'run' True\n"
    assert runner.invoke(command, ["--to", "run"]).output == "'run' False\n"
    assert runner.invoke(command, []).output == "None False\n"
    both = runner.invoke(command, ["run", "--to", "other"])
    assert both.exit_code == 2
    assert "expected one farm, got 'run' and --to 'other'" in both.output
    assert "Show something." in runner.invoke(command, ["--help"]).output


def test_each_verb_without_another_argument_takes_the_farm_as_one() -> None:
    with click.Context(cli) as context:
        verbs = [cli.get_command(context, name) for name in cli.list_commands(context)]
    with_target = [
        [param.name for param in verb.params if isinstance(param, click.Argument)]
        for verb in verbs
        if verb is not None and any("--to" in param.opts for param in verb.params)
    ]
    assert len(with_target) > 5
    assert all(with_target), "a verb with --to alone should use @target_argument"


def test_old_spellings_work_and_are_not_shown() -> None:
    @click.command()
    @click.option("--to", "where", cls=Renamed, old=("--connect",), default="here")
    def command(where: str) -> None:
        click.echo(where)

    runner = CliRunner()
    for line in (["--to", "there"], ["--connect", "there"], ["--connect=there"]):
        assert runner.invoke(command, line).output == "there\n"
    assert runner.invoke(command, []).output == "here\n"
    shown = runner.invoke(command, ["--help"]).output
    assert "--to" in shown
    assert "--connect" not in shown
