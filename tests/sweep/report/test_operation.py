"""The figures about the farm: progress, the workers' runs, overhead."""

from __future__ import annotations

import numpy as np
import pytest

from farm.sweep.file.journal import AnsweringWorker
from farm.sweep.file.point_columns import PointColumns
from farm.sweep.report.operation import MOST_STEPS, MOST_WORKERS, joined_runs, operation_of
from tests.sweep.report.reports import unpacked
from tests.sweep.samples import done, plan_of


def known(size: int, *, workers: int = 2) -> PointColumns:
    plan = plan_of(f"random:{size}")
    columns = PointColumns.nothing(size)
    for worker in range(workers):
        columns.add(AnsweringWorker(worker, f"node/{worker}", 0.0))
    for point in range(size - 1):
        columns.add(done(plan, point, worker=point % workers, t_start=1e9 + point, t_run=0.5))
    return columns


def test_progress_counts_finished_points() -> None:
    found = operation_of(known(11))
    assert found["size"] == 11
    assert unpacked(found["progress"]["times"]).tolist() == [k + 0.5 for k in range(10)]
    assert unpacked(found["progress"]["counts"]).tolist() == list(range(1, 11))


def test_progress_of_many_points_keeps_the_last() -> None:
    counts = unpacked(operation_of(known(2_001))["progress"]["counts"])
    assert len(counts) == MOST_STEPS
    assert (counts[0], counts[-1]) == (1, 2_000)


def test_bars_are_the_runs_of_a_worker() -> None:
    bars = unpacked(operation_of(known(5))["gantt"]["bars"]).reshape(-1, 3)
    assert bars.tolist() == [[0, 0, 0.5], [0, 2, 0.5], [1, 1, 0.5], [1, 3, 0.5]]


def test_of_many_workers_the_others_are_counted() -> None:
    gantt = operation_of(known(100, workers=90))["gantt"]
    assert (len(gantt["workers"]), gantt["more"]) == (MOST_WORKERS, 90 - MOST_WORKERS)


def test_runs_close_together_are_one_bar() -> None:
    runs = np.array([[0.0, 1.0], [1.05, 1.0], [3.0, 1.0]])
    assert joined_runs(runs, 0.1) == [[0.0, pytest.approx(2.05)], [3.0, 1.0]]
    assert len(joined_runs(runs, 0.01)) == 3


def test_overhead_is_total_minus_queue_and_run() -> None:
    overhead = operation_of(known(9))["overhead"]
    assert overhead["median"] == pytest.approx(250.0)  # ms: 1 - 0.25 - 0.5 s
    assert unpacked(overhead["counts"]).sum() == 8


def test_a_sweep_without_a_finished_point_has_none_of_it() -> None:
    found = operation_of(PointColumns.nothing(3))
    assert found["overhead"]["median"] is None
    assert len(unpacked(found["gantt"]["bars"])) == 0
    assert len(unpacked(found["progress"]["times"])) == 0
