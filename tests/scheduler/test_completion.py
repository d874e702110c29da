"""Calls that come back or are lost: which run again, which count a loss, and which fail."""

from __future__ import annotations

from typing import Any

import pytest

from farm.call import Operation
from farm.errors import Cancelled, LossCause, TimeLimitExceeded, WorkerLost
from farm.scheduler.phases import ENDED
from farm.scheduler.state import TaskId
from tests.support.scheduler_recorder import (
    SHORT_S,
    Recorder,
    call,
    model,
    prefetched,
    replied,
    sent,
    stateful,
    step,
)


def test_call_fails_after_its_retries_and_names_the_workers(farm: Recorder) -> None:
    task = None
    for name in ("a", "b", "c", "d"):
        farm.join(name)
        task = task or farm.submit()
        farm.expect(sent(name, task))
        farm.after(1.0).leave(name, "signal 11")
        farm.now += 0.5
    assert task is not None
    farm.expect(replied(task, WorkerLost, "d"))
    assert farm.last_error() == (
        "the call was lost 4 times, with a (signal 11), b (signal 11), c (signal 11), "
        "d (signal 11); what happened: queued 0 s, lost with a after 1 s (signal 11), "
        "queued again 500 ms, lost with b after 1 s (signal 11), queued again 500 ms, "
        "lost with c after 1 s (signal 11), queued again 500 ms, lost with d after 1 s (signal 11)"
    )
    assert farm.queue().counts.failed == 1


def test_call_of_a_lost_worker_keeps_its_place_ahead(farm: Recorder) -> None:
    """It had its turn: no client's call that waited longer overtakes it."""
    farm.join("w")
    running = farm.begin("w")
    waiting = farm.submit(client="b")
    task = farm.submit(client="a", priority=1)
    farm.answer("w", running, 1.0, sent("w", task))
    urgent = farm.submit(priority=2)
    newer = farm.submit(client="b", priority=1)
    farm.leave("w")
    farm.join("other", slots=4)
    farm.expect(sent("other", urgent, task, newer, waiting))


@pytest.mark.parametrize(
    ("count", "slots", "running", "guilty"),
    [(2, 1, [1], [1]), (4, 2, None, [0, 1])],
    ids=["only what was running", "the first sent, if nobody knows what was running"],
)
def test_some_calls_of_a_lost_worker_count_an_attempt(
    farm: Recorder, count: int, slots: int, running: list[int] | None, guilty: list[int]
) -> None:
    tasks = prefetched(farm, count, slots=slots)
    farm.leave("w", running=None if running is None else [tasks[i] for i in running])
    farm.expect()
    lost_on = [farm.task(task).past.lost_on for task in tasks]
    assert lost_on == [("w (killed)",) if i in guilty else () for i in range(count)]


@pytest.mark.parametrize(
    "end",
    [
        {"drained": True},
        {"cause": LossCause.RECLAIMED},
        {"cause": LossCause.RECLAIMED, "running": [TaskId(1)]},
    ],
    ids=["drained", "machine taken away", "machine taken away from a run"],
)
def test_orderly_end_of_a_worker_costs_no_attempt(farm: Recorder, end: dict[str, Any]) -> None:
    farm.join("w")
    task = farm.submit()
    for _ in range(6):
        farm.expect(sent("w", task))
        farm.leave("w", **end)
        farm.join("w")
    farm.expect(sent("w", task))
    assert farm.task(task).past.lost_on == ()


def test_worker_that_joins_again_has_lost_what_it_had(farm: Recorder) -> None:
    farm.join("w", "m", model("once", repeatable=False), slots=2)
    task, once = farm.submit(), farm.submit("once")
    farm.expect(sent("w", task, once))
    farm.join("w", "m", model("once", repeatable=False))
    farm.expect(replied(once, WorkerLost, "w"), sent("w", task))
    assert farm.task(task).past.lost_on == ("w (it joined again)",)


def test_call_over_its_time_limit_is_not_run_again(farm: Recorder) -> None:
    first, second = prefetched(farm)
    farm.after(60.0).leave(
        "w", "a call ran longer than 60 s", running=[first], cause=LossCause.TIME_LIMIT
    )
    farm.expect(replied(first, TimeLimitExceeded, "w"))
    assert farm.last_error() == (
        "worker w was killed: a call ran longer than 60 s; "
        "what happened: queued 0 s, lost with w after 60 s (a call ran longer than 60 s)"
    )
    farm.join("other")
    farm.expect(sent("other", second))


def test_call_that_is_not_repeatable_but_was_handed_back_runs_elsewhere(farm: Recorder) -> None:
    farm.join("w", model(repeatable=False))
    task = farm.begin("w")
    farm.hand_back("w", task)
    farm.expect(sent("w", task))
    farm.leave("w", drained=True)
    farm.join("third", model(repeatable=False))
    farm.expect(sent("third", task))


@pytest.mark.parametrize(
    "loss",
    [
        {},
        {"running": []},
        {"running": [], "cause": LossCause.RECLAIMED},
        {"cause": LossCause.RECLAIMED},
        {"running": [], "cause": LossCause.TIME_LIMIT},
    ],
)
def test_call_that_is_not_repeatable_counts_as_run_however_its_worker_is_lost(
    farm: Recorder, loss: dict[str, Any]
) -> None:
    """A worker without a running call may have finished the run just before it died."""
    farm.join("w", model(repeatable=False))
    task = farm.begin("w")
    farm.join("other", model(repeatable=False))
    farm.leave("w", "signal 9", **loss)
    farm.expect(replied(task, WorkerLost, "w"))
    assert farm.last_error() == (
        "worker w (signal 9) may have run this call before it was lost, and model 'm' is not "
        "repeatable; what happened: queued 0 s, lost with w after 0 s (signal 9)"
    )


@pytest.mark.parametrize("cause", [LossCause.UNKNOWN, LossCause.TIME_LIMIT])
def test_batches_that_are_not_repeatable_are_lost_as_a_whole(
    farm: Recorder, cause: LossCause
) -> None:
    farm.join("w", model(max_batch=4, repeatable=False), slots=2)
    tasks = farm.begin_many("w", 6)  # one batch per slot: all of them run at once
    farm.leave("w", running=tasks[:4], cause=cause)
    first = TimeLimitExceeded if cause is LossCause.TIME_LIMIT else WorkerLost
    farm.expect(
        *[replied(task, first, "w") for task in tasks[:4]],
        *[replied(task, WorkerLost, "w") for task in tasks[4:]],
    )


def test_calls_that_are_not_repeatable_are_never_prefetched(farm: Recorder) -> None:
    farm.join("w", model(repeatable=False))
    for _ in range(20):
        task = farm.begin("w")
        farm.after(1e-3).answer("w", task, 1e-6)
    tasks = farm.submit_many(3)
    farm.expect(sent("w", tasks[0]))


def test_question_that_kills_workers_beside_what_they_run_is_given_up(farm: Recorder) -> None:
    farm.join("a", model(repeatable=False))
    question = farm.begin("a", call(operation=Operation.DESCRIBE))
    for name, following in ("ab", "bc", "cd"):
        farm.leave(name, running=[])
        farm.join(following, model(repeatable=False))
        farm.expect(sent(following, question))  # a question may be repeated
    farm.leave("d", running=[])
    farm.expect(replied(question, WorkerLost, "d"))


def test_question_beside_a_call_that_ran_for_too_long_is_not_guilty(farm: Recorder) -> None:
    farm.join("w")
    task, question = farm.submit(), farm.submit(call(operation=Operation.DESCRIBE))
    farm.expect(sent("w", task, question))
    farm.leave("w", running=[task], cause=LossCause.TIME_LIMIT)
    farm.join("other")
    farm.expect(replied(task, TimeLimitExceeded, "w"), sent("other", question))


def test_suspects_run_alone_so_that_only_the_guilty_fail(farm: Recorder) -> None:
    batchable = model(max_batch=8)
    farm.join("w", batchable)
    innocent, poison = farm.begin_many("w", 2)
    farm.leave("w")
    farm.join("w2", batchable)
    farm.expect(sent("w2", innocent))
    farm.answer("w2", innocent, 1.0, sent("w2", poison))
    for name, following in (("w2", "w3"), ("w3", "w4")):
        farm.leave(name)
        farm.join(following, batchable)
        farm.expect(sent(following, poison))
    farm.leave("w4")
    farm.expect(replied(poison, WorkerLost, "w4"))


def test_nothing_waits_at_a_worker_behind_a_suspect(farm: Recorder) -> None:
    first, second = prefetched(farm)
    farm.leave("w", running=[first])
    farm.join("other")
    farm.expect(sent("other", first))
    farm.finish("other", first, SHORT_S)
    third = farm.submit()
    farm.expect(replied(first, SHORT_S, "other"), sent("other", second, third))


def test_call_lost_on_the_way_is_sent_again_and_counts(farm: Recorder) -> None:
    farm.join("w", "m", model("once", repeatable=False))
    task = farm.submit()
    for _ in range(4):
        farm.expect(sent("w", task))
        farm.miss("w", task)
    farm.expect(replied(task, WorkerLost, "w"))
    assert "w (lost on the way)" in farm.last_error()
    once = farm.begin("w", "once")
    farm.miss("w", once)
    farm.expect(replied(once, WorkerLost, "w"))  # it may have run


def test_only_what_a_worker_has_can_go_missing(farm: Recorder) -> None:
    farm.join("w")
    first, second = farm.submit_many(2)
    farm.expect(sent("w", first))
    farm.miss("w", second)
    farm.expect()
    farm.scheduler.cancel(first)
    farm.miss("w", first)
    farm.expect(sent("w", second))
    assert len(farm.scheduler) == 1


def test_a_cancelled_task_that_comes_back_ends(farm: Recorder) -> None:
    farm.join("w")
    task = farm.begin("w")
    record = farm.task(task)
    farm.scheduler.cancel(task)
    farm.hand_back("w", task)
    farm.expect()
    assert record.phase is ENDED


def test_a_cancelled_call_of_a_sequence_that_comes_back_breaks_it_off(farm: Recorder) -> None:
    farm.join("w", stateful())
    first, second = farm.submit(step(7, "s")), farm.submit(step(7))
    farm.expect(sent("w", first))
    farm.scheduler.cancel(first)
    farm.hand_back("w", first)
    farm.expect(replied(second, Cancelled, None), ("end sequence", "w", 7))
