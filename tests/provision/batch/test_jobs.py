"""The record of a farm's jobs: what lists, answers and the dispatcher say, and what it changes."""

from __future__ import annotations

from typing import Any

import pytest

from farm.provision.batch.absence import ASK_AGAIN_S, CONFIRM_S, ENDING_SILENCE_S, SILENCE_S
from farm.provision.batch.farm_job import Change, FarmJob
from farm.provision.batch.job_phases import ENDED, PENDING, UNSURE
from farm.provision.batch.jobs import ON_LET_GO, PAST_KEPT, Jobs
from farm.provision.batch.system import JobRow, Listing, Stand

STANDS = {
    "PENDING": Stand.PENDING,
    "RUNNING": Stand.RUNNING,
    "COMPLETING": Stand.COMPLETING,
    "COMPLETED": Stand.ENDED,
    "FAILED": Stand.ENDED,
}


@pytest.fixture
def jobs() -> Jobs:
    return Jobs("ab")


def row(job: str, state: str, *, reason: str = "", name: str = "farm-ab-small") -> JobRow:
    needs_action = reason == "PartitionDown"
    return JobRow(job, STANDS[state], state, name, "n1", reason, needs_action=needs_action)


def submitted(jobs: Jobs, job_id: str, now: float = 0.0) -> FarmJob:
    job = jobs.submits(jobs.name("small", f"mark{job_id}"), "small", now)
    jobs.submitted(job, job_id, now)
    return job


def worker(job: str, **values: Any) -> dict[str, Any]:
    idle = {"slots": 1, "in_flight": 0, "done": 0, "failed": 0, "ends_in_s": None}
    return {"job": job, "host": "n1", **idle, **values}


def seen(jobs: Jobs, *rows: JobRow, now: float = 10.0, problem: str = "") -> list[tuple[str, str]]:
    return told(jobs.looked(Listing(rows, problem), now - 1, now))


def asked(jobs: Jobs, job_id: str, answer: JobRow | None, now: float) -> list[tuple[str, str]]:
    """Ask about a job, which there must be a reason for."""
    assert job_id in jobs.questions(now)
    return told(jobs.answered(job_id, answer, now - 0.1, now))


def told(changes: list[Change]) -> list[tuple[str, str]]:
    return [(change.event, change.job.id) for change in changes]


def test_a_job_goes_its_way(jobs: Jobs) -> None:
    job = submitted(jobs, "1", 0.0)
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
    assert seen(jobs, row("1", "COMPLETED"), now=13.0) == []
    assert list(jobs.live) == ["1"], "a list alone ends no job"
    assert asked(jobs, "1", row("1", "COMPLETED"), 14.0) == [("ended", "1")]
    assert jobs.live == {}
    assert seen(jobs, row("1", "COMPLETED")) == []
    assert jobs.questions(1000.0) == []


def test_only_jobs_of_this_farm_count(jobs: Jobs) -> None:
    assert (
        seen(jobs, row("1", "RUNNING", name="farm-cd-small"), row("2", "RUNNING", name="x")) == []
    )
    assert jobs.live == {}


def test_a_job_that_a_site_gives_another_name_is_known_by_its_id(jobs: Jobs) -> None:
    submitted(jobs, "1", 0.0)
    assert seen(jobs, row("1", "RUNNING", name="batch")) == []
    assert asked(jobs, "1", row("1", "COMPLETED", name="batch"), 100.0) == [("ended", "1")]


def test_jobs_of_the_farm_before_are_taken_over_unless_they_have_ended(jobs: Jobs) -> None:
    rows = row("1", "RUNNING"), row("2", "FAILED"), row("3", "PENDING", reason="Resources")
    assert seen(jobs, *rows) == [("adopted", "1"), ("adopted", "3")]
    assert [job.shown for job in jobs.of("small")] == ["starting", "pending"]


def test_a_list_that_lacks_a_job_is_a_reason_to_ask_about_it(jobs: Jobs) -> None:
    submitted(jobs, "1", 9.5)  # while the question was under way
    assert jobs.looked(Listing(()), 9.0, 10.0) == []
    assert jobs.questions(10.0) == []
    assert jobs.looked(Listing((), "squeue printed nothing"), 11.0, 12.0) == []
    assert jobs.questions(12.0) == [], "a list that cannot be read says nothing"
    assert jobs.looked(Listing(()), 11.0, 12.0) == []
    assert asked(jobs, "1", row("1", "PENDING"), 13.0) == []
    assert jobs.questions(14.0) == []
    assert list(jobs.live) == ["1"]


def test_no_answer_is_no_answer(jobs: Jobs) -> None:
    submitted(jobs, "1")
    seen(jobs, now=2.0)
    jobs.unanswered("1", 3.0)
    assert jobs.questions(3.0 + ASK_AGAIN_S - 0.1) == []
    assert jobs.questions(3.0 + ASK_AGAIN_S) == ["1"]


def absent_at(*steps: str) -> list[tuple[str, str]]:
    """Changes of job "1" by lists without it, `list`, and questions that get no, `ask`, in turn.

    30 s go by after each step; `worker` and `row` are words that the job is there.
    """
    jobs = Jobs("ab")
    submitted(jobs, "1")
    seen(jobs, row("1", "RUNNING"), now=1.0)
    changes: list[tuple[str, str]] = []
    now = 10.0
    for step in steps:
        jobs.hear([worker("1")] if step == "worker" else [], now)
        if step == "list":
            changes += seen(jobs, now=now)
        elif step == "broken list":
            changes += seen(jobs, now=now, problem="no header")
        elif step == "ask":
            changes += asked(jobs, "1", None, now)
        elif step == "row":
            changes += seen(jobs, row("1", "RUNNING"), now=now)
        now += CONFIRM_S / 2
    return changes


def test_a_job_that_is_unknown_by_its_id_is_absent_after_two_lists_a_minute_apart() -> None:
    gone = [("absent", "1")]
    assert absent_at("list", "ask", "list", "ask") == gone
    assert absent_at("list", "", "list", "ask") == gone
    assert absent_at("list", "list", "list", "ask") == gone
    assert absent_at("list", "ask", "list") == [], "not asked about since"
    assert absent_at("list", "list", "ask", "ask") == [], "lists half a minute apart"
    assert absent_at("list", "broken list", "broken list", "ask") == []
    assert absent_at("list", "worker", "list", "ask") == []
    assert absent_at("list", "row", "list", "") == []
    assert absent_at("list", "worker", "list", "ask", "list", "ask") == gone


def test_a_job_whose_worker_is_connected_is_never_absent() -> None:
    steps = ("list", "worker", "ask", "worker") * 5
    assert absent_at(*steps) == []


def test_if_no_list_arrives_jobs_are_asked_about_one_by_one(jobs: Jobs) -> None:
    submitted(jobs, "1")
    submitted(jobs, "2")
    jobs.hear([worker("1"), worker("2")], 1.0)
    jobs.live["2"].goes_on(ON_LET_GO, 1.0)
    assert jobs.questions(SILENCE_S - 1.0) == [], "it has workers"
    jobs.hear([worker("1")], 2.0)
    assert jobs.questions(2.0 + ENDING_SILENCE_S) == ["2"], "it should be ending"
    assert asked(jobs, "2", row("2", "COMPLETED"), 20.0) == [("ended", "2")]
    assert asked(jobs, "1", row("1", "RUNNING"), SILENCE_S + 0.1) == []


def test_a_list_that_was_asked_for_before_the_latest_answer_changes_nothing(jobs: Jobs) -> None:
    submitted(jobs, "1")
    assert asked(jobs, "1", row("1", "RUNNING"), 100.0) == []
    assert jobs.looked(Listing((row("1", "PENDING"),)), 50.0, 101.0) == []
    assert jobs.live["1"].stand is Stand.RUNNING
    assert jobs.questions(102.0) == []
    seen(jobs, row("1", "RUNNING"), now=110.0)
    assert jobs.answered("1", row("1", "PENDING"), 105.0, 111.0) == []
    assert jobs.live["1"].stand is Stand.RUNNING
    seen(jobs, now=112.0)
    assert jobs.questions(113.0) == [], "asked a moment ago"


# Submissions


def test_a_submission_counts_from_its_beginning(jobs: Jobs) -> None:
    job = jobs.submits("farm-ab-small+1", "small", 0.0)
    seen(jobs, now=5.0)
    assert [(j.id, j.phase) for j in jobs.for_policy("small", 5.0)] == [
        ("farm-ab-small+1", "starting")
    ]
    jobs.submitted(job, "7", 6.0)
    assert list(jobs.live) == ["7"]
    assert jobs.submissions == {}
    assert job.phase is PENDING
    refused = jobs.submits("farm-ab-small+2", "small", 7.0)
    jobs.refused(refused, 8.0)
    assert list(jobs) == [job]
    assert refused.phase is ENDED


def test_a_submission_without_an_id_is_found_by_its_name(jobs: Jobs) -> None:
    job = jobs.submits("farm-ab-small+1", "small", 0.0)
    jobs.in_doubt(job, 1.0)
    assert job.phase is UNSURE
    assert seen(jobs, row("7", "RUNNING", name="farm-ab-small+1"), now=1.5) == [("adopted", "7")]
    assert list(jobs) == [job]
    assert job.id == "7"
    jobs.submitted(job, "8", 3.0)
    assert list(jobs.live) == ["7"], "the list has the right one"


def test_a_list_may_be_quicker_than_the_submission(jobs: Jobs) -> None:
    job = jobs.submits("farm-ab-small+1", "small", 0.0)
    seen(jobs, row("7", "RUNNING", name="farm-ab-small+1"))
    jobs.submitted(job, "7", 11.0)
    jobs.in_doubt(job, 11.0)
    jobs.refused(job, 11.0)
    assert list(jobs.live.values()) == [job]


def test_a_submission_never_existed_only_if_lists_lack_it_for_a_minute(jobs: Jobs) -> None:
    job = jobs.submits("farm-ab-small+1", "small", 0.0)
    seen(jobs, now=5.0)
    seen(jobs, now=5.0 + CONFIRM_S)
    assert jobs.never_listed() == [], "it runs"
    jobs.in_doubt(job, 70.0)
    seen(jobs, now=72.0)
    seen(jobs, now=80.0)
    seen(jobs, now=140.0, problem="no header")
    assert jobs.never_listed() == []
    seen(jobs, now=140.0)
    assert jobs.never_listed() == [job]
    jobs.never_existed(job, 141.0)
    assert list(jobs) == []


def test_a_number_that_was_no_job_id_is_replaced_by_the_id_of_the_list(jobs: Jobs) -> None:
    job = jobs.submits("farm-ab-small+1", "small", 0.0)
    jobs.submitted(job, "2026", 1.0)
    assert seen(jobs, row("7", "PENDING", name="farm-ab-small+1")) == []
    assert jobs.live == {"7": job}
    other = jobs.submits("farm-ab-small+2", "small", 20.0)
    jobs.submitted(other, "7", 21.0)
    assert other.phase is UNSURE, "another job has this id"


def test_two_jobs_with_one_name_are_two_jobs(jobs: Jobs) -> None:
    submitted(jobs, "1")
    rows = [row(n, "RUNNING", name="farm-ab-small+mark1") for n in "12"]
    assert seen(jobs, rows[0]) == []
    assert seen(jobs, *rows, now=20.0) == [("adopted", "2")]
    assert list(jobs.live) == ["1", "2"]


# Jobs that are not on record


def test_jobs_of_the_file_are_adopted_once_they_are_found_to_live(jobs: Jobs) -> None:
    jobs.remember("1", "farm-ab-small+1", "small", 0.0)
    jobs.remember("2", "farm-ab-small+2", "small", 0.0)
    jobs.remember("", "farm-ab-small+3", "small", 0.0)
    assert [j.phase for j in jobs.for_policy("small", 0.0)] == ["starting"] * 3
    assert jobs.questions(0.0) == ["1", "2"]
    assert asked(jobs, "1", row("1", "PENDING"), 1.0) == [("adopted", "1")]
    assert asked(jobs, "2", row("2", "COMPLETED"), 1.0) == [("ended", "2")]
    assert [j.phase for j in jobs.for_policy("small", 0.0)] == ["pending", "starting"]
    assert seen(jobs, row("3", "RUNNING", name="farm-ab-small+3")) == [("adopted", "3")]


def test_an_ended_job_that_a_list_has_as_alive_is_asked_about(jobs: Jobs) -> None:
    submitted(jobs, "1")
    jobs.answered("1", row("1", "FAILED"), 1.0, 2.0)
    assert seen(jobs, row("1", "RUNNING"), now=3.0) == []
    assert asked(jobs, "1", row("1", "FAILED"), 4.0) == []
    seen(jobs, row("1", "RUNNING"), now=5.0)
    assert jobs.questions(5.0) == [], "asked a moment ago"
    now = 5.0 + SILENCE_S
    seen(jobs, row("1", "PENDING"), now=now)
    assert asked(jobs, "1", row("1", "PENDING"), now) == [("adopted", "1")]
    assert list(jobs.live) == ["1"], "somebody has requeued it"


def test_a_worker_of_a_job_that_is_not_on_record_is_a_reason_to_ask(jobs: Jobs) -> None:
    submission = jobs.submits("farm-ab-small+1", "small", 0.0)
    jobs.in_doubt(submission, 1.0)
    jobs.hear([worker("7", kind="small"), worker("8"), worker("9", kind="small")], 2.0)
    assert jobs.questions(2.0) == ["7", "9"]
    jobs.unanswered("9", 2.0)
    assert asked(jobs, "7", row("7", "RUNNING", name="farm-ab-small+1"), 3.0) == [("adopted", "7")]
    assert list(jobs) == [submission]
    assert jobs.questions(4.0) == []
    later = 3.0 + SILENCE_S
    assert asked(jobs, "9", row("9", "RUNNING", name="mine"), later) == []
    jobs.hear([worker("9", kind="small")], later + 1.0)
    assert "9" not in jobs.questions(later + 1.0)
    assert list(jobs.live) == ["7"]


def test_only_so_many_ended_jobs_are_remembered(jobs: Jobs) -> None:
    rows = [row(str(n), "COMPLETED") for n in range(1, PAST_KEPT + 2)]
    seen(jobs, *rows)
    assert seen(jobs, row("1", "RUNNING")) == [("adopted", "1")], "the first one is forgotten"
    assert seen(jobs, row("2", "RUNNING")) == []


def test_reasons_that_somebody_can_mend_are_told_once(jobs: Jobs) -> None:
    submitted(jobs, "1", 0.0)
    assert seen(jobs, row("1", "PENDING", reason="Resources")) == []
    assert seen(jobs, row("1", "PENDING", reason="PartitionDown")) == [("waits", "1")]
    assert seen(jobs, row("1", "PENDING", reason="PartitionDown")) == []


def test_a_requeued_job_starts_anew(jobs: Jobs) -> None:
    job = submitted(jobs, "1", 0.0)
    seen(jobs, row("1", "RUNNING"))
    jobs.hear([worker("1")], 5.0)
    jobs.hear([], 6.0)
    back = row("1", "PENDING", reason="BeginTime")
    assert seen(jobs, back) == [], "the list may be old"
    assert job.stand is Stand.RUNNING
    assert asked(jobs, "1", back, 11.0) == [("requeued", "1")]
    assert (job.shown, job.phase.has_served) == ("pending", False)
    assert [change.event for change in jobs.hear([worker("1")], 7.0)] == ["started"]


def test_a_job_that_goes_back_into_the_queue_in_error_is_for_people(jobs: Jobs) -> None:
    """Grid Engine does this with a job that cannot start on its node."""
    submitted(jobs, "1", 0.0)
    seen(jobs, row("1", "RUNNING"))
    back = row("1", "PENDING", reason="PartitionDown")
    assert seen(jobs, back) == []
    assert asked(jobs, "1", back, 11.0) == [("requeued", "1"), ("waits", "1")]
    assert seen(jobs, back, now=12.0) == []


def test_workers_of_released_jobs_have_to_drain_whenever_they_join(jobs: Jobs) -> None:
    kept, released = submitted(jobs, "1", 0.0), submitted(jobs, "2", 0.0)
    for job in (kept, released):
        seen(jobs, row(job.id, "RUNNING"))
    rows = [worker("1", name="a"), worker("2", name="b"), worker("2", name="c", slots=0)]
    assert jobs.to_drain([*rows, worker("", name="d"), worker("9", name="e")]) == []
    released.goes_on(ON_LET_GO, 1.0)
    assert jobs.to_drain(rows) == ["b"]
    jobs.hear(rows, 2.0)
    assert jobs.to_drain(rows) == ["b"]


def test_a_job_is_idle_while_none_of_its_workers_has_done_anything(jobs: Jobs) -> None:
    submitted(jobs, "1", 0.0)

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


def test_a_job_whose_workers_have_sequences_is_not_idle(jobs: Jobs) -> None:
    submitted(jobs, "1", 0.0)
    for now, sequences in ((1.0, 2), (50.0, 1), (60.0, 0), (70.0, 0)):
        jobs.hear([{**worker("1"), **({"sequences": sequences} if sequences else {})}], now)
    (job,) = jobs.for_policy("small", 70.0)
    assert job.idle_s == 10.0


def test_the_first_end_of_its_workers_is_the_end_of_a_job(jobs: Jobs) -> None:
    submitted(jobs, "1", 0.0)
    jobs.hear([worker("1", ends_in_s=50.0), worker("1", ends_in_s=40.0)], 1.0)
    assert jobs.for_policy("small", 1.0)[0].ends_in_s == 40.0


def test_a_job_whose_workers_have_been_gone_for_long_cannot_be_counted_on(jobs: Jobs) -> None:
    """Its node has failed, which SLURM has not noticed yet; if it was only cut off, it is back."""
    submitted(jobs, "1", 0.0)
    counted = []
    for now, rows in [(1, [worker("1")]), (2, []), (20, []), (40, []), (50, [worker("1")])]:
        seen(jobs, row("1", "RUNNING"), now=now)
        jobs.hear(rows, now)
        counted.append([job.phase for job in jobs.for_policy("small", now)])
    assert counted == [["serving"], ["starting"], ["starting"], [], ["serving"]]


def test_jobs_on_their_way_out_cannot_be_counted_on(jobs: Jobs) -> None:
    for n in "1234":
        submitted(jobs, n, 0.0)
    jobs.live["1"].goes_on(ON_LET_GO, 5.0)
    seen(
        jobs, row("1", "RUNNING"), row("2", "COMPLETING"), row("3", "RUNNING"), row("4", "RUNNING")
    )
    for now in (6.0, 8.0):
        jobs.hear([worker("3", slots=0), worker("3"), worker("4", slots=0, in_flight=1)], now)
    assert [job.id for job in jobs.for_policy("small", 8.0)] == ["3"]
    assert len(jobs.of("small")) == 4


def test_a_job_that_drains_is_not_counted_on_again_when_its_workers_are_gone(jobs: Jobs) -> None:
    """Else the job that takes its place would be one too many until SLURM tells of the end."""
    submitted(jobs, "1", 0.0)
    counted, events = [], []
    shut = worker("1", slots=0)
    for now, rows in [(1, [worker("1")]), (2, [shut]), (3, [shut]), (4, [shut]), (5, []), (6, [])]:
        events += [change.event for change in jobs.hear(rows, now)]
        counted.append(len(jobs.for_policy("small", now)))
    assert counted == [1, 1, 1, 0, 0, 0]
    assert events == ["started", "deserted"]


def test_a_job_that_cannot_be_reached_for_a_moment_is_counted_on(jobs: Jobs) -> None:
    submitted(jobs, "1", 0.0)
    for now, slots in [(1.0, 1), (2.0, 0), (3.9, 0), (4.0, 1), (5.0, 0), (6.9, 0)]:
        jobs.hear([worker("1", slots=slots)], now)
        assert len(jobs.for_policy("small", now)) == 1
