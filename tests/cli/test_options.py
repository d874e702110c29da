"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from farm.cli import cli, options, run
from farm.cli.options import (
    MOST_PER_CPU,
    new_file,
    target_argument,
    target_option,
    workers_option,
)


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


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> click.Command:
    @click.command()
    @workers_option("count", 1, "How many.")
    def command(count: int | None) -> None:
        click.echo(f"starts {count}")

    monkeypatch.setattr(options, "allowed_cpus", lambda: 2)
    return command


@pytest.mark.parametrize("words", ["-n 128", "--workers 128", "-n 5000 --many", "--many -n 5000"])
def test_numbers_of_workers_that_start_without_a_question(
    workers: click.Command, words: str
) -> None:
    assert CliRunner().invoke(workers, words.split()).output.startswith("starts ")


def test_more_workers_than_a_machine_can_bear_are_refused(workers: click.Command) -> None:
    found = CliRunner().invoke(workers, ["-n", str(2 * MOST_PER_CPU + 1)])
    assert found.exit_code == 2
    text = "129 workers on 2 CPUs of this machine, expected at most 128; --many starts them anyway"
    assert text in found.output


@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("n", 1), ("", 1)])
def test_a_person_is_asked(
    workers: click.Command, answer: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "is_interactive", lambda: True)
    found = CliRunner().invoke(workers, ["-n", "5000"], input=f"{answer}\n")
    assert found.exit_code == status
    assert "5000 workers on 2 CPUs of this machine: start them? [y/N]" in found.output
    assert ("starts 5000" in found.output) == (status == 0)


@pytest.mark.parametrize("verb", ["serve", "worker", "sweep run", "experiment run"])
def test_every_command_that_starts_workers_names_their_number_alike(
    capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    assert run([*verb.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert "-n, --workers COUNT" in text
    assert "--many" in text
