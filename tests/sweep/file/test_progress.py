"""Progress: counts, rate, expected end, nodes; the status file is replaced atomically."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest

from farm.sweep.errors import SweepError
from farm.sweep.file.journal import AnsweringWorker, PointStatus
from farm.sweep.file.point_columns import PointColumns
from farm.sweep.file.progress import (
    Meter,
    Progress,
    nodes,
    read_status,
    status_of,
    write_status,
)
from tests.sweep.samples import done, failed, plan_of, raising

PLAN = plan_of("random:100")
START = 100.0


def known_with(count: int) -> PointColumns:
    known = PointColumns.nothing(100)
    for point in range(count):
        known.add(done(PLAN, point, t_run=2.0))
    return known


def test_counts_and_times() -> None:
    known = known_with(8)
    known.add(failed(20))
    known.add(failed(21, status=PointStatus.TIMEOUT))
    known.add(failed(22, status=PointStatus.CANCELLED))
    progress = Meter(known, PLAN, START).now("running", START, in_flight=5)
    assert (progress.total, progress.done, progress.pending) == (100, 8, 89)
    assert (progress.failed, progress.timeout, progress.cancelled) == (1, 1, 1)
    assert (progress.finished, progress.unsuccessful, progress.in_flight) == (11, 3, 5)
    assert progress.work_s == 16.0
    assert progress.run_mean_s == progress.run_p50_s == progress.run_p95_s == 2.0
    assert progress.expected_work_s == 200.0
    assert (progress.rate_per_s, progress.eta_s) == (None, None)


def test_rate_counts_what_finished_of_late_in_this_session() -> None:
    known, now = known_with(50), START
    meter = Meter(known, PLAN, START)
    now += 10.0
    for point in range(50, 70):
        known.add(done(PLAN, point))
    progress = meter.now("running", now)
    assert progress.rate_per_s == pytest.approx(2.0)
    assert progress.eta_s == pytest.approx(15.0)
    assert progress.elapsed_s == 10.0
    known, now = known_with(0), START
    meter = Meter(known, PLAN, START)
    for point in range(100):
        now += 1.0 if point < 50 else 10.0
        known.add(done(PLAN, point))
        progress = meter.now("running", now)
    assert progress.rate_per_s == pytest.approx(0.1, rel=0.1)
    assert progress.eta_s == 0.0


@pytest.mark.parametrize(("count", "expected"), [(0, None), (4, None), (5, 200.0)])
def test_a_cost_is_told_after_five_points(count: int, expected: float | None) -> None:
    progress = Meter(known_with(count), PLAN, START).now("running", START)
    assert progress.expected_work_s == expected


def test_nodes_with_most_failures_come_first() -> None:
    known = PointColumns.nothing(100)
    for k, name in enumerate(["a/1", "b/1", "b/2", "c/1"]):
        known.add(AnsweringWorker(k, name, 0.0))
    for point, worker in enumerate([0, 0, 1, 2, 3]):
        known.add(done(PLAN, point, worker=worker, t_run=1.0 + worker))
    known.add(failed(50, worker=3))
    assert nodes(known) == [
        {"host": "c", "done": 1, "failed": 1, "mean_run_s": 4.0},
        {"host": "b", "done": 2, "failed": 0, "mean_run_s": 2.5},
        {"host": "a", "done": 2, "failed": 0, "mean_run_s": 1.0},
    ]
    assert nodes(PointColumns.nothing(3)) == []


def test_status_file_reads_back(tmp_path: Path) -> None:
    progress = Meter(known_with(7), dataclasses.replace(PLAN, title="ä"), START).now(
        "running", START, message="full disk"
    )
    path = status_of(tmp_path / "s.h5")
    assert path.name == "s.h5.status.json"
    assert read_status(path) is None
    write_status(path, progress)
    assert read_status(path) == progress
    assert progress.pid == os.getpid()
    assert os.listdir(tmp_path) == ["s.h5.status.json"]


def test_a_status_file_that_cannot_be_written_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "status.json"
    first = Progress("running", "t", 10, done=1)
    write_status(path, first)

    monkeypatch.setattr(os, "replace", raising(OSError("No space left on device")))
    write_status(path, dataclasses.replace(first, done=2))
    assert read_status(path) == first


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"state": 1}', '{"nodes": []}'])
def test_a_damaged_status_file_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "s").write_text(text)
    with pytest.raises(SweepError, match="cannot be read"):
        read_status(tmp_path / "s")


def test_with_expected_run_times_the_end_is_the_work_left() -> None:
    """50 points of 2 s are done by 4 workers; the others are longer, or one is very long."""
    known, now = known_with(0), START
    meter = Meter(known, PLAN, START)
    for point in range(50):
        now += 0.5
        known.add(done(PLAN, point, t_run=2.0))
        meter.now("running", now)
    expected = np.full(100, 6.0)
    meter.expect(expected, "a guess")
    progress = meter.now("running", now)
    assert progress.basis == "a guess"
    assert progress.eta_s == pytest.approx(50 * 6.0 / 4)
    assert progress.expected_work_s == pytest.approx(50 * 2.0 + 50 * 6.0)
    expected[99] = 1000.0
    assert meter.now("running", now).eta_s == 1000.0, "a run cannot be divided"
    meter.expect(None, "")
    progress = meter.now("running", now)
    assert progress.eta_s == pytest.approx(25.0)
    assert progress.expected_work_s == 200.0
    finished = Meter(known_with(100), PLAN, START)
    finished.expect(np.ones(100), "a guess")
    progress = finished.now("complete", START)
    assert (progress.eta_s, progress.expected_work_s) == (0.0, 200.0)


def test_work_is_counted_over_some_long_runs() -> None:
    known, now = known_with(0), START
    meter = Meter(known, PLAN, START)
    meter.expect(np.full(100, 1000.0), "a guess")
    for point in range(4):
        for _ in range(10):
            now += 100.0
            meter.now("running", now)
        known.add(done(PLAN, point, t_run=1000.0))
    for _ in range(5):
        now += 100.0
        progress = meter.now("running", now)
    assert progress.rate_per_s is None, "nothing ended in the last two minutes"
    assert progress.eta_s == pytest.approx(96 * 1000.0, rel=0.3)
