"""The intact part of a damaged journal, and how it is merged with the file's content."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.storage.journal import Journal
from farm.sweep.file.journal import FORMAT, NO_WORKER, AnsweringWorker, Content, Row, add_to
from farm.sweep.file.recovery import left_in, merged
from tests.sweep.samples import done, plan_of

PLAN, LONGER = plan_of("random:10"), plan_of("random:20")
W0, W1 = AnsweringWorker(0, "a/1", 1.0), AnsweringWorker(1, "b/2", 2.0)


def write(path: Path, contents: list[Content]) -> list[int]:
    journal = Journal(path, FORMAT)
    ends = []
    for content in contents:
        add_to(journal, content)
        ends.append(path.stat().st_size)
    journal.close()
    return ends


def points(contents: list[Content]) -> list[tuple[int, int]]:
    return [(row.point, row.worker) for row in contents if isinstance(row, Row)]


def test_nothing_is_left_of_no_journal(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path / "empty"):
        left = left_in(path)
        assert (left.plan, left.sequence, list(left.contents())) == (None, 0, [])
        (tmp_path / "empty").touch()


def test_records_behind_a_damage_are_left(tmp_path: Path) -> None:
    path = tmp_path / "j"
    ends = write(path, [PLAN, W0, done(PLAN, 1), done(PLAN, 2), LONGER, done(LONGER, 15)])
    data = bytearray(path.read_bytes())
    data[ends[2] - 1] ^= 1
    path.write_bytes(data)
    left = left_in(path)
    assert left.plan is not None
    assert (left.plan.size, left.sequence) == (20, 6)
    assert [point for point, _ in points(list(left.contents()))] == [2, 15]


@pytest.mark.parametrize("tail", [b"\0" * 100, b"R" * 100, b"\xff" * 9])
def test_rubbish_at_the_end_is_neither_record_nor_damage(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "j"
    write(path, [PLAN, done(PLAN, 1)])
    with path.open("ab") as file:
        file.write(tail)
    left = left_in(path)
    assert left.sequence == 2
    assert [point for point, _ in points(list(left.contents()))] == [1]


def test_an_old_record_is_not_taken_for_a_later_one(tmp_path: Path) -> None:
    """This happens if a copy of an earlier part of the file follows damage."""
    path = tmp_path / "j"
    ends = write(path, [PLAN, done(PLAN, 1), done(PLAN, 2)])
    data = path.read_bytes()
    path.write_bytes(data + b"x" + data[ends[0] : ends[1]])
    left = left_in(path)
    assert [point for point, _ in points(list(left.contents()))] == [1, 2]


def test_the_later_source_counts_and_workers_come_once() -> None:
    first, second = done(LONGER, 1, worker=0), done(LONGER, 2, worker=1)
    found = list(merged(LONGER, [PLAN, W0, W1, first], [LONGER, W0, W1, second, first]))
    assert found[:4] == [LONGER, W0, W1, first]
    assert points(found) == [(1, 0), (2, 1), (1, 0)]


def test_what_the_plan_or_the_workers_do_not_have_is_left_out() -> None:
    found = list(merged(PLAN, [W0, done(LONGER, 15), done(LONGER, 3, worker=1)]))
    assert points(found) == [(3, NO_WORKER)]
