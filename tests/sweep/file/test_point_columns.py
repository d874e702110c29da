"""The state of points in memory: last outcomes, all failures, and the summary."""

from __future__ import annotations

import numpy as np
import pytest

from farm.sweep.file.journal import NO_WORKER, POINT_FIELDS, AnsweringWorker, PointStatus, Row
from farm.sweep.file.point_columns import PointColumns, idle_gaps, overheads, summarise
from tests.sweep.samples import done, failed, plan_of

PLAN = plan_of("random:10")


def test_at_first_nothing_is_known() -> None:
    known = PointColumns.nothing(4)
    assert known.status.tolist() == [0, 0, 0, 0]
    assert known.worker.tolist() == [NO_WORKER] * 4
    assert np.all(np.isnan(known.t_run))
    assert {f.name: known.columns[f.name].dtype for f in POINT_FIELDS} == {
        f.name: np.dtype(f.dtype) for f in POINT_FIELDS
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


def two_workers() -> PointColumns:
    """Return the state of a sweep: worker 0 runs at 0-4 and 5-9, worker 1 at 1-3 and 3-9."""
    known = PointColumns.nothing(6)
    for k in range(2):
        known.add(AnsweringWorker(k, f"n/{k}", 0.0))
    for point, worker, start, run in ((0, 0, 5, 4), (1, 0, 0, 4), (2, 1, 3, 6), (3, 1, 1, 2)):
        times = {"t_start": 1e9 + start, "t_run": float(run), "t_queue": 1.0, "t_total": run + 1.25}
        known.add(done(PLAN, point, worker=worker, **times))
    known.add(failed(4))
    return known


def test_counts_work_and_efficiency() -> None:
    summary = summarise(two_workers(), 12.0)
    assert (summary["points"], summary["done"], summary["failed"], summary["pending"]) == (
        6,
        4,
        1,
        1,
    )
    assert (summary["wall_s"], summary["work_s"], summary["makespan_s"]) == (12.0, 16.0, 9.0)
    assert summary["workers"] == 2
    assert summary["efficiency"] == pytest.approx(16 / 18)


def test_gaps_are_between_runs_of_a_worker_and_overhead_outside_of_them() -> None:
    assert sorted(idle_gaps(two_workers()).tolist()) == [0.0, 1.0]
    assert summarise(two_workers(), 1.0)["idle_gap_p50_s"] == pytest.approx(0.5)
    assert overheads(two_workers()) == pytest.approx([0.25] * 4)
    assert summarise(two_workers(), 1.0)["overhead_p99_s"] == pytest.approx(0.25)
    known = two_workers()
    known.t_total[:] = 0.0
    known.t_start[:] = 1e9
    assert np.all(overheads(known) == 0)
    assert np.all(idle_gaps(known) >= 0)


def test_where_nothing_is_known_it_says_so() -> None:
    summary = summarise(PointColumns.nothing(3), 1.0)
    assert summary["pending"] == 3
    assert summary["work_s"] == 0.0
    assert all(np.isnan(summary[n]) for n in ("efficiency", "makespan_s", "overhead_p50_s"))
