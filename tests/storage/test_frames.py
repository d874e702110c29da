"""Records in files: intact ones are found, damaged ones are reported and never used."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.storage import frames as frames_module
from farm.storage.errors import RecordTooLarge, WrongFormat
from farm.storage.frames import (
    LARGEST_BODY,
    Damage,
    Format,
    Frame,
    Record,
    damage_after,
    framed,
    framed_all,
    read_frames,
    read_past_damage,
    read_runs,
)
from farm.sweep.file.journal import FORMAT as SWEEP
from tests.storage.journals import formats, read, records_of, write

FIVE = [Record(SWEEP.kinds[0], bytes([k]) * 9) for k in range(5)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "j"


@given(formats.flatmap(lambda f: st.tuples(st.just(f), st.lists(records_of(f), max_size=8))))
def test_everything_reads_back(
    tmp_path_factory: pytest.TempPathFactory, made: tuple[Format, list[Record]]
) -> None:
    path = tmp_path_factory.mktemp("journal") / "j"
    write(path, *made)
    assert read(path, made[0]) == made[1]


@given(formats.flatmap(lambda f: st.tuples(st.just(f), st.lists(records_of(f), max_size=3))))
def test_a_cut_at_any_byte_costs_the_torn_record_only(
    tmp_path_factory: pytest.TempPathFactory, made: tuple[Format, list[Record]]
) -> None:
    format, records = made
    path = tmp_path_factory.mktemp("journal") / "j"
    ends = write(path, format, records)
    for cut in range(ends[-1], ends[0] - 1, -1):
        os.truncate(path, cut)
        whole = sum(end <= cut for end in ends) - 1
        assert read(path, format) == records[:whole]
        assert damage_after(path, format, ends[whole], whole) is None
        assert all(isinstance(found, Frame) for found in read_past_damage(path, format))


@given(
    formats.flatmap(
        lambda f: st.tuples(st.just(f), st.lists(records_of(f), min_size=1, max_size=4))
    ),
    st.data(),
)
def test_a_flipped_bit_is_never_believed(
    tmp_path_factory: pytest.TempPathFactory,
    made: tuple[Format, list[Record]],
    data: st.DataObject,
) -> None:
    format, records = made
    path = tmp_path_factory.mktemp("journal") / "j"
    ends = write(path, format, records)
    content = bytearray(path.read_bytes())
    where = data.draw(st.integers(ends[0], ends[-1] - 1))
    content[where] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    hit = sum(end <= where for end in ends) - 1
    assert read(path, format) == records[:hit]
    # The records after the damage are found, and the damage is where the bit was flipped.
    found = list(read_past_damage(path, format))
    left = [Record(f.kind, bytes(f.payload)) for f in found if isinstance(f, Frame)]
    assert left == records[:hit] + records[hit + 1 :]
    damage = [f for f in found if isinstance(f, Damage)]
    expected = [Damage(ends[hit], ends[hit + 1])] if hit + 1 < len(records) else []
    assert damage == expected
    assert damage_after(path, format, ends[hit], hit) == (expected[0] if expected else None)


def lengths(*sizes: int) -> list[Record]:
    return [Record(SWEEP.kinds[-1], bytes([k % 256]) * size) for k, size in enumerate(sizes)]


@pytest.mark.parametrize("at_once", [20, 60, 2**20])
def test_records_that_are_alike_are_read_together(
    path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """However much of the file is in memory, and whatever the lengths of the records are."""
    monkeypatch.setattr(frames_module, "READ_BYTES", at_once)
    records = lengths(*[9] * 70, 5, 6, *[0, 3] * 5, 400, *[400] * 8)
    ends = write(path, SWEEP, records)
    runs = list(read_runs(path, SWEEP))
    found = [frame for run in runs for frame in run.frames()]
    assert [Record(frame.kind, bytes(frame.payload)) for frame in found] == records
    assert [frame.end for frame in found] == ends[1:]
    assert [frame.sequence for frame in found] == list(range(1, len(records) + 1))
    if at_once > ends[-1]:
        assert max(len(run.payloads) for run in runs) > 40
        assert len(runs) < 30


@pytest.mark.parametrize("hit", [0, 1, 37, 99])
def test_damage_among_records_that_are_alike_ends_them(path: Path, hit: int) -> None:
    records = lengths(*[9] * 100)
    ends = write(path, SWEEP, records)
    whole = path.read_bytes()
    for where in range(ends[hit], ends[hit + 1]):
        content = bytearray(whole)
        content[where] ^= 1 << where % 8
        path.write_bytes(content)
        assert read(path, SWEEP) == records[:hit]
    path.write_bytes(whole[: ends[hit]] + whole[ends[hit + 1] :])
    assert read(path, SWEEP) == (records[:hit] or records[1:])


@pytest.mark.parametrize(
    "tail",
    [b"\0", b"\0" * 100, b"\xff" * 100, np.random.default_rng(0).bytes(4096)],
    ids=["zero", "zeros", "ones", "random"],
)
def test_rubbish_at_the_end_is_ignored(path: Path, tail: bytes) -> None:
    ends = write(path, SWEEP, FIVE)
    with path.open("ab") as file:
        file.write(tail)
    assert read(path, SWEEP) == FIVE
    assert damage_after(path, SWEEP, ends[-1], 5) is None


def test_a_missing_record_is_damage_without_bytes(path: Path) -> None:
    ends = write(path, SWEEP, FIVE)
    data = path.read_bytes()
    path.write_bytes(data[: ends[2]] + data[ends[3] :])
    assert read(path, SWEEP) == FIVE[:2]
    assert damage_after(path, SWEEP, ends[2], 2) == Damage(ends[2], ends[2])


def test_an_old_record_is_not_taken_for_a_later_one(path: Path) -> None:
    ends = write(path, SWEEP, FIVE)
    data = path.read_bytes()
    path.write_bytes(data + b"x" + data[ends[0] : ends[1]])
    assert damage_after(path, SWEEP, ends[-1], 5) is None
    assert len(list(read_past_damage(path, SWEEP))) == 5


def test_a_damaged_first_line_hides_no_record(path: Path) -> None:
    write(path, SWEEP, FIVE)
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data)
    with pytest.raises(WrongFormat, match="found not one"):
        read(path, SWEEP)
    assert len(list(read_past_damage(path, SWEEP))) == 5


def test_a_reader_sees_what_was_there_when_it_began(path: Path) -> None:
    write(path, SWEEP, FIVE[:2])
    reading = read_frames(path, SWEEP)
    next(reading)
    with path.open("ab") as file:
        file.write(framed(FIVE[2], 3))
    assert len(list(reading)) == 1
    assert len(read(path, SWEEP)) == 3


@pytest.mark.parametrize(
    ("content", "version", "found"),
    [
        (b"", None, "not one"),
        (b"farm", None, "not one"),
        (b"something else entirely, and long enough", None, "not one"),
        (SWEEP._replace(version=7).magic, 7, "version 7"),
    ],
)
def test_what_is_no_journal_is_told(
    path: Path, content: bytes, version: int | None, found: str
) -> None:
    path.write_bytes(content)
    with pytest.raises(WrongFormat) as caught:
        read(path, SWEEP)
    assert str(caught.value) == f"{path}: expected a {SWEEP.name}, found {found}"
    assert caught.value.version == version
    assert list(read_past_damage(path, SWEEP)) == []


@pytest.mark.parametrize("size", [0, 1, 60])
def test_records_of_one_length_are_encoded_together(size: int) -> None:
    rows = np.random.default_rng(1).integers(0, 256, (5, size), dtype=np.uint8)
    alone = [framed(Record(82, row.tobytes()), 7 + k) for k, row in enumerate(rows)]
    assert framed_all(82, rows, 7) == b"".join(alone)
    assert framed_all(82, rows[:0], 7) == b""


def test_a_record_that_no_length_can_say_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LARGEST_BODY == 2**32 - 1
    monkeypatch.setattr("farm.storage.frames.LARGEST_BODY", 20)
    framed(Record(1, b"x" * 11), 1)
    with pytest.raises(RecordTooLarge, match="21 bytes"):
        framed(Record(1, b"x" * 12), 1)
    with pytest.raises(RecordTooLarge):
        framed_all(1, np.zeros((2, 12), np.uint8), 1)


def test_a_record_that_was_taken_back_is_not_read_as_the_one_in_its_place(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = SWEEP.kinds[:2]
    before = SWEEP.magic + framed(Record(one, bytes(60)), 1)
    monkeypatch.setattr(frames_module, "READ_BYTES", len(before) - len(SWEEP.magic) + 30)
    path.write_bytes(before + framed(Record(one, b"a" * 100), 2))

    class Changing(io.FileIO):
        """Holds another record from the second time on that its end is read."""

        reads = 0

        def read(self, size: int | None = -1, /) -> bytes:
            self.reads += 1
            if self.reads == 2:
                path.write_bytes(before + framed(Record(other, b"b" * 100), 2))
            return super().read(-1 if size is None else size)

        def readline(self, size: int | None = -1, /) -> bytes:
            self.seek(len(SWEEP.magic))
            return SWEEP.magic

    monkeypatch.setattr(frames_module, "open_regular", lambda path: Changing(path))
    runs = frames_module.read_runs(path, SWEEP)
    assert [(run.kind, run.sequence) for run in runs] == [(one, 1)]
