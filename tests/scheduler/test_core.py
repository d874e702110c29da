"""Calls, workers and answers: one test per rule; losses and recalls have their own files."""

from __future__ import annotations

import pytest

from farm.call import Operation, Result
from farm.errors import DeadlineExceeded, InvalidInput, ModelFailed, ModelNotFound, Overloaded
from farm.scheduler.state import TaskId
from tests.support.scheduler_recorder import Recorder, asked_back, call, model, replied, sent

DESCRIBE = call(operation=Operation.DESCRIBE)


# Submission


def test_reply_says_how_long_the_call_waited_and_where_it_ran(farm: Recorder) -> None:
    farm.join("w")
    first, second = farm.submit_many(2)
    farm.expect(sent("w", first))
    farm.after(3.0).answer("w", first, 1.0, sent("w", second))
    farm.after(4.0).answer("w", second, 4.0)
    assert [reply.queue_time_s for reply in farm.replies] == [0.0, 3.0]
    assert [reply.worker for reply in farm.replies] == ["w", "w"]
    assert isinstance(farm.replies[1].outcome, Result)


def test_unknown_model_is_refused(farm: Recorder) -> None:
    farm.join("w", "m")
    with pytest.raises(ModelNotFound, match="no worker has served model 'other' yet"):
        farm.submit("other")
    assert len(farm.scheduler) == 0


def test_calls_of_one_client_and_of_all_wait_up_to_a_limit() -> None:
    farm = Recorder(max_queued=4, max_queued_per_client=2)
    farm.join("w", "m", "n")
    farm.begin("w", client="greedy")  # running calls do not count
    waiting = [farm.submit(name, client="greedy") for name in "mn"]
    for name in "mn":
        with pytest.raises(Overloaded, match="2 calls of client 'greedy' are waiting"):
            farm.submit(name, client="greedy")
    farm.submit_many(2, client="modest")
    with pytest.raises(Overloaded, match="4 calls are waiting, the most the farm takes"):
        farm.submit(client="new")
    assert len(farm.scheduler) == 5
    farm.scheduler.cancel(waiting[1])
    farm.submit("n", client="greedy")


# Answers


def test_model_errors_are_answers_and_never_retried(farm: Recorder) -> None:
    farm.join("w")
    tasks = farm.submit_many(2)
    farm.expect(sent("w", tasks[0]))
    farm.answer("w", tasks[0], ModelFailed("it raised"), sent("w", tasks[1]))
    farm.answer("w", tasks[1], InvalidInput("too long"))
    assert farm.queue().counts.failed == 2


def test_answers_to_what_was_not_asked_or_is_answered_are_ignored(farm: Recorder) -> None:
    farm.join("w")
    farm.join("other")
    task = farm.begin("other")
    farm.finish("w", task)  # it was sent to another worker
    farm.finish("nobody", task)
    farm.finish("w", TaskId(99))
    farm.expect()
    waiting = farm.submit_many(2)
    farm.expect(sent("w", waiting[0]))
    farm.finish("w", waiting[1])  # it was not sent to any worker yet
    farm.finish("other", task, 1.0)
    farm.finish("other", task, 2.0)
    farm.expect(replied(task, 1.0, "other"), sent("other", waiting[1]))
    farm.finish("other", task, 3.0)
    farm.expect()


@pytest.mark.parametrize("cancelled", [False, True])
def test_late_answer_counts_while_the_call_runs_elsewhere(farm: Recorder, cancelled: bool) -> None:
    """But it goes to no one if the call was cancelled."""
    farm.join("w")
    task = farm.begin("w")
    farm.leave("w", "out of reach")
    farm.join("other")
    farm.expect(sent("other", task))
    if cancelled:
        farm.scheduler.cancel(task)
    farm.finish("w", task, 2.0)
    farm.expect(*([] if cancelled else [replied(task, 2.0, "w")]))
    following = farm.submit()
    farm.expect()  # the other worker still runs it
    farm.finish("w", task, 3.0)
    farm.expect()
    farm.finish("other", task, 4.0)
    farm.expect(sent("other", following))
    assert farm.queue().counts.done == (0 if cancelled else 1)


# Cancellation


def test_cancelled_call_leaves_the_queue_or_runs_on_for_no_one(farm: Recorder) -> None:
    farm.join("w")
    tasks = farm.submit_many(3)
    farm.expect(sent("w", tasks[0]))
    for task in (tasks[0], tasks[0], tasks[1]):
        farm.scheduler.cancel(task)
    farm.expect()
    farm.finish("w", tasks[0])
    farm.expect(sent("w", tasks[2]))
    assert farm.queue().counts.done == 0
    assert farm.worker("w").answers.done == 1


def test_a_call_that_is_failed_gets_its_error_and_leaves_the_queue(farm: Recorder) -> None:
    farm.join("w")
    runs, waits = farm.submit_many(2)
    farm.expect(sent("w", runs))
    for task in (waits, runs, waits, TaskId(99)):
        farm.scheduler.fail(task, ModelNotFound("no worker came"), now=farm.now)
    farm.expect(replied(waits, ModelNotFound, None), replied(runs, ModelNotFound, None))
    assert farm.queue().counts.failed == 2
    farm.finish("w", runs)
    farm.expect()


# Deadlines


def test_expired_call_is_dropped_before_it_is_sent(farm: Recorder) -> None:
    farm.join("w")
    running = farm.begin("w")
    task = farm.submit(deadline=5.0)
    farm.expect()
    assert farm.scheduler.wakeup() == 5.0
    farm.after(4.9).expect()
    farm.after(0.2).answer("w", running, 1.0, replied(task, DeadlineExceeded, None))
    assert farm.last_error() == "no answer within 5.1 s; the call was in the queue"
    assert farm.scheduler.wakeup() is None


def test_call_that_runs_too_long_is_answered_and_runs_on(farm: Recorder) -> None:
    farm.join("w")
    task = farm.begin("w", deadline=5.0)
    farm.after(5.0).expect(replied(task, DeadlineExceeded, None))
    assert farm.last_error() == (
        "no answer within 5 s; the call was on worker w; "
        "what happened: queued 0 s, sent to w 5 s ago"
    )
    following = farm.submit(deadline=10.0)
    farm.expect()
    farm.finish("w", task)
    farm.expect(sent("w", following))
    farm.leave("w")
    farm.after(5.0).expect(replied(following, DeadlineExceeded, None))  # a loss does not defer it


def test_call_that_has_to_start_in_time_may_then_take_its_own(farm: Recorder) -> None:
    farm.join("w")
    running, waiting = farm.submit(start_by=5.0), farm.submit(start_by=6.0, deadline=6.0)
    farm.expect(sent("w", running))
    farm.now = 5.0
    farm.expect()
    assert farm.scheduler.wakeup() == 6.0
    farm.now = 6.0
    farm.expect(replied(waiting, DeadlineExceeded, None))
    farm.answer("w", running)


def test_call_that_has_ended_has_no_deadline(farm: Recorder) -> None:
    farm.join("w")
    answered, running, waiting = (farm.submit(deadline=at) for at in (5.0, 60.0, 70.0))
    farm.expect(sent("w", answered))
    farm.after(1.0).answer("w", answered, 1.0, sent("w", running))
    farm.scheduler.cancel(running)
    farm.scheduler.cancel(waiting)
    farm.finish("w", running)
    farm.after(5.0).expect()
    assert farm.scheduler.wakeup() is None, "the later ones are forgotten with the first"


# Workers that join and change


def test_a_worker_may_offer_more_slots_and_then_fewer(farm: Recorder) -> None:
    farm.join("w", slots=2)
    tasks = farm.submit_many(4)
    farm.expect(sent("w", *tasks[:2]))
    farm.resize("w", 3)
    farm.expect(sent("w", tasks[2]))
    farm.resize("w", 2)
    farm.expect(asked_back("w", tasks[2]))
    farm.hand_back("w")  # it has begun all three
    farm.expect()
    farm.answer("w", tasks[0])
    farm.answer("w", tasks[1], 1.0, sent("w", tasks[3]))


def test_a_worker_that_does_not_read_keeps_what_it_has_and_gets_no_more(farm: Recorder) -> None:
    """Recalling its calls and resending them would fill it again, endlessly."""
    farm.join("w", slots=2)
    first, described = farm.submit(), farm.submit(DESCRIBE)
    farm.expect(sent("w", first, described))
    farm.fill("w", True)
    second = farm.submit()
    farm.expect()
    farm.answer("w", first)
    farm.fill("w", False)
    farm.expect(sent("w", second))
    farm.fill("nobody", True)
    farm.expect()


def test_facts_about_unknown_workers_are_ignored(farm: Recorder) -> None:
    farm.leave("nobody")
    farm.resize("nobody", 2)
    farm.hand_back("nobody", TaskId(1))
    farm.miss("nobody", TaskId(1))
    farm.expect()


def test_workers_that_differ_in_a_model_get_what_suits_all_that_are_left(farm: Recorder) -> None:
    farm.join("old", model(max_batch=1))
    farm.leave("old", drained=True)
    farm.join("small", model(max_batch=2, repeatable=False))
    farm.join("large", model(max_batch=8))
    tasks = farm.submit_many(3)
    farm.expect(sent("large", *tasks[:2]), sent("small", tasks[2]))
    assert not farm.queue().repeatable
    assert farm.queue(operation=Operation.DESCRIBE).repeatable
