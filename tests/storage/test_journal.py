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
from farm.storage.frames import Format, Record, read_frames
from farm.storage.journal import Journal
from farm.sweep.file.journal import FORMAT as SWEEP
from tests.storage.journals import read, write

WRITER = """
import sys
from pathlib import Path
from farm.storage.frames import Format, Record
from farm.storage.journal import Journal

name, version, kinds, how = sys.argv[2:]
format = Format(name, int(version), kinds.encode())
journal = Journal(Path(sys.argv[1]), format)
for k in range(1_000_000):
    # Long ones, so that a kill finds some of them half written; of a commit, all or a beginning.
    records = [Record(format.kinds[0], f"{k} {part}".encode() * 20_000) for part in range(3)]
    if how == "commit":
        journal.append_all(records, durable=True)
    else:
        for record in records:
            journal.append(record)
    print(k, flush=True)
"""


@pytest.fixture
def format() -> Format:
    return SWEEP


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "j"


def record(format: Format, text: str) -> Record:
    return Record(format.kinds[0], text.encode())


def texts(path: Path, format: Format) -> list[str]:
    return [found.payload.decode() for found in read(path, format)]


@pytest.mark.parametrize(("how", "after"), [("append", 10), ("commit", 3)])
def test_a_killed_writer_has_kept_what_it_confirmed(
    path: Path, format: Format, how: str, after: int
) -> None:
    name, version, kinds = format
    command = [sys.executable, "-c", WRITER, str(path), name, str(version), kinds.decode(), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            if int(line) >= after:
                break
        writer.kill()
        confirmed = max([int(line), *map(int, writer.stdout.read().split())])
        assert writer.wait() == -signal.SIGKILL
    kept = texts(path, format)
    expected = [f"{k} {part}" * 20_000 for k in range(confirmed + 2) for part in range(3)]
    assert kept == expected[: len(kept)]
    assert len(kept) >= 3 * (confirmed + 1)


def test_a_commit_is_on_the_disk(
    path: Path, format: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(path, format)
    sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: sizes.append(os.fstat(fd).st_size))
    journal.append(record(format, "a"))
    assert sizes == []
    journal.append_all([record(format, "b"), record(format, "c")], durable=True)
    assert sizes == [path.stat().st_size]
    journal.close()
    assert texts(path, format) == ["a", "b", "c"]


def test_rows_are_records_too(path: Path, format: Format) -> None:
    with contextlib.closing(Journal(path, format)) as journal:
        journal.append(record(format, "abc"))
        journal.append_rows(format.kinds[0], np.frombuffer(b"defghi", np.uint8).reshape(2, 3))
        journal.append(record(format, "j"))
        assert (journal.sequence, journal.size) == (4, path.stat().st_size)
    assert texts(path, format) == ["abc", "def", "ghi", "j"]


@pytest.mark.parametrize("failing", ["pwrite", "fsync", "pwrite, and truncating too"])
def test_what_failed_is_not_there(
    path: Path, format: Format, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """Simulates a full or broken disk: part of a record is written, then an error follows."""
    journal = Journal(path, format)
    journal.append_all([record(format, "a")], durable=True)
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
            journal.append_all([record(format, x) for x in "bcd"], durable=True)
        if "truncating" in failing:
            with pytest.raises(OSError, match="Input/output"):
                journal.append(record(format, "e"))
        else:
            assert texts(path, format) == ["a"]
    journal.append(record(format, "e"))  # as long as the refused one
    assert texts(path, format) == ["a", "e"]
    journal.append_all([record(format, "f")], durable=True)
    journal.close()
    assert texts(path, format) == ["a", "e", "f"]


def test_short_writes_are_gone_on_with(
    path: Path, format: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, data[:7], offset))
    write(path, format, [record(format, "a long text"), record(format, "b")])
    assert texts(path, format) == ["a long text", "b"]


def test_a_record_that_is_too_large_leaves_the_journal_as_it_is(
    path: Path, format: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(path, format)
    monkeypatch.setattr("farm.storage.frames.LARGEST_BODY", 20)
    with pytest.raises(RecordTooLarge):
        journal.append_all([record(format, "a"), record(format, "b" * 20)], durable=True)
    journal.append_all([record(format, "c")], durable=True)
    journal.close()
    assert texts(path, format) == ["c"]


def test_appending_drops_a_torn_tail(path: Path, format: Format) -> None:
    ends = write(path, format, [record(format, x) for x in "abc"])
    os.truncate(path, ends[3] - 3)
    *_, last = read_frames(path, format)
    assert last.end == ends[2]
    journal = Journal(path, format, sequence=last.sequence, size=last.end)
    assert path.stat().st_size == last.end  # otherwise the remains might later look like a record
    journal.append(record(format, "d"))
    journal.close()
    assert texts(path, format) == ["a", "b", "d"]


def test_a_journal_is_there_with_its_first_records_or_not_at_all(
    path: Path, format: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = []
    real = os.pwrite

    def watched(fd: int, data: memoryview, offset: int) -> int:
        there.append(path.exists())
        return real(fd, data[:100], offset)

    monkeypatch.setattr(os, "pwrite", watched)
    journal = Journal.start(path, format, [record(format, "a" * 300)], mode=0o600)
    assert len(there) > 2
    assert not any(there)
    monkeypatch.undo()
    journal.append(record(format, "b"))
    journal.close()
    journal.close()
    assert texts(path, format) == ["a" * 300, "b"]
    assert [p.name for p in path.parent.iterdir()] == ["j"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_journal_that_cannot_be_begun_leaves_what_was_there(path: Path, format: Format) -> None:
    write(path, format, [record(format, "a")])

    def records() -> Iterator[Record]:
        yield record(format, "b")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        Journal.start(path, format, records())
    assert texts(path, format) == ["a"]
    assert [p.name for p in path.parent.iterdir()] == ["j"]


def test_a_new_journal_overwrites_nothing(path: Path, format: Format) -> None:
    write(path, format, [])
    with pytest.raises(FileExistsError):
        Journal(path, format)
