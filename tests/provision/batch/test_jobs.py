"""The record of a farm's jobs: what squeue and the dispatcher tell, and what has changed by it."""

from __future__ import annotations

from typing import Any

from farm.provision.batch.jobs import ON_LET_GO, Jobs
from farm.provision.batch.slurm import JobRow


def row(job: str, state: str, *, reason: str = "", name: str = "farm-ab-small") -> JobRow:
    return JobRow(job, state, name, "n1", "9:00", reason)


def worker(job: str, **values: Any) -> dict[str, Any]:
    idle = {"slots": 1, "in_flight": 0, "done": 0, "ends_in_s": None}
    return {"job": job, "host": "n1", **idle, **values}


def seen(jobs: Jobs, *rows: JobRow, now: float = 10.0) -> list[tuple[str, str]]:
    return [(change.event, change.job.id) for change in jobs.looked(rows, now - 1, now)]


def test_a_job_goes_its_way() -> None:
    jobs = Jobs("ab")
    job = jobs.submitted("1", "small", 0.0)
    phases: list[str] = [job.shown]
    assert seen(jobs, row("1", "PENDING", reason="Priority")) == []
    assert seen(jobs, row("1", "RUNNING")) == []
    phases.append(job.shown)
    (change,) = jobs.hear([worker("1", host="n2"), worker("1")], 11.0)
    assert (change.event, change.text) == ("started", "serves on n1, n2")
    phases.append(job.shown)
    assert phases == ["pending", "starting", "serving"]
    assert job.workers == 2
    assert jobs.hear([worker("1"), worker("1")], 12.0) == []
    assert seen(jobs, row("1", "COMPLETED")) == [("ended", "1")]
    assert jobs.live == {}
    assert seen(jobs, row("1", "COMPLETED")) == []


def test_only_jobs_of_this_farm_count() -> None:
    jobs = Jobs("ab")
    assert (
        seen(jobs, row("1", "RUNNING", name="farm-cd-small"), row("2", "RUNNING", name="x")) == []
    )
    assert jobs.live == {}


def test_a_job_that_a_site_gives_another_name_is_known_by_its_id() -> None:
    jobs = Jobs("ab")
    jobs.submitted("1", "small", 0.0)
    assert seen(jobs, row("1", "COMPLETED", name="batch")) == [("ended", "1")]


def test_jobs_of_the_farm_before_are_taken_over_unless_they_have_ended() -> None:
    jobs = Jobs("ab")
    rows = row("1", "RUNNING"), row("2", "FAILED"), row("3", "PENDING", reason="Resources")
    assert seen(jobs, *rows) == [("adopted", "1"), ("adopted", "3")]
    assert [job.shown for job in jobs.of("small")] == ["starting", "pending"]


def test_a_job_that_squeue_could_not_know_yet_is_not_gone() -> None:
    jobs = Jobs("ab")
    jobs.submitted("1", "small", 9.5)  # while the question was under way
    assert jobs.looked([], 9.0, 10.0) == []
    (change,) = jobs.looked([], 11.0, 12.0)
    assert (change.event, change.job.id) == ("gone", "1")


def test_reasons_that_somebody_can_mend_are_told_once() -> None:
    jobs = Jobs("ab")
    jobs.submitted("1", "small", 0.0)
    assert seen(jobs, row("1", "PENDING", reason="Resources")) == []
    assert seen(jobs, row("1", "PENDING", reason="PartitionDown")) == [("waits", "1")]
    assert seen(jobs, row("1", "PENDING", reason="PartitionDown")) == []


def test_a_requeued_job_starts_anew() -> None:
    jobs = Jobs("ab")
    job = jobs.submitted("1", "small", 0.0)
    seen(jobs, row("1", "RUNNING"))
    jobs.hear([worker("1")], 5.0)
    jobs.hear([], 6.0)
    assert seen(jobs, row("1", "PENDING", reason="BeginTime")) == [("requeued", "1")]
    assert (job.shown, job.phase.has_served) == ("pending", False)
    assert [change.event for change in jobs.hear([worker("1")], 7.0)] == ["started"]


def test_a_job_is_idle_while_none_of_its_workers_has_done_anything() -> None:
    jobs = Jobs("ab")
    jobs.submitted("1", "small", 0.0)

    def idle_s(now: float, *workers: dict[str, Any]) -> float:
        jobs.hear(workers, now)
        (job,) = jobs.for_policy("small", now)
        return job.idle_s

    assert idle_s(1.0, worker("1"), worker("1")) == 0.0
    assert idle_s(2.0, worker("1"), worker("1")) == 0.0
    assert idle_s(5.0, worker("1"), worker("1")) == 3.0
    assert idle_s(6.0, worker("1"), worker("1", in_flight=1)) == 0.0
    assert idle_s(7.0, worker("1"), worker("1", done=1)) == 0.0
    assert idle_s(8.0, worker("1"), worker("1", done=1)) == 0.0
    assert idle_s(9.0, worker("1"), worker("1", done=1)) == 1.0
    # A call that came and went between two looks.
    assert idle_s(10.0, worker("1"), worker("1", done=2)) == 0.0
    assert idle_s(11.0, worker("1", done=2)) == 0.0


def test_the_first_end_of_its_workers_is_the_end_of_a_job() -> None:
    jobs = Jobs("ab")
    jobs.submitted("1", "small", 0.0)
    jobs.hear([worker("1", ends_in_s=50.0), worker("1", ends_in_s=40.0)], 1.0)
    assert jobs.for_policy("small", 1.0)[0].ends_in_s == 40.0


def test_a_job_whose_workers_have_been_gone_for_long_cannot_be_counted_on() -> None:
    """Its node has failed, which SLURM has not noticed yet; if it was only cut off, it is back."""
    jobs = Jobs("ab")
    jobs.submitted("1", "small", 0.0)
    counted = []
    for now, rows in [(1, [worker("1")]), (2, []), (20, []), (40, []), (50, [worker("1")])]:
        seen(jobs, row("1", "RUNNING"), now=now)
        jobs.hear(rows, now)
        counted.append([job.phase for job in jobs.for_policy("small", now)])
    assert counted == [["serving"], ["starting"], ["starting"], [], ["serving"]]


def test_jobs_on_their_way_out_cannot_be_counted_on() -> None:
    jobs = Jobs("ab")
    for n in "1234":
        jobs.submitted(n, "small", 0.0)
    jobs.live["1"].goes_on(ON_LET_GO, 5.0)
    seen(
        jobs, row("1", "RUNNING"), row("2", "COMPLETING"), row("3", "RUNNING"), row("4", "RUNNING")
    )
    for now in (6.0, 8.0):
        jobs.hear([worker("3", slots=0), worker("3"), worker("4", slots=0, in_flight=1)], now)
    assert [job.id for job in jobs.for_policy("small", 8.0)] == ["3"]
    assert len(jobs.of("small")) == 4


def test_a_job_that_drains_is_not_counted_on_again_when_its_workers_are_gone() -> None:
    """Else the job that takes its place would be one too many until SLURM tells of the end."""
    jobs = Jobs("ab")
    jobs.submitted("1", "small", 0.0)
    counted, events = [], []
    shut = worker("1", slots=0)
    for now, rows in [(1, [worker("1")]), (2, [shut]), (3, [shut]), (4, [shut]), (5, []), (6, [])]:
        events += [change.event for change in jobs.hear(rows, now)]
        counted.append(len(jobs.for_policy("small", now)))
    assert counted == [1, 1, 1, 0, 0, 0]
    assert events == ["started", "deserted"]


def test_a_job_that_cannot_be_reached_for_a_moment_is_counted_on() -> None:
    jobs = Jobs("ab")
    jobs.submitted("1", "small", 0.0)
    for now, slots in [(1.0, 1), (2.0, 0), (3.9, 0), (4.0, 1), (5.0, 0), (6.9, 0)]:
        jobs.hear([worker("1", slots=slots)], now)
        assert len(jobs.for_policy("small", now)) == 1
