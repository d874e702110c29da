"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from farm.cli import run
from farm.cli.options import new_file, target_option


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
