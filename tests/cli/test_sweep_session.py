"""The options of a sweep's session."""

from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner

from farm.cli.sweep_session import rule_options


@click.command()
@rule_options
def show(**rules: Any) -> None:
    limit = rules.pop("max_failures")
    click.echo(f"{limit and limit(200)} {sorted(rules)}")


@pytest.mark.parametrize(("text", "limit"), [("10", 10), ("5%", 10), ("0", 0), ("0.6%", 1)])
def test_a_limit_of_failures_is_a_number_or_a_share(text: str, limit: int) -> None:
    shown = CliRunner().invoke(show, ["--max-failures", text]).output
    assert shown == f"{limit} ['in_flight', 'max_hours', 'priority']\n"


@pytest.mark.parametrize("text", ["many", "x%", ""])
def test_other_limits_are_refused(text: str) -> None:
    result = CliRunner().invoke(show, ["--max-failures", text])
    assert result.exit_code == 2
    assert "expected 10 or 5%" in result.output
