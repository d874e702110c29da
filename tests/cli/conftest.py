"""Commands of `farm` that run in this process, and a farm with a beam that they share."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import pytest

from farm.cli import run
from tests.support.dispatcher_farm import BEAM, Served, serving

Command = Callable[..., tuple[int, str, str]]
"""Runs a command with these words: one text that a shell would split, and further words."""


def command_of(capsys: pytest.CaptureFixture[str], verb: str) -> Command:
    def command(words: str, *more: str) -> tuple[int, str, str]:
        status = run([verb, *shlex.split(words), *more])
        return status, *capsys.readouterr()

    return command


@pytest.fixture
def sweep(capsys: pytest.CaptureFixture[str]) -> Command:
    return command_of(capsys, "sweep")


@pytest.fixture
def experiment(capsys: pytest.CaptureFixture[str]) -> Command:
    return command_of(capsys, "experiment")


@pytest.fixture(scope="session")
def beam_farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A farm of two workers."""
    folder = tmp_path_factory.mktemp("beam")
    (folder / "beam.py").write_text(BEAM)
    with serving(folder, "beam.py", "--workers", "2") as farm:
        yield farm


GATE = """
import os, time
import farm

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def gate(x):
    while not os.path.exists("open"):
        time.sleep(0.002)
    return x
"""


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Served]:
    """A farm whose only worker holds its first call until a file `open` is in the folder."""
    (tmp_path / "m.py").write_text(GATE)
    with serving(tmp_path, "m.py", "--workers", "1") as served:
        served.wait_for_workers(1)
        yield served
        (tmp_path / "open").touch()


def sent_by_somebody(path: Path, model: Path) -> None:
    """Make a sweep file name another model, as its author could."""
    with h5py.File(path, "r+") as file:
        attrs = file["provenance"].attrs
        plan = json.loads(attrs["plan"])
        target = json.loads(plan["provenance"]["target"]) | {"models": [str(model)]}
        plan["provenance"]["target"] = attrs["target"] = json.dumps(target)
        attrs["plan"] = json.dumps(plan)
