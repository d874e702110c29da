"""The journal: what it confirms is there, whoever is killed, and it says what is wrong with it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from farm.errors import Unavailable
from farm.experiment import journal as journals
from farm.experiment.journal import Entry, Journal, read_journal
from tests.loops import LIMIT_S

WRITER = """
import sys
from pathlib import Path
from farm.experiment.journal import Entry, Journal

journal = Journal(Path(sys.argv[1]))
for k in range(1_000_000):
    journal.append([Entry(k % 3, {"k": k})]).result()
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


def keep(journal: Journal, *entries: Entry) -> None:
    journal.append(entries).result(LIMIT_S)


def test_events_come_back_in_order(journal: Journal, path: Path) -> None:
    first = [Entry(0, {"a": 1.5, "text": "ä\n"}), Entry(1, {"b": [1, None]})]
    keep(journal, *first)
    keep(journal, Entry(0, {"c": {}}))
    assert list(read_journal(path)) == list(journal.load()) == [*first, Entry(0, {"c": {}})]
    journal.close()
    again = Journal(path)
    assert list(again.load()) == [*first, Entry(0, {"c": {}})]
    keep(again, Entry(2, {"d": 1}))
    again.close()
    assert len(list(read_journal(path))) == 4


def test_a_closed_journal_is_one_file(journal: Journal, path: Path) -> None:
    keep(journal, Entry(0, {}))
    journal.close()
    journal.close()
    assert sorted(p.name for p in path.parent.iterdir()) == [path.name, path.name + ".lock"]


def test_many_appends_share_a_transaction(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    commit = Journal._commit

    def counted(self: Journal, entries: list[Entry]) -> None:
        sizes.append(len(entries))
        commit(self, entries)

    monkeypatch.setattr(Journal, "_commit", counted)
    pending = [journal.append([Entry(0, {"k": k})]) for k in range(500)]
    for one in pending:
        one.result(LIMIT_S)
    assert sum(sizes) == 500
    assert len(sizes) < 250
    assert [entry.body["k"] for entry in journal.load()] == list(range(500))


def test_one_that_cannot_be_written_takes_no_other_with_it(journal: Journal) -> None:
    pending = [
        journal.append([Entry(0, {"k": k}), Entry(0, {"x": float("nan") if k == 7 else 0.0})])
        for k in range(20)
    ]
    with pytest.raises(Unavailable, match="nothing was done"):
        pending[7].result(LIMIT_S)
    for k, one in enumerate(pending):
        if k != 7:
            one.result(LIMIT_S)
    kept = [entry.body["k"] for entry in journal.load() if "k" in entry.body]
    assert kept == [k for k in range(20) if k != 7]


def test_a_second_server_is_refused_and_a_reader_is_not(journal: Journal, path: Path) -> None:
    keep(journal, Entry(0, {}))
    with pytest.raises(Unavailable, match="another server has the journal"):
        Journal(path)
    assert len(list(read_journal(path))) == 1
    journal.close()
    Journal(path).close()


def test_a_reader_in_the_middle_holds_nobody_up(journal: Journal, path: Path) -> None:
    keep(journal, *(Entry(0, {"k": k}) for k in range(10)))
    reading = read_journal(path)
    next(reading)
    keep(journal, Entry(0, {"k": 10}))
    assert len(list(reading)) == 9  # what was there when it began
    assert len(list(read_journal(path))) == 11


def test_another_writer_gets_its_time_and_then_an_error(
    journal: Journal, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal._file.execute("PRAGMA busy_timeout = 10")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="database is locked"):
        keep(journal, Entry(0, {"k": 0}))
    other.execute("ROLLBACK")
    other.close()
    keep(journal, Entry(0, {"k": 1}))
    assert [entry.body["k"] for entry in journal.load()] == [1]


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
    kept = [entry.body["k"] for entry in journal.load()]
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
    keep(journal, *(Entry(0, {"text": "x" * 1000}) for _ in range(200)))
    journal.close()
    with path.open("r+b") as file:
        file.seek(4096 * 3)
        file.write(os.urandom(4096))
    with pytest.raises(Unavailable, match="cannot be used"):
        Journal(path)
    Journal(path.with_name("other.db")).close()


def test_a_missing_event_is_found(journal: Journal, path: Path) -> None:
    keep(journal, *(Entry(0, {"k": k}) for k in range(5)))
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
            keep(journal, Entry(thread, {"k": k}))

    threads = [threading.Thread(target=append, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(8):
        ks = [entry.body["k"] for entry in journal.load() if entry.experiment == number]
        assert ks == list(range(50))
