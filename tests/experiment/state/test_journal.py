"""The journal: confirmed events survive any kill, and damage is reported."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from farm.errors import Unavailable
from farm.experiment.state.events import Event, Finished, SetUp, Told, to_json
from farm.experiment.state.journal import FORMAT, ExperimentJournal, is_served, read_journal
from farm.storage import journal as storage
from farm.storage.frames import Record, read_frames
from tests.support.coroutines import LIMIT_S


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "experiments.db"


@pytest.fixture
def journal(path: Path) -> Iterator[ExperimentJournal]:
    journal = ExperimentJournal(path)
    yield journal
    journal.close()


def event(number: int, *, experiment: int = 0) -> Finished:
    return Finished(experiment=experiment, time=1.5, strategy=number)


def numbers(events: Iterable[Event]) -> list[int]:
    return [event.strategy for event in events if isinstance(event, Finished)]


def keep(journal: ExperimentJournal, *events: Event) -> None:
    journal.append(events).result(LIMIT_S)


def test_a_journal_that_was_only_read_is_one_plain_file(path: Path) -> None:
    for _ in range(2):
        journal = ExperimentJournal(path)
        assert list(journal.load()) == []
        journal.close()
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_events_come_back_in_order(journal: ExperimentJournal, path: Path) -> None:
    kept: list[Event] = [
        SetUp(experiment=0, time=1.5, config_text="[ä]\n", experiment_id="x", seed=2**60),
        Told(
            experiment=0,
            time=2.5,
            points=np.array([[[0.1, 1e-300]], [[1 / 3, 2.0]]]),
            outcomes=np.array([[1.0], [np.nan]]),
            ids=(4, None),
            extra={"note": "ä", "far": float("inf")},
        ),
    ]
    keep(journal, *kept)
    kept.append(event(7, experiment=1))
    keep(journal, kept[-1])
    expected = [to_json(one) for one in kept]
    assert [to_json(one) for one in read_journal(path)] == expected
    assert [to_json(one) for one in journal.load()] == expected
    journal.close()
    again = ExperimentJournal(path)
    keep(again, event(8))
    assert [to_json(one) for one in again.load()] == [*expected, to_json(event(8))]
    again.close()


def test_a_closed_journal_is_one_file(journal: ExperimentJournal, path: Path) -> None:
    keep(journal, event(0))
    journal.close()
    journal.close()
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_second_server_is_refused_and_a_reader_is_not(
    journal: ExperimentJournal, path: Path
) -> None:
    keep(journal, event(0))
    with pytest.raises(Unavailable, match="another server has the journal"):
        ExperimentJournal(path)
    assert len(list(read_journal(path))) == 1
    journal.close()
    ExperimentJournal(path).close()


def test_whether_it_is_served(path: Path) -> None:
    assert not is_served(path)
    ExperimentJournal(path).close()
    assert not is_served(path)
    server = ExperimentJournal(path)
    assert is_served(path)
    server.close()
    assert not is_served(path)


@pytest.mark.parametrize("content", [b"x", b"SQLite format 3\0", b"no journal, but long" * 100])
def test_what_is_no_journal(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    for use in (ExperimentJournal, lambda p: list(read_journal(p))):
        with pytest.raises(Unavailable, match="is not a journal of experiments; name another"):
            use(path)
    assert path.read_bytes() == content


def test_an_empty_file_becomes_a_journal(path: Path) -> None:
    path.touch()
    ExperimentJournal(path).close()
    assert list(read_journal(path)) == []


def test_damage_is_found_and_said_where(journal: ExperimentJournal, path: Path) -> None:
    for k in range(20):
        keep(journal, event(k))
    journal.close()
    ends = [frame.end for frame in read_frames(path, FORMAT)]
    data = bytearray(path.read_bytes())
    data[ends[11] + 30] ^= 1
    path.write_bytes(data)
    said = f"is damaged from byte {ends[11]} to {ends[12]}, .* head -c {ends[11]} "
    for use in (ExperimentJournal, lambda p: list(read_journal(p))):
        with pytest.raises(Unavailable, match=said):
            use(path)
    assert path.read_bytes() == data
    path.write_bytes(data[: ends[11]])  # as the message advises
    rest = ExperimentJournal(path)
    assert numbers(rest.load()) == list(range(12))
    rest.close()


def test_a_torn_tail_is_dropped_and_told(
    journal: ExperimentJournal, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for k in range(3):
        keep(journal, event(k))
    journal.close()
    os.truncate(path, path.stat().st_size - 5)
    assert numbers(read_journal(path)) == [0, 1]
    again = ExperimentJournal(path)
    assert "are no whole record, as after a kill: dropped" in caplog.text
    keep(again, event(3))
    again.close()
    assert numbers(read_journal(path)) == [0, 1, 3]


def test_what_is_no_event_is_told(path: Path) -> None:
    file = storage.Journal(path, FORMAT)
    file.append(Record(FORMAT.kinds[0], b'{"event": "none"}'))
    file.close()
    with pytest.raises(Unavailable, match="cannot be used: event 'none' is unknown"):
        list(read_journal(path))


def test_where_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="there is no journal"):
        list(read_journal(tmp_path / "none.db"))
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match="cannot be created"):
        ExperimentJournal(tmp_path / "file" / "experiments.db")
    ExperimentJournal(tmp_path / "a" / "b" / "experiments.db").close()
    assert (tmp_path / "a" / "b" / "experiments.db").stat().st_mode & 0o777 == 0o600
