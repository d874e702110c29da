"""The journal: everything reads back; truncation costs only the torn record."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.storage.journal import Journal
from farm.sweep.design.plan import Plan
from farm.sweep.errors import SweepError
from farm.sweep.file.journal import (
    FORMAT,
    AnsweringWorker,
    Content,
    PointStatus,
    Row,
    add_to,
    read_journal,
    start_journal,
)
from tests.sweep.samples import done, failed, plan_of

PLAN = plan_of("random:10")

times = st.floats(allow_nan=True, allow_infinity=False)
texts = st.text(st.characters(codec="utf-8"), max_size=30)
rows = st.one_of(
    st.builds(
        Row,
        point=st.integers(0, 9),
        status=st.just(PointStatus.DONE),
        attempt=st.integers(0, 255),
        copied=st.booleans(),
        reused=st.booleans(),
        worker=st.integers(0, 2**32 - 1),
        t_start=times,
        t_run=times,
        t_queue=times,
        t_total=times,
        values=st.lists(st.floats(), min_size=5, max_size=5).map(np.array),
    ),
    st.builds(
        Row,
        point=st.integers(0, 9),
        status=st.sampled_from([PointStatus.FAILED, PointStatus.CANCELLED, PointStatus.TIMEOUT]),
        t_start=times,
        error=texts,
        traceback=texts,
    ),
)
workers = st.builds(AnsweringWorker, id=st.integers(0, 9), name=texts, started=st.floats(0, 2e9))


def write(path: Path, contents: list[Content]) -> list[int]:
    """Write a journal and return its size after each record."""
    journal = Journal(path, FORMAT)
    ends = []
    for content in contents:
        add_to(journal, content)
        ends.append(path.stat().st_size)
    journal.close()
    return ends


def read(path: Path) -> list[Content]:
    return [record.content for record in read_journal(path)]


def equal(a: Content, b: Content) -> bool:
    if isinstance(a, Row) and isinstance(b, Row):
        same = all(
            x == y or (x != x and y != y)
            for x, y in ((getattr(a, n), getattr(b, n)) for n in Row.__slots__ if n != "values")
        )
        if a.values is None or b.values is None:
            return same and a.values is b.values
        return same and np.array_equal(a.values, b.values, equal_nan=True)
    if isinstance(a, Plan) and isinstance(b, Plan):
        return a.to_json() == b.to_json() and np.array_equal(a.theta, b.theta)
    return a == b


def same(a: list[Content], b: list[Content]) -> bool:
    return len(a) == len(b) and all(map(equal, a, b))


@given(st.lists(st.one_of(rows, workers), max_size=8))
def test_everything_reads_back(
    tmp_path_factory: pytest.TempPathFactory, more: list[Content]
) -> None:
    path = tmp_path_factory.mktemp("journal") / "j"
    write(path, [PLAN, *more])
    assert same(read(path), [PLAN, *more])


@given(st.lists(st.one_of(rows, workers), min_size=1, max_size=5), st.data())
@settings(max_examples=100, deadline=None)
def test_a_cut_costs_the_torn_record_only(
    tmp_path_factory: pytest.TempPathFactory, more: list[Content], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("journal") / "j"
    ends = write(path, [PLAN, *more])
    cut = data.draw(st.integers(ends[0], ends[-1]))
    os.truncate(path, cut)
    whole = sum(end <= cut for end in ends)
    assert same(read(path), [PLAN, *more][:whole])


@given(st.lists(rows, min_size=1, max_size=4), st.data())
@settings(max_examples=100, deadline=None)
def test_a_flipped_bit_is_never_believed(
    tmp_path_factory: pytest.TempPathFactory, more: list[Content], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("journal") / "j"
    ends = write(path, [PLAN, *more])
    content = bytearray(path.read_bytes())
    where = data.draw(st.integers(ends[0], ends[-1] - 1))
    content[where] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    whole = sum(end <= where for end in ends)
    assert same(read(path), [PLAN, *more][:whole])


def test_a_gap_in_the_numbers_ends_the_reading(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal(path, FORMAT)
    add_to(journal, PLAN)
    journal.sequence += 1
    add_to(journal, done(PLAN, 1))
    journal.close()
    assert len(read(path)) == 1


def test_a_plan_may_come_again(tmp_path: Path) -> None:
    longer = plan_of("random:20")
    write(tmp_path / "j", [PLAN, done(PLAN, 1), longer, done(longer, 15)])
    assert [type(c) for c in read(tmp_path / "j")] == [Plan, Row, Plan, Row]


@pytest.mark.parametrize("content", [b"", b"farm", b"something else entirely, and long enough"])
def test_what_is_no_journal_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "j").write_bytes(content)
    with pytest.raises(SweepError, match="not a journal"):
        read(tmp_path / "j")


def test_a_journal_of_a_later_release_is_told(tmp_path: Path) -> None:
    Journal(tmp_path / "j", FORMAT._replace(version=7)).close()
    with pytest.raises(SweepError, match="has version 7, this farm writes 1; use the"):
        read(tmp_path / "j")


def test_a_record_that_is_too_large_is_the_users_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farm.storage.frames.LARGEST_BODY", 20)
    with pytest.raises(SweepError, match="too large for the journal"):
        start_journal(tmp_path / "j", [PLAN])
    journal = Journal(tmp_path / "j", FORMAT)
    with pytest.raises(SweepError, match="too large for the journal"):
        add_to(journal, done(PLAN, 1))
    journal.close()


def test_a_journal_that_is_begun_holds_its_plan(tmp_path: Path) -> None:
    journal = start_journal(tmp_path / "j", [PLAN], sequence=7)
    add_to(journal, done(PLAN, 1))
    journal.close()
    assert [record.sequence for record in read_journal(tmp_path / "j")] == [8, 9]


def test_a_journal_without_a_plan_is_told(tmp_path: Path) -> None:
    write(tmp_path / "j", [])
    with pytest.raises(SweepError, match="no plan"):
        read(tmp_path / "j")
    write(tmp_path / "k", [failed(1)])
    with pytest.raises(SweepError, match="no plan"):
        read(tmp_path / "k")


def test_attempts_beyond_a_byte_stay_at_its_end(tmp_path: Path) -> None:
    write(tmp_path / "j", [PLAN, done(PLAN, 1, attempt=1000)])
    row = read(tmp_path / "j")[1]
    assert isinstance(row, Row)
    assert row.attempt == 255


def test_unknown_times_stay_unknown(tmp_path: Path) -> None:
    write(tmp_path / "j", [PLAN, Row(1, PointStatus.FAILED)])
    row = read(tmp_path / "j")[1]
    assert isinstance(row, Row)
    assert math.isnan(row.t_run)


def test_host_is_what_stands_before_the_slash() -> None:
    assert AnsweringWorker(0, "node3/4412-a1b2", 0.0).host == "node3"


@pytest.mark.parametrize("design", ["random:10", "file"])
def test_a_plan_s_costs_and_order_read_back(tmp_path: Path, design: str) -> None:
    if design == "file":
        (tmp_path / "p.csv").write_text("1,2,3,4\n5,6,7,8\n")
        made = plan_of(f"file:{tmp_path}/p.csv", {}, order="given")
    else:
        made = plan_of(design, order="given")
    plan = replace(made, cost=np.arange(made.size) + 0.5, cost_rule="n**3")
    write(tmp_path / "j", [plan])
    (kept,) = read_journal(tmp_path / "j")
    assert isinstance(kept.content, Plan)
    assert kept.content.to_json() == plan.to_json()
    assert kept.content.cost is not None
    assert kept.content.cost.tolist() == (np.arange(made.size) + 0.5).tolist()
    assert np.array_equal(kept.content.theta, made.theta)
    assert (kept.content.unit is None) == (made.unit is None)
