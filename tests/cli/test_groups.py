"""Misspelt commands are answered with those that they resemble."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from farm.cli import cli
from farm.cli.groups import no_such_command
from tests.support.dispatcher_farm import run_here


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("sttus", "No such command 'sttus'; did you mean 'status'?"),
        ("STATUS", "No such command 'STATUS'; did you mean 'status'?"),
        ("record exprot", "No such command 'exprot'; did you mean 'export'?"),
        ("experiment serv", "No such command 'serv'; did you mean 'serve'?"),
        ("sweep wach s.h5", "No such command 'wach'; did you mean 'watch'?"),
    ],
)
def test_the_similar_name_is_suggested(tmp_path: Path, line: str, complaint: str) -> None:
    assert run_here(*line.split(), cwd=tmp_path) == (2, "", f"farm: error: {complaint}\n")


@pytest.mark.parametrize(
    ("line", "option"), [("status --jsno", "--json"), ("sweep --parm x=0:1", "--param")]
)
def test_the_similar_option_is_suggested(tmp_path: Path, line: str, option: str) -> None:
    status, _, errors = run_here(*line.split(), cwd=tmp_path)
    assert status == 2
    assert re.search(rf"Did you mean.*{option}", errors)


def test_a_name_like_none_gets_the_list() -> None:
    assert no_such_command("reap", ["call", "status"]) == (
        "No such command 'reap'; expected one of: call, status"
    )


def test_a_model_like_a_subcommand_is_swept(tmp_path: Path) -> None:
    (tmp_path / "status.py").touch()
    (tmp_path / "wach").touch()
    for model in ("status.py", "wach", "statu.x:Model"):
        _, _, errors = run_here("sweep", model, cwd=tmp_path)
        assert "output file" in errors


@pytest.mark.parametrize("word", ["--param", "--design", "Examples:"])
def test_the_first_screen_of_the_help_on_sweeps(tmp_path: Path, word: str) -> None:
    status, shown, _ = run_here("sweep", "--help", cwd=tmp_path)
    assert status == 0
    assert any(word in line for line in shown.splitlines()[:24])


@pytest.mark.parametrize(
    ("words", "begun", "expected"),
    [
        ([], "st", ["status", "stop"]),
        (["sweep"], "wa", ["watch"]),
        (["sweep"], "--des", ["--design"]),
        (["sweep", "model.py"], "--des", ["--design"]),
        (["worker"], "--co", []),
    ],
)
def test_words_are_completed(words: list[str], begun: str, expected: list[str]) -> None:
    completion = ShellComplete(cli, {}, "farm", "_FARM_COMPLETE")
    assert [item.value for item in completion.get_completions(words, begun)] == expected
