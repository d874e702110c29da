"""The journal: what it confirms is there, whoever is killed, and it says what is wrong with it."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from farm.errors import Unavailable
from farm.experiment import journal as journals
from farm.experiment.events import Event, Finished, SetUp, Told, to_json
from farm.experiment.journal import Journal, is_served, read_journal
from tests.loops import LIMIT_S

WRITER = """
import sys
from pathlib import Path
from farm.experiment.events import Finished
from farm.experiment.journal import Journal

journal = Journal(Path(sys.argv[1]))
for k in range(1_000_000):
    journal.append([Finished(experiment=k % 3, time=0.5, strategy=k)]).result()
    print(k, flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "experiments.db"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    journal = Journal(path)
    yield journal
    journal.close()


def event(number: int, *, experiment: int = 0) -> Finished:
    return Finished(experiment=experiment, time=1.5, strategy=number)


def numbers(events: Iterable[Event]) -> list[int]:
    return [event.strategy for event in events if isinstance(event, Finished)]


def keep(journal: Journal, *events: Event) -> None:
    journal.append(events).result(LIMIT_S)


def test_a_journal_that_was_only_read_is_one_plain_file_again(path: Path) -> None:
    for _ in range(2):
        journal = Journal(path)
        assert list(journal.load()) == []
        journal.close()
    assert sorted(p.name for p in path.parent.iterdir()) == [path.name, path.name + ".lock"]


def test_events_come_back_in_order(journal: Journal, path: Path) -> None:
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
    again = Journal(path)
    keep(again, event(8))
    assert [to_json(one) for one in again.load()] == [*expected, to_json(event(8))]
    again.close()


def test_a_closed_journal_is_one_file(journal: Journal, path: Path) -> None:
    keep(journal, event(0))
    journal.close()
    journal.close()
    assert sorted(p.name for p in path.parent.iterdir()) == [path.name, path.name + ".lock"]


def test_many_appends_share_a_transaction(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    commit = Journal._commit

    def counted(self: Journal, events: list[Event]) -> None:
        sizes.append(len(events))
        commit(self, events)

    monkeypatch.setattr(Journal, "_commit", counted)
    pending = [journal.append([event(k)]) for k in range(500)]
    for one in pending:
        one.result(LIMIT_S)
    assert sum(sizes) == 500
    assert len(sizes) < 250
    assert numbers(journal.load()) == list(range(500))


def test_one_that_cannot_be_written_takes_no_other_with_it(journal: Journal) -> None:
    pending = [
        journal.append([event(k), event(k, experiment=2**64 if k == 7 else 1)]) for k in range(20)
    ]
    with pytest.raises(Unavailable, match="nothing was done"):
        pending[7].result(LIMIT_S)
    for k, one in enumerate(pending):
        if k != 7:
            one.result(LIMIT_S)
    assert numbers(journal.load()) == [k for k in range(20) if k != 7 for _ in range(2)]


def test_a_second_server_is_refused_and_a_reader_is_not(journal: Journal, path: Path) -> None:
    keep(journal, event(0))
    with pytest.raises(Unavailable, match="another server has the journal"):
        Journal(path)
    assert len(list(read_journal(path))) == 1
    journal.close()
    Journal(path).close()


def test_who_looks_whether_it_is_served_keeps_no_server_out(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not is_served(path)
    Journal(path).close()
    assert not is_served(path)
    looker = os.open(path.with_name(path.name + ".lock"), os.O_RDONLY)
    fcntl.flock(looker, fcntl.LOCK_SH)
    monkeypatch.setattr("farm.experiment.journal.time.sleep", lambda s: os.close(looker))
    server = Journal(path)
    assert is_served(path)
    server.close()
    assert not is_served(path)


def test_a_reader_in_the_middle_holds_nobody_up(journal: Journal, path: Path) -> None:
    keep(journal, *(event(k) for k in range(10)))
    reading = read_journal(path)
    next(reading)
    keep(journal, event(10))
    assert len(list(reading)) == 9  # what was there when it began
    assert len(list(read_journal(path))) == 11


def test_another_writer_gets_its_time_and_then_an_error(
    journal: Journal, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal._file.execute("PRAGMA busy_timeout = 10")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="database is locked"):
        keep(journal, event(0))
    other.execute("ROLLBACK")
    other.close()
    keep(journal, event(1))
    assert numbers(journal.load()) == [1]


def test_a_killed_writer_has_kept_what_it_confirmed(path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            if int(line) >= 50:
                break
        writer.kill()
        confirmed = max([int(line), *map(int, writer.stdout.read().split())])
    journal = Journal(path)
    kept = numbers(journal.load())
    journal.close()
    assert kept == list(range(len(kept)))
    assert confirmed < len(kept) <= confirmed + 2


@pytest.mark.parametrize("content", [b"x", b"no database, but long enough to be one" * 100])
def test_what_is_no_journal(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    for use in (Journal, lambda p: list(read_journal(p))):
        with pytest.raises(Unavailable, match=r"is no journal of experiments|cannot be used"):
            use(path)
    assert path.read_bytes() == content


def test_an_empty_file_becomes_a_journal(path: Path) -> None:
    path.touch()
    Journal(path).close()
    assert list(read_journal(path)) == []


def test_another_programs_database_is_left_alone(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE event (x)")
    other.close()
    for use in (Journal, lambda p: list(read_journal(p))):
        with pytest.raises(Unavailable, match="is no journal of experiments"):
            use(path)


def test_a_journal_of_a_later_release(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "VERSION", 7)
    Journal(path).close()
    monkeypatch.undo()
    for use in (Journal, lambda p: list(read_journal(p))):
        with pytest.raises(Unavailable, match="has version 7, this farm writes 1"):
            use(path)


def test_damage_is_found(journal: Journal, path: Path) -> None:
    keep(journal, *(event(k) for k in range(2000)))
    journal.close()
    with path.open("r+b") as file:
        file.seek(4096 * 3)
        file.write(os.urandom(4096))
    with pytest.raises(Unavailable, match="cannot be used"):
        Journal(path)
    Journal(path.with_name("other.db")).close()


def test_a_missing_event_is_found(journal: Journal, path: Path) -> None:
    keep(journal, *(event(k) for k in range(5)))
    journal.close()
    with sqlite3.connect(path) as file:
        file.execute("DELETE FROM event WHERE sequence = 3")
    file.close()
    with pytest.raises(Unavailable, match="event 3 is missing"):
        list(read_journal(path))


def test_where_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="there is no journal"):
        list(read_journal(tmp_path / "none.db"))
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match="cannot be made"):
        Journal(tmp_path / "file" / "experiments.db")
    Journal(tmp_path / "a" / "b" / "experiments.db").close()


def test_from_many_threads(journal: Journal) -> None:
    def append(thread: int) -> None:
        for k in range(50):
            keep(journal, event(k, experiment=thread))

    threads = [threading.Thread(target=append, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(8):
        of_one = [one for one in journal.load() if one.experiment == number]
        assert numbers(of_one) == list(range(50))
