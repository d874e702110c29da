"""`farm logs` of a running farm: what reaches a terminal, and what a script gets."""

from __future__ import annotations

import os
import pty
import re
import subprocess

import pytest

import farm
from farm.cli import run
from farm.cli.logs import on_terminal
from tests.support.dispatcher_farm import FARM, LIMIT_S, Served, environment, farm_of

MODEL = """
import farm

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def loud(x):
    print("\\x1b[31mred", x[0])
    return x
"""


fresh_farm = farm_of(MODEL)


@pytest.fixture(scope="module")
def served(fresh_farm: Served) -> Served:
    assert run(["call", "7", "--to", str(fresh_farm.folder)]) == 0
    return fresh_farm


def the_worker(served: Served) -> str:
    with farm.connect(served.folder) as client:
        (row,) = client.status()["workers"]
    return str(row["name"])


@pytest.mark.parametrize("native", [True, False])
def test_a_script_gets_what_the_worker_printed(
    capsys: pytest.CaptureFixture[str], served: Served, native: bool
) -> None:
    target = str(served.folder) if native else served.connection.url
    assert run(["logs", the_worker(served), "--lines", "1", "--to", target]) == 0
    assert capsys.readouterr().out == "\x1b[31mred 7.0\n"


def test_python_gets_the_same(served: Served) -> None:
    with farm.connect(served.folder) as client:
        assert client.log(the_worker(served), lines=1) == "\x1b[31mred 7.0\n"
        assert client.log(the_worker(served)).startswith("--- farm starts a worker process")


def test_a_terminal_is_not_obeyed(served: Served) -> None:
    ours, its = pty.openpty()
    try:
        words = [*FARM, "logs", the_worker(served), "--lines", "1", "--to", str(served.folder)]
        subprocess.run(words, stdout=its, env=environment(), timeout=LIMIT_S, check=True)
        assert os.read(ours, 1000) == b"\\x1b[31mred 7.0\r\n"  # the line end is the terminal's
    finally:
        os.close(ours)
        os.close(its)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\nlines\t1\n", "plain\nlines\t1\n"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("10 %\r20 %\r\nend", "10 %\\r20 %\nend"),
        ("left \N{RIGHT-TO-LEFT OVERRIDE}right", "left \\u202eright"),
        ("déjà vu", "déjà vu"),
    ],
)
def test_control_characters_are_shown_as_escapes(text: str, shown: str) -> None:
    assert on_terminal(text) == shown


def test_without_a_worker_all_are_listed(
    capsys: pytest.CaptureFixture[str], served: Served
) -> None:
    assert run(["logs", "--to", str(served.folder)]) == 0
    assert re.search(r"/\d+-[0-9a-f]+ +here +\d+ B", capsys.readouterr().out)


def test_a_worker_that_is_not_known_is_one_line(
    capsys: pytest.CaptureFixture[str], served: Served
) -> None:
    assert run(["logs", "nobody", "--to", str(served.folder)]) == 2
    assert "the farm has no worker nobody" in capsys.readouterr().err
