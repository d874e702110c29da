"""Journals of earlier releases: read unchanged, rewritten when opened, never lost."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path

import orjson
import pytest

from farm.errors import Unavailable
from farm.experiment.state import journal as journals
from farm.experiment.state import sqlite
from farm.experiment.state.events import Event, Finished, to_json
from farm.experiment.state.journal import ExperimentJournal, is_served, read_journal
from farm.storage import journal as storage
from tests.support.coroutines import LIMIT_S

COUNT = 2500


def events(count: int) -> list[Finished]:
    return [Finished(experiment=k % 3, time=0.5, strategy=k) for k in range(count)]


def numbers(found: Iterable[Event]) -> list[int]:
    return [event.strategy for event in found if isinstance(event, Finished)]


def connect(path: Path) -> contextlib.closing[sqlite3.Connection]:
    return contextlib.closing(sqlite3.connect(path, isolation_level=None))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a journal and lock file as left by a stopped server of an earlier release."""
    path = tmp_path / "experiments.db"
    with connect(path) as file:
        file.execute(f"PRAGMA application_id = {sqlite.FARM}")
        file.execute("PRAGMA user_version = 1")
        file.execute(
            "CREATE TABLE event "
            "(sequence INTEGER PRIMARY KEY, experiment INTEGER NOT NULL, body TEXT NOT NULL)"
        )
        rows = [
            (event.experiment, orjson.dumps(to_json(event)).decode()) for event in events(COUNT)
        ]
        file.execute("BEGIN")
        file.executemany("INSERT INTO event (experiment, body) VALUES (?, ?)", rows)
        file.execute("COMMIT")
    path.with_name("experiments.db.lock").touch()
    return path


def test_it_is_read_and_left_as_it_is(path: Path) -> None:
    before = path.read_bytes()
    assert numbers(read_journal(path)) == list(range(COUNT))
    assert not is_served(path)
    assert path.read_bytes() == before


def test_it_goes_on_in_the_new_format(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = path.read_bytes()
    journal = ExperimentJournal(path)
    assert "has a new format now; the old file is experiments.db.sqlite" in caplog.text
    assert numbers(journal.load()) == list(range(COUNT))
    journal.append([Finished(experiment=0, time=1.0, strategy=COUNT)]).result(LIMIT_S)
    journal.close()
    assert numbers(read_journal(path)) == list(range(COUNT + 1))
    kept = path.with_name("experiments.db.sqlite")
    assert sorted(path.parent.iterdir()) == [path, kept]
    assert kept.read_bytes() == before
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
@pytest.mark.parametrize("failing", ["start", "keep_as", "replace"])
def test_a_failure_in_the_middle_leaves_the_old_one(
    path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patched:
        of = {"start": storage.Journal, "keep_as": journals, "replace": os}
        patched.setattr(of[failing], failing, full)
        with pytest.raises(Unavailable, match="cannot be used: No space left"):
            ExperimentJournal(path)
    assert numbers(read_journal(path)) == list(range(COUNT))
    path.with_name("experiments.db.converted").write_bytes(b"of a killed process")
    ExperimentJournal(path).close()
    assert numbers(read_journal(path)) == list(range(COUNT))
    assert {p.name for p in path.parent.iterdir()} == {"experiments.db", "experiments.db.sqlite"}


def test_a_server_of_before_keeps_this_one_out(path: Path) -> None:
    before = path.read_bytes()
    lock = os.open(path.with_name("experiments.db.lock"), os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert is_served(path)
    with pytest.raises(Unavailable, match="another server has the journal"):
        ExperimentJournal(path)
    assert path.read_bytes() == before
    os.close(lock)
    ExperimentJournal(path).close()


def test_another_program_that_writes_to_it_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_S", 0.01)
    with connect(path) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(Unavailable, match="database is locked"):
            ExperimentJournal(path)
        other.execute("ROLLBACK")
    ExperimentJournal(path).close()


def test_another_programs_database_is_left_alone(path: Path) -> None:
    with connect(path) as other:
        other.execute("PRAGMA application_id = 1")
    before = path.read_bytes()
    for use in (ExperimentJournal, lambda p: list(read_journal(p))):
        with pytest.raises(Unavailable, match="is not a journal of experiments"):
            use(path)
    assert path.read_bytes() == before


def test_another_version_is_told(path: Path) -> None:
    with connect(path) as other:
        other.execute("PRAGMA user_version = 7")
    for use in (ExperimentJournal, lambda p: list(read_journal(p))):
        with pytest.raises(Unavailable, match="has version 7, this farm writes 2"):
            use(path)


def test_damage_is_found(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096 * 3)
        file.write(b"\x5a" * 4096)
    before = path.read_bytes()
    with pytest.raises(Unavailable, match="cannot be used"):
        ExperimentJournal(path)
    assert path.read_bytes() == before
    assert not path.with_name("experiments.db.sqlite").exists()


def test_a_missing_event_is_found(path: Path) -> None:
    with connect(path) as file:
        file.execute("DELETE FROM event WHERE sequence = 3")
    for use in (ExperimentJournal, lambda p: list(read_journal(p))):
        with pytest.raises(Unavailable, match="event 3 is missing"):
            use(path)
