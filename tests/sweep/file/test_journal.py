"""The journal: everything reads back; `tests/storage/test_frames.py` has torn and damaged ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.storage.journal import Journal
from farm.sweep.design.plan import Plan
from farm.sweep.errors import SweepError
from farm.sweep.file.journal import (
    COLUMNS,
    FORMAT,
    HEAD,
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

FORMS = {
    1: "u8 u1 u1 u4 f8 f8 f8 f8 status attempts worker t_start t_run t_queue t_total copied reused"
}
"""By version of the journal: the types of a record, and the numbers of a point."""

times = st.floats(allow_nan=True, allow_infinity=False)
texts = st.text(st.characters(codec="utf-8"), max_size=30)


def row_with(**fields: Any) -> Row:
    """Return a row, the other fields of which Hypothesis does not choose."""
    return Row(**fields)


rows = st.one_of(
    st.builds(
        row_with,
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
        row_with,
        point=st.integers(0, 9),
        status=st.sampled_from([PointStatus.FAILED, PointStatus.CANCELLED, PointStatus.TIMEOUT]),
        t_start=times,
        error=texts,
        traceback=texts,
    ),
)
workers = st.builds(AnsweringWorker, id=st.integers(0, 9), name=texts, started=st.floats(0, 2e9))


def write(path: Path, contents: list[Content]) -> None:
    journal = Journal(path, FORMAT)
    for content in contents:
        add_to(journal, content)
    journal.close()


def read(path: Path) -> list[Content]:
    return [record.content for record in read_journal(path)]


def equal(a: Content, b: Content) -> bool:
    if isinstance(a, Row) and isinstance(b, Row):
        same = all(
            x == y or (x != x and y != y)
            for x, y in ((getattr(a, n), getattr(b, n)) for n in Row._fields if n != "values")
        )
        if a.values is None or b.values is None:
            return same and a.values is b.values
        return same and np.array_equal(a.values, b.values, equal_nan=True)
    if isinstance(a, Plan) and isinstance(b, Plan):
        return a.to_json() == b.to_json() and np.array_equal(a.theta, b.theta)
    return a == b


def same(a: list[Content], b: list[Content]) -> bool:
    return len(a) == len(b) and all(map(equal, a, b))


def test_another_form_of_a_record_has_another_version() -> None:
    """A record of the old form would be read as numbers of the new one."""
    types = [HEAD[name].str[1:] for name in HEAD.names or ()]
    assert " ".join([*types, *COLUMNS]) == FORMS[FORMAT.version]


@given(st.lists(st.one_of(rows, workers), max_size=8))
def test_everything_reads_back(
    tmp_path_factory: pytest.TempPathFactory, more: list[Content]
) -> None:
    path = tmp_path_factory.mktemp("journal") / "j"
    write(path, [PLAN, *more])
    assert same(read(path), [PLAN, *more])


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


def test_host_is_what_stands_before_the_slash() -> None:
    assert AnsweringWorker(0, "node3/4412-a1b2", 0.0).host == "node3"


def test_a_table_s_costs_and_order_read_back(tmp_path: Path) -> None:
    """`test_store.py` has the costs of a plan with positions in the unit cube."""
    (tmp_path / "p.csv").write_text("1,2,3,4\n5,6,7,8\n")
    made = plan_of(f"file:{tmp_path}/p.csv", {}, order="given")
    plan = replace(made, cost=np.arange(made.size) + 0.5, cost_rule="n**3")
    write(tmp_path / "j", [plan])
    (kept,) = read_journal(tmp_path / "j")
    assert isinstance(kept.content, Plan)
    assert kept.content.to_json() == plan.to_json()
    assert kept.content.cost is not None
    assert kept.content.cost.tolist() == (np.arange(made.size) + 0.5).tolist()
    assert np.array_equal(kept.content.theta, made.theta)
    assert kept.content.unit is None
