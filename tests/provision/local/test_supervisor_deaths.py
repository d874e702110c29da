"""Deaths of processes in the log: the first at once, further ones counted until they are due."""

from __future__ import annotations

import math

import pytest

from farm.provision.local.supervisor import Deaths


def test_deaths_of_one_reason_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    deaths = Deaths()
    deaths.died(0, "died", "exit code 3", "starting again in 1 s")
    deaths.died(1, "died", "exit code 4", "starting again in 1 s")
    for number in range(5):
        deaths.died(number, "died", "exit code 3", "starting again in 2 s")
    deaths.report_if_due(-math.inf)
    assert [record.getMessage() for record in caplog.records] == [
        "worker process 0 died: exit code 3; starting again in 1 s",
        "worker process 1 died: exit code 4; starting again in 1 s",
    ]
    caplog.clear()
    deaths.report_if_due(math.inf)
    assert [record.getMessage() for record in caplog.records] == [
        "worker processes died 5 times: exit code 3; the last was process 4, starting again in 2 s"
    ]
    caplog.clear()
    deaths.report()
    assert caplog.records == []
