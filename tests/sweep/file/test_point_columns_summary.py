"""The summary: efficiency, gaps and overhead of runs whose times are known."""

from __future__ import annotations

import numpy as np
import pytest

from farm.sweep.file.journal import AnsweringWorker
from farm.sweep.file.point_columns import PointColumns, idle_gaps, overheads, summarise
from tests.sweep.samples import done, failed, plan_of

PLAN = plan_of("random:6")


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


def test_gaps_are_between_runs_of_one_worker() -> None:
    assert sorted(idle_gaps(two_workers()).tolist()) == [0.0, 1.0]
    assert summarise(two_workers(), 1.0)["idle_gap_p50_s"] == pytest.approx(0.5)


def test_overhead_is_neither_model_nor_queue() -> None:
    assert overheads(two_workers()) == pytest.approx([0.25] * 4)
    assert summarise(two_workers(), 1.0)["overhead_p99_s"] == pytest.approx(0.25)


def test_clocks_that_disagree_give_no_negative_times() -> None:
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
