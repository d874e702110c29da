"""A worker reports often while it has calls, and less and less often while it has none."""

from __future__ import annotations

import os

from farm.transports.use_reports import REPORT_EVERY_S, REPORT_IDLE_S, UseReports


def intervals(reports: UseReports, count: int, *, busy: bool) -> list[float]:
    """The times between the next reports."""
    found = []
    for _ in range(count):
        now = reports.at
        assert reports.next(now - 0.001, busy=busy) is None
        used = reports.next(now, busy=busy)
        assert used is not None
        assert used.memory_bytes is not None
        found.append(reports.at - now)
    return found


def test_an_idle_worker_reports_less_and_less_often() -> None:
    reports = UseReports([os.getpid()])
    found = intervals(reports, 8, busy=False)
    assert found[:2] == [REPORT_EVERY_S, 2 * REPORT_EVERY_S]
    assert found == sorted(found)
    assert found[-1] == REPORT_IDLE_S


def test_calls_bring_the_usual_interval_back() -> None:
    reports = UseReports([os.getpid()])
    intervals(reports, 8, busy=False)
    last_at = reports.at - REPORT_IDLE_S
    reports.has_calls()
    assert reports.at == last_at + REPORT_EVERY_S
    assert set(intervals(reports, 3, busy=True)) == {REPORT_EVERY_S}
