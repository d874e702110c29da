"""The journal: confirmed records survive, and refused ones leave no trace."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from farm.storage.errors import RecordTooLarge
from farm.storage.frames import Record, read_frames
from farm.storage.journal import Journal
from farm.sweep.file.journal import FORMAT as SWEEP
from tests.storage.journals import read, write

WRITER = """
import sys
from pathlib import Path
from farm.storage.frames import Record
from farm.storage.journal import Journal
from farm.sweep.file.journal import FORMAT

path, how = sys.argv[1:]
journal = Journal(Path(path), FORMAT)
for k in range(1_000_000):
    # Long ones, so that a kill finds some of them half written; of a commit, all or a beginning.
    records = [Record(FORMAT.kinds[0], f"{k} {part}".encode() * 20_000) for part in range(3)]
    if how == "commit":
        journal.append_all(records, durable=True)
    else:
        for record in records:
            journal.append(record)
    print(k, flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "j"


def record(text: str) -> Record:
    return Record(SWEEP.kinds[0], text.encode())


def texts(path: Path) -> list[str]:
    return [found.payload.decode() for found in read(path, SWEEP)]


@pytest.mark.parametrize(("how", "after"), [("append", 10), ("commit", 3)])
def test_a_killed_writer_has_kept_what_it_confirmed(path: Path, how: str, after: int) -> None:
    command = [sys.executable, "-c", WRITER, str(path), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            if int(line) >= after:
                break
        writer.kill()
        confirmed = max([int(line), *map(int, writer.stdout.read().split())])
        assert writer.wait() == -signal.SIGKILL
    kept = texts(path)
    expected = [f"{k} {part}" * 20_000 for k in range(confirmed + 2) for part in range(3)]
    assert kept == expected[: len(kept)]
    assert len(kept) >= 3 * (confirmed + 1)


def test_a_commit_is_on_the_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(path, SWEEP)
    sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: sizes.append(os.fstat(fd).st_size))
    journal.append(record("a"))
    assert sizes == []
    journal.append_all([record("b"), record("c")], durable=True)
    assert sizes == [path.stat().st_size]
    journal.close()
    assert texts(path) == ["a", "b", "c"]


def test_rows_are_records_too(path: Path) -> None:
    with contextlib.closing(Journal(path, SWEEP)) as journal:
        journal.append(record("abc"))
        journal.append_rows(SWEEP.kinds[0], np.frombuffer(b"defghi", np.uint8).reshape(2, 3))
        journal.append(record("j"))
        assert (journal.sequence, journal.size) == (4, path.stat().st_size)
    assert texts(path) == ["abc", "def", "ghi", "j"]


@pytest.mark.parametrize("failing", ["pwrite", "fsync", "pwrite, and truncating too"])
def test_what_failed_is_not_there(
    path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """Simulates a full or broken disk: part of a record is written, then an error follows."""
    journal = Journal(path, SWEEP)
    journal.append_all([record("a")], durable=True)
    real = os.pwrite

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    def half(fd: int, data: memoryview, offset: int) -> int:
        # Two complete records of three reach the file.
        real(fd, data[: len(data) * 2 // 3], offset)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        if "pwrite" in failing:
            patched.setattr(os, "pwrite", half)
        else:
            patched.setattr(os, "fsync", fail)
        if "truncating" in failing:
            patched.setattr(os, "ftruncate", fail)
        with pytest.raises(OSError, match=r"No space|Input"):
            journal.append_all([record(x) for x in "bcd"], durable=True)
        if "truncating" in failing:
            with pytest.raises(OSError, match="Input/output"):
                journal.append(record("e"))
        else:
            assert texts(path) == ["a"]
    journal.append(record("e"))  # as long as the refused one
    assert texts(path) == ["a", "e"]
    journal.append_all([record("f")], durable=True)
    journal.close()
    assert texts(path) == ["a", "e", "f"]


def test_short_writes_are_gone_on_with(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, data[:7], offset))
    write(path, SWEEP, [record("a long text"), record("b")])
    assert texts(path) == ["a long text", "b"]


def test_a_record_that_is_too_large_leaves_the_journal_as_it_is(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(path, SWEEP)
    monkeypatch.setattr("farm.storage.frames.LARGEST_BODY", 20)
    with pytest.raises(RecordTooLarge):
        journal.append_all([record("a"), record("b" * 20)], durable=True)
    journal.append_all([record("c")], durable=True)
    journal.close()
    assert texts(path) == ["c"]


def test_appending_drops_a_torn_tail(path: Path) -> None:
    ends = write(path, SWEEP, [record(x) for x in "abc"])
    os.truncate(path, ends[3] - 3)
    *_, last = read_frames(path, SWEEP)
    assert last.end == ends[2]
    journal = Journal(path, SWEEP, sequence=last.sequence, size=last.end)
    assert path.stat().st_size == last.end  # otherwise the remains might later look like a record
    journal.append(record("d"))
    journal.close()
    assert texts(path) == ["a", "b", "d"]


def test_a_journal_is_there_with_its_first_records_or_not_at_all(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = []
    real = os.pwrite

    def watched(fd: int, data: memoryview, offset: int) -> int:
        there.append(path.exists())
        return real(fd, data[:100], offset)

    monkeypatch.setattr(os, "pwrite", watched)
    journal = Journal.start(path, SWEEP, [record("a" * 300)], mode=0o600)
    assert len(there) > 2
    assert not any(there)
    monkeypatch.undo()
    journal.append(record("b"))
    journal.close()
    journal.close()
    assert texts(path) == ["a" * 300, "b"]
    assert [p.name for p in path.parent.iterdir()] == ["j"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_journal_that_cannot_be_begun_leaves_what_was_there(path: Path) -> None:
    write(path, SWEEP, [record("a")])

    def records() -> Iterator[Record]:
        yield record("b")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        Journal.start(path, SWEEP, records())
    assert texts(path) == ["a"]
    assert [p.name for p in path.parent.iterdir()] == ["j"]


def test_a_new_journal_overwrites_nothing(path: Path) -> None:
    write(path, SWEEP, [])
    with pytest.raises(FileExistsError):
        Journal(path, SWEEP)
