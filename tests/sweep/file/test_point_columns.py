"""The in-memory state of a sweep: a point's last outcome counts, all failures are kept."""

from __future__ import annotations

import numpy as np

from farm.sweep.file.journal import NO_WORKER, AnsweringWorker, PointStatus, Row
from farm.sweep.file.point_columns import COLUMNS, PointColumns
from tests.sweep.samples import done, failed, plan_of

PLAN = plan_of("random:10")


def test_at_first_nothing_is_known() -> None:
    known = PointColumns.nothing(4)
    assert known.status.tolist() == [0, 0, 0, 0]
    assert known.worker.tolist() == [NO_WORKER] * 4
    assert np.all(np.isnan(known.t_run))
    assert {name: getattr(known, name).dtype for name in COLUMNS} == {
        name: np.dtype(dtype) for name, (dtype, _) in COLUMNS.items()
    }


def test_the_last_outcome_counts_and_failures_stay() -> None:
    known = PointColumns.nothing(10)
    known.add(failed(3))
    known.add(done(PLAN, 3, attempt=2, worker=1))
    assert known.status[3] == PointStatus.DONE
    assert known.attempts[3] == 2
    assert [row.point for row in known.failures] == [3]
    assert known.count(PointStatus.DONE) == 1
    assert known.count(PointStatus.PENDING) == 9


def test_growing_keeps_what_is_known() -> None:
    known = PointColumns.nothing(10)
    known.add(done(PLAN, 9))
    known.grow(20)
    assert known.status.tolist() == [0] * 9 + [1] + [0] * 10
    assert known.t_run[9] == 0.5
    assert known.worker[19] == NO_WORKER


def test_workers_end_with_their_last_run() -> None:
    known = PointColumns.nothing(10)
    for k in range(3):
        known.add(AnsweringWorker(k, f"node{k}/1", 0.0))
    known.add(done(PLAN, 1, worker=0, t_start=100.0, t_run=5.0))
    known.add(done(PLAN, 2, worker=0, t_start=110.0, t_run=1.0))
    known.add(Row(3, PointStatus.FAILED, worker=2, t_start=50.0))
    assert np.array_equal(known.ended, [111.0, np.nan, np.nan], equal_nan=True)


def test_attempts_fit_their_column() -> None:
    known = PointColumns.nothing(10)
    known.add(done(PLAN, 1, attempt=999))
    assert known.attempts[1] == 255
