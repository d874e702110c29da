"""One job of a farm, as others ask about it."""

from __future__ import annotations

from farm.provision.batch.absence import Evidence
from farm.provision.batch.farm_job import FarmJob
from farm.provision.batch.job_phases import LEAVING, SERVING, STARTING, SUBMITTING
from farm.provision.batch.system import JobRow, Stand


def job() -> FarmJob:
    return FarmJob("", "small", "farm-ab-small+1", Evidence(0.0, 0.0), SUBMITTING, 0.0)


def test_its_key_is_its_name_until_it_has_an_id() -> None:
    one = job()
    assert one.key == "farm-ab-small+1"
    one.id = "7"
    assert one.key == "7"


def test_a_job_that_completes_may_come_back_unless_it_was_cancelled() -> None:
    one = job()
    one.phase = SERVING
    dying = []
    for stand, one.cancelled_at in (
        (Stand.COMPLETING, None),
        (Stand.COMPLETING, 1.0),
        (Stand.PENDING, 1.0),
    ):
        one.row = JobRow("7", stand, "", one.name)
        dying.append(one.is_dying)
    assert dying == [False, True, False]


def test_a_job_with_workers_has_nodes_and_is_not_overdue() -> None:
    one = job()
    one.phase, one.phase_since = LEAVING, 5.0
    one.row = JobRow("7", Stand.PENDING, "", one.name)
    assert (one.is_pending, one.ending_since) == (True, 5.0)
    one.workers = 1
    assert (one.is_pending, one.ending_since) == (False, None)
    one.phase, one.workers = STARTING, 0
    assert one.ending_since is None
