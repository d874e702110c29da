"""ProgressReports are sent at most once a second, never in the way of their caller."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from farm.client import reports as reports_module
from farm.client.reports import ProgressReports, report_of
from farm.errors import FarmError, Unavailable, UnsupportedFeature
from tests.support.running_farm import wait_until
from tests.support.scripted_lines import HandLine

REPORT = report_of("sweep", "beam", done=1, failed=0, total=None, per_s=0.5, client="me")


class Line(HandLine):
    """Takes reports; fails with `error`, and only while the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.error: FarmError | None = None
        self.gate = threading.Event()
        self.gate.set()

    def ask(self, what: str, arguments: Mapping[str, str]) -> Any:
        assert what == "progress"
        self.asked.append(arguments["done"])
        self.gate.wait()
        if self.error is not None:
            raise self.error
        return []


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports_module, "EVERY_S", 0.01)


def put(reports: ProgressReports, *done: int, key: str = "a") -> None:
    for count in done:
        reports.put(key, {**REPORT, "done": str(count)})


def test_a_report_is_made_of_texts() -> None:
    assert REPORT == {
        "kind": "sweep",
        "name": "beam",
        "id": "",
        "client": "me",
        "state": "running",
        "done": "1",
        "failed": "0",
        "calls_per_s": "0.5",
    }


def test_of_reports_that_wait_only_the_last_is_sent() -> None:
    line = Line()
    reports = ProgressReports(line)
    line.gate.clear()
    put(reports, 1)
    wait_until(lambda: line.asked == ["1"], "the first report")
    put(reports, 2, 3)  # the farm is silent, and nobody waits for it
    put(reports, 7, key="b")
    line.gate.set()
    reports.close()
    assert line.asked == ["1", "3", "7"]
    put(reports, 4)
    reports.close()
    assert line.asked == ["1", "3", "7"]


def test_a_farm_that_is_away_gets_later_reports() -> None:
    line = Line()
    reports = ProgressReports(line)
    line.error = Unavailable("away")
    put(reports, 1)
    wait_until(lambda: line.asked == ["1"], "the first report")
    line.error = None
    put(reports, 2)
    reports.close()
    assert line.asked == ["1", "2"]


def test_a_server_that_takes_no_reports_is_left_alone() -> None:
    line = Line()
    reports = ProgressReports(line)
    line.error = UnsupportedFeature("what?")
    put(reports, 1)
    wait_until(lambda: reports._is_refused, "the refusal")
    put(reports, 2)
    reports.close()
    assert line.asked == ["1"]


def test_reports_without_a_report_close_at_once() -> None:
    reports = ProgressReports(Line())
    reports.close()
    reports.renew()
    put(reports, 1)
    reports.close()


def test_a_closing_client_does_not_wait_for_a_silent_farm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports_module, "LAST_S", 0.01)
    line = Line()
    line.gate.clear()
    reports = ProgressReports(line)
    put(reports, 1)
    wait_until(lambda: line.asked, "the report")
    reports.close()
    assert reports._is_sending
    line.gate.set()
    wait_until(lambda: not reports._is_sending, "the end")
