"""Sweep files and journals of an earlier farm open, resume and give the same answers."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.system.earlier.write import answers, shown, sweep, table

EARLIER = Path(__file__).with_name("earlier")
EVENTS = 13
"""Events in each journal: three setups, a warm start, three asks and six tells."""

SAID: dict[str, Any] = json.loads((EARLIER / "answers.json").read_text())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Copy the files, so that the test may change them."""
    return Path(shutil.copytree(EARLIER, tmp_path / "earlier"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["finished.h5", "killed.h5"])
def test_a_sweep_is_read(folder: Path, name: str) -> None:
    assert table(folder / name) == SAID[name]


def test_a_killed_sweep_goes_on(folder: Path) -> None:
    before = [row for row in SAID["killed.h5"] if row[-1] == "done"]
    assert 0 < len(before) < len(SAID["killed.h5 resumed"]) - 1
    sweep("--resume", "killed.h5", "beam.py", "-n", "1", folder=folder)
    assert table(folder / "killed.h5") == SAID["killed.h5 resumed"]
    assert not (folder / "killed.h5.journal").exists()


def test_a_sweep_without_its_file_is_made_of_its_journal(folder: Path) -> None:
    (folder / "killed.h5").unlink()
    assert table(folder / "killed.h5") == SAID["killed.h5"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["closed.db", "killed.db"])
def test_a_journal_is_read_and_left_as_it_is(folder: Path, name: str) -> None:
    before = (folder / name).read_bytes()
    assert shown(folder / name) == SAID[name]
    assert (folder / name).read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["closed.db", "killed.db"])
def test_experiments_go_on(folder: Path, name: str) -> None:
    assert answers(folder / name) == SAID[f"{name} resumed"]
    assert answers(folder / name)[-1] == {"strat_id": 4}, "and again, as it is written now"
    assert (folder / name).read_bytes().startswith(b"farm experiments journal 2\n")
    with contextlib.closing(sqlite3.connect(folder / f"{name}.sqlite")) as kept:
        assert kept.execute("SELECT count(*) FROM event").fetchone() == (EVENTS,)
    assert {p.name for p in folder.glob(f"{name}*")} == {name, f"{name}.sqlite"}
