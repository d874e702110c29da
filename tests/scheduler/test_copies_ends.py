"""What becomes of a call and its copy: the first answer counts, and losses leave the other one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from farm.errors import LossCause, TimeLimitExceeded
from farm.scheduler.outcomes import story
from farm.scheduler.phases import OUTRUN, SENT
from farm.scheduler.state import TaskId
from tests.support.scheduler_recorder import Recorder, copied, ended, replied, result, sent

# The first answer counts


@pytest.mark.parametrize(("first", "second"), [("w1", "w2"), ("w2", "w1")])
def test_the_first_answer_counts_and_the_loser_teaches_and_costs_nothing(
    farm: Recorder, first: str, second: str
) -> None:
    task = copied(farm, client="a")
    account, times, counts = farm.account("a"), farm.run_times(), farm.queue().counts
    began_s = account.used_s - 1.0  # the estimate of one run
    assert account.held > 0
    farm.answer(first, task, 4.0, ended(second, task))
    known = times.count, times.mean, times.round_trip_s
    assert farm.task(task).phase is OUTRUN
    workers = farm.scheduler.view.snapshot(farm.now)["workers"]
    assert {row["name"]: row["in_flight"] for row in workers} == {"w1": 0, "w2": 0}
    for left in (1, 0):
        assert (counts.done, counts.failed, counts.in_flight, counts.extra) == (21, 0, left, left)
        assert (account.held, account.active) == (0, 0)
        assert account.used_s == pytest.approx(began_s + 4.0)
        farm.after(50.0).finish(second, task, 54.0)
        farm.expect()
    assert (times.count, times.mean, times.round_trip_s) == known
    assert farm.worker(second).answers.done == 0
    assert len(farm.scheduler) == 0


def test_status_and_result_say_that_a_copy_was_sent(farm: Recorder) -> None:
    task = copied(farm)
    state = farm.scheduler.view.snapshot(farm.now)
    (queue,) = state["queues"]
    assert (queue["copies"], queue["in_flight"]) == (1, 1)
    told = ["queued 0 s", "sent to w1 4 s ago", "copied to w2 1 s ago"]
    assert [row["story"] for row in state["calls"]] == [told]
    farm.answer("w2", task, 1.0, ended("w1", task))
    other = farm.begin("w2")
    farm.answer("w2", other)
    assert farm.scheduler.view.snapshot(farm.now)["calls"] == []
    both = [reply.result(result()).copied for reply in farm.replies[-2:]]
    assert both == [True, False]


# Losses


@pytest.mark.parametrize("order", [("w1", "w2"), ("w2", "w1")])
def test_if_both_workers_are_lost_the_call_is_requeued_once(
    farm: Recorder, order: tuple[str, str]
) -> None:
    task = copied(farm)
    for worker in order:
        farm.leave(worker)
    farm.after(1.0).expect()
    assert farm.task(task).past.lost_on == tuple(f"{worker} (killed)" for worker in order)
    assert story(farm.task(task), farm.now) == [
        "queued 0 s",
        "lost with w1 after 4 s (killed)",
        "copy lost with w2 after 1 s (killed)",
        "queued again 1 s",
    ]
    farm.join("w3")
    farm.expect(sent("w3", task))
    farm.answer("w3", task)


def test_a_call_is_given_up_only_when_both_attempts_are_lost() -> None:
    farm = Recorder(retries=0)
    task = copied(farm)
    farm.leave("w1", "time limit", running=[task], cause=LossCause.TIME_LIMIT)
    farm.expect()
    farm.leave("w2", "time limit", running=[task], cause=LossCause.TIME_LIMIT)
    farm.expect(replied(task, TimeLimitExceeded, "w2"))
    assert len(farm.scheduler) == 0


@pytest.mark.parametrize(
    ("end", "lost"),
    [
        (lambda farm, worker, task: farm.leave(worker), "killed"),
        (lambda farm, worker, task: farm.miss(worker, task), "lost on the way"),
        (lambda farm, worker, task: farm.hand_back(worker, task), ""),
        (lambda farm, worker, task: farm.leave(worker, drained=True), ""),
    ],
    ids=["killed", "missing", "recalled", "drained"],
)
@pytest.mark.parametrize(("ends", "left"), [("w1", "w2"), ("w2", "w1")])
def test_an_attempt_that_ends_without_an_answer_leaves_the_other(
    farm: Recorder,
    end: Callable[[Recorder, str, TaskId], None],
    lost: str,
    ends: str,
    left: str,
) -> None:
    task = copied(farm, client="a")
    record, account = farm.task(task), farm.account("a")
    costs = account.held, account.used_s
    end(farm, ends, task)
    farm.expect()
    assert [attempt.worker.id for attempt in record.attempts] == [ends, left]
    assert record.phase is SENT
    assert record.past.lost_on == ((f"{ends} ({lost})",) if lost else ())
    assert (account.held, account.used_s) == costs
    farm.join("w3")
    farm.after(50.0).expect()
    farm.answer(left, task, 5.0)
    assert len(farm.scheduler) == 0


def test_a_worker_runs_in_vain_when_other_workers_have_answered_all_its_calls(
    farm: Recorder,
) -> None:
    task = copied(farm)
    one, two = farm.worker("w1").id, farm.worker("w2").id
    assert not farm.scheduler.runs_in_vain(one)
    farm.finish("w2", task)
    farm.forget_actions()
    assert farm.scheduler.runs_in_vain(one)
    assert not farm.scheduler.runs_in_vain(two), "it is idle"
    farm.finish("w1", task)
    assert not farm.scheduler.runs_in_vain(one)
