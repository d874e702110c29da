"""Commands of `farm` that run in this process, and a farm with a beam that they share."""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import pytest
from rich.console import Console, Group, RenderableType

from farm.cli import run
from tests.support.dispatcher_farm import BEAM, Served, farm_of

Command = Callable[..., tuple[int, str, str]]
"""Runs a command with these words: one text that a shell would split, and further words."""


def command_of(capsys: pytest.CaptureFixture[str], verb: str) -> Command:
    def command(words: str, *more: str) -> tuple[int, str, str]:
        status = run([verb, *shlex.split(words), *more])
        return status, *capsys.readouterr()

    return command


def assert_one_line(found: tuple[int, str, str], complaint: str, status: int = 2) -> None:
    """A command ended with this status and printed one line, an error that has these words."""
    assert found[:2] == (status, "")
    assert found[2].startswith("farm: error: ")
    assert found[2].count("\n") == 1
    assert complaint in found[2]


def rendered(*parts: RenderableType, width: int = 160, height: int | None = None) -> str:
    """Return what a terminal of this size shows."""
    console = Console(width=width, height=height, record=True, file=io.StringIO())
    console.print(Group(*parts))
    return console.export_text()


@pytest.fixture
def sweep(capsys: pytest.CaptureFixture[str]) -> Command:
    return command_of(capsys, "sweep")


@pytest.fixture
def experiment(capsys: pytest.CaptureFixture[str]) -> Command:
    return command_of(capsys, "experiment")


beam_farm = farm_of(BEAM, workers=2, scope="session")
"""A farm of two workers."""


GATE = """
import os, time
import farm

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def gate(x):
    while not os.path.exists("open"):
        time.sleep(0.002)
    return x
"""


gate_farm = farm_of(GATE, scope="function")


@pytest.fixture
def held(gate_farm: Served, tmp_path: Path) -> Iterator[Served]:
    """A farm whose only worker holds its first call until a file `open` is in the folder."""
    yield gate_farm
    (tmp_path / "open").touch()


def sent_by_somebody(path: Path, model: Path) -> None:
    """Make a sweep file name another model, as its author could."""
    with h5py.File(path, "r+") as file:
        attrs = file["provenance"].attrs
        plan = json.loads(attrs["plan"])
        target = json.loads(plan["provenance"]["target"]) | {"models": [str(model)]}
        plan["provenance"]["target"] = attrs["target"] = json.dumps(target)
        attrs["plan"] = json.dumps(plan)
