"""The command `farm` itself: help, version, and mistakes in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from farm.cli import COMMANDS, run
from farm.version import __version__
from tests.cli.conftest import assert_one_line
from tests.support.dispatcher_farm import run_here

NEW = "--param x=0:1 --design grid:2 -o s.h5"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    for command in COMMANDS:
        assert f"\n  {command} " in out


def test_help_imports_no_command() -> None:
    code = (
        "import sys; from farm.cli import COMMANDS, run; run(['--help']);"
        "sys.exit(any(where.split(':')[0] in sys.modules for where in COMMANDS.values()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "command",
    [
        *COMMANDS,
        *(f"record {verb}" for verb in ("status", "export", "merge", "import")),
        *(f"experiment {verb}" for verb in ("serve", "run", "status", "best", "plot", "export")),
        *(f"sweep {verb}" for verb in ("run", "extend", "sensitivity")),
    ],
)
def test_each_command_shows_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command.split(), "--help"]) == 0
    out = capsys.readouterr().out
    _, examples = out.split("Examples:\n")
    assert examples.lstrip().startswith(f"farm {command.split()[0]}")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert __version__ in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "complaint", "status"),
    [
        ("reap", "No such command 'reap'", 2),
        ("serve", "missing MODEL", 2),
        ("serve a.py --port 99999", "port is 99999; expected 0 to 65535", 2),
        ("serve a.py --config nosuch.toml", "no settings file nosuch.toml", 2),
        ("serve a.py --workers two", "'two' is not a valid integer", 2),
        ("call 1,2 --config {", "not a JSON object", 2),
        ("url --to http://127.0.0.1:1", "is an address", 2),
        ("url here --to there", "expected one farm, got 'here' and --to 'there'", 2),
        ("call 1,2 --to nosuch.json", "nosuch.json", 6),
        ("status --to http://127.0.0.1:1", "127.0.0.1", 6),
        (f"sweep --to nosuch.json {NEW}", "nosuch.json", 6),
        ("worker a.py --to nosuch.json", "no connection file nosuch.json", 6),
        ("worker a.py --to http://node3:4242", "a URL has no keys; expected", 6),
        ("url", "no connection file farm-run", 6),
    ],
)
def test_a_mistake_or_a_farm_that_is_not_there_is_one_line(
    tmp_path: Path, line: str, complaint: str, status: int
) -> None:
    assert_one_line(run_here(*line.split(), cwd=tmp_path), complaint, status)
