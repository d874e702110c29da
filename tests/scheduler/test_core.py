"""Calls, workers and answers: one test per rule; losses and recalls have their own files."""

from __future__ import annotations

import pytest

from farm.call import Operation, Result
from farm.errors import DeadlineExceeded, InvalidInput, ModelFailed, ModelNotFound, Overloaded
from farm.scheduler.actions import Send
from farm.scheduler.core import Scheduler
from farm.scheduler.state import TaskId, WorkerId
from tests.scheduler.invariants import check
from tests.scheduler.recorder import (
    SHORT_S,
    Recorder,
    asked_back,
    call,
    model,
    replied,
    result,
    sent,
)

DESCRIBE = call(operation=Operation.DESCRIBE)


# Submission


def test_call_for_an_idle_worker_is_sent_at_once(farm: Recorder) -> None:
    farm.join("w")
    task = farm.submit()
    farm.expect(sent("w", task))


def test_call_waits_for_a_free_worker(farm: Recorder) -> None:
    """Late binding: calls stay in the queue while no worker has credit for them."""
    farm.join("w")
    first, second = farm.submit(), farm.submit()
    farm.expect(sent("w", first))
    farm.finish("w", first)
    farm.expect(replied(first, 1.0, "w"), sent("w", second))


def test_reply_says_how_long_the_call_waited_and_where_it_ran(farm: Recorder) -> None:
    farm.join("w")
    first, second = farm.submit_many(2)
    farm.expect(sent("w", first))
    farm.after(3.0).finish("w", first)
    farm.expect(replied(first, 1.0, "w"), sent("w", second))
    farm.after(4.0).finish("w", second, 4.0)
    farm.expect(replied(second, 4.0, "w"))
    assert [reply.queue_time_s for reply in farm.replies] == [0.0, 3.0]
    assert [reply.worker for reply in farm.replies] == ["w", "w"]
    assert isinstance(farm.replies[1].outcome, Result)


def test_calls_are_numbered_from_the_first_task_on() -> None:
    farm = Recorder(first_task=500)
    farm.join("w")
    assert farm.submit_many(2) == [500, 501]


def test_settings_are_the_policys_unless_said() -> None:
    scheduler = Scheduler()
    assert scheduler.view.limits == (100_000, 100_000)
    assert scheduler._open._retries == 3
    scheduler.worker_joined(WorkerId("w"), [model()], now=0.0)
    (first, second, third) = (scheduler.submit(call(), now=0.0) for _ in range(3))
    assert first == 1
    urgent = scheduler.submit(call(), priority=1, now=0.0)
    usual = scheduler.submit(call(), priority=0, client="", now=0.0)
    order = []
    for _ in range(5):
        send = scheduler.actions(0.0)[-1]
        assert isinstance(send, Send)
        (task,) = send.tasks
        order.append(task.id)
        scheduler.finished(send.worker, task.id, result(), now=0.0)
    assert order == [urgent, first, second, third, usual]


def test_unknown_model_is_refused(farm: Recorder) -> None:
    farm.join("w", "m")
    with pytest.raises(ModelNotFound, match="no worker has served model 'other' yet"):
        farm.submit("other")
    assert len(farm.scheduler) == 0


def test_call_waits_for_a_model_that_was_served_before(farm: Recorder) -> None:
    farm.join("w")
    farm.leave("w", drained=True)
    task = farm.submit()
    farm.expect()
    farm.join("again")
    farm.expect(sent("again", task))


def test_farm_takes_no_more_than_it_may_queue() -> None:
    farm = Recorder(max_queued=2)
    farm.join("w")
    running = farm.submit()
    farm.expect(sent("w", running))
    waiting = farm.submit_many(2)  # running calls do not count
    with pytest.raises(Overloaded, match="2 calls are waiting, the most the farm takes"):
        farm.submit(client="new")
    assert len(farm.scheduler) == 3
    farm.scheduler.cancel(waiting[0])
    farm.submit()


def test_client_may_not_fill_the_queue_alone() -> None:
    farm = Recorder(max_queued_per_client=2)
    farm.join("w", "m", "n")
    running = farm.submit(client="greedy")
    farm.expect(sent("w", running))
    waiting = [farm.submit("m", client="greedy"), farm.submit("n", client="greedy")]
    for name in ("m", "n"):
        with pytest.raises(Overloaded, match="2 calls of client 'greedy' are waiting"):
            farm.submit(name, client="greedy")
    farm.submit(client="modest")
    farm.scheduler.cancel(waiting[1])
    farm.submit("n", client="greedy")
    check(farm.scheduler)
    assert len(farm.scheduler) == 4


# Answers


def test_model_errors_are_answers_and_never_retried(farm: Recorder) -> None:
    farm.join("w")
    tasks = farm.submit_many(2)
    farm.expect(sent("w", tasks[0]))
    farm.finish("w", tasks[0], ModelFailed("it raised"))
    farm.expect(replied(tasks[0], ModelFailed, "w"), sent("w", tasks[1]))
    farm.finish("w", tasks[1], InvalidInput("too long"))
    farm.expect(replied(tasks[1], InvalidInput, "w"))
    assert farm.queue().counts.failed == 2


def test_second_answer_is_ignored(farm: Recorder) -> None:
    farm.join("w")
    task = farm.submit()
    farm.expect(sent("w", task))
    farm.finish("w", task, 1.0)
    farm.finish("w", task, 2.0)
    farm.expect(replied(task, 1.0, "w"))
    farm.finish("w", task, 3.0)
    farm.expect()


def test_answers_to_what_was_never_asked_are_ignored(farm: Recorder) -> None:
    farm.join("w")
    farm.join("other")
    task = farm.submit()
    farm.expect(sent("other", task))
    farm.finish("w", task)  # it was sent to another worker
    farm.finish("nobody", task)
    farm.finish("w", TaskId(99))
    farm.expect()
    waiting = farm.submit_many(2)
    farm.expect(sent("w", waiting[0]))
    farm.finish("w", waiting[1])  # it was not sent to any worker yet
    farm.expect()


def test_late_answer_counts_while_the_call_waits_again(farm: Recorder) -> None:
    farm.join("w")
    task = farm.submit()
    farm.expect(sent("w", task))
    farm.after(1.0).leave("w", "out of reach")
    farm.expect()
    farm.after(1.0).finish("w", task, 2.0)
    farm.expect(replied(task, 2.0, "w"))
    assert len(farm.scheduler) == 0
    farm.join("other")
    farm.expect()


def test_late_answer_counts_while_the_call_runs_elsewhere(farm: Recorder) -> None:
    farm.join("w")
    task = farm.submit()
    farm.expect(sent("w", task))
    farm.leave("w", "out of reach")
    farm.join("other")
    farm.expect(sent("other", task))
    farm.finish("w", task, 2.0)
    farm.expect(replied(task, 2.0, "w"))
    following = farm.submit()
    farm.expect()  # the other worker still runs it
    farm.finish("w", task, 3.0)
    farm.expect()
    farm.finish("other", task, 4.0)
    farm.expect(sent("other", following))
    assert farm.queue().counts.done == 1


def test_late_error_is_an_answer_too(farm: Recorder) -> None:
    farm.join("w")
    task = farm.submit()
    farm.expect(sent("w", task))
    farm.leave("w", "out of reach")
    farm.finish("w", task, ModelFailed("it raised"))
    farm.expect(replied(task, ModelFailed, "w"))


def test_late_answer_recalls_the_call_from_where_it_waits(farm: Recorder) -> None:
    farm.learn(SHORT_S)
    farm.join("w")
    task = farm.submit()
    farm.expect(sent("w", task))
    farm.join("other")
    first = farm.submit()
    farm.expect(sent("other", first))
    farm.leave("w", "out of reach", drained=True)
    farm.expect(sent("other", task))
    farm.finish("w", task, 2.0)
    farm.expect(replied(task, 2.0, "w"), asked_back("other", task))
    farm.hand_back("other", task)
    farm.expect()
    assert len(farm.scheduler) == 1


# Cancellation


def test_cancelled_call_leaves_the_queue(farm: Recorder) -> None:
    farm.join("w")
    tasks = farm.submit_many(3)
    farm.expect(sent("w", tasks[0]))
    farm.scheduler.cancel(tasks[1])
    farm.finish("w", tasks[0])
    farm.expect(replied(tasks[0], 1.0, "w"), sent("w", tasks[2]))


def test_cancelled_call_runs_on_and_its_answer_goes_to_no_one(farm: Recorder) -> None:
    farm.join("w")
    tasks = farm.submit_many(2)
    farm.expect(sent("w", tasks[0]))
    farm.scheduler.cancel(tasks[0])
    farm.scheduler.cancel(tasks[0])
    farm.expect()
    farm.finish("w", tasks[0])
    farm.expect(sent("w", tasks[1]))
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


def test_cancel_comes_too_late(farm: Recorder) -> None:
    farm.join("w")
    task = farm.submit()
    farm.expect(sent("w", task))
    farm.finish("w", task)
    farm.scheduler.cancel(task)
    farm.scheduler.cancel(TaskId(99))
    farm.expect(replied(task, 1.0, "w"))


def test_cancelled_call_is_not_run_again_when_its_worker_dies(farm: Recorder) -> None:
    farm.join("w")
    task = farm.submit()
    farm.expect(sent("w", task))
    farm.scheduler.cancel(task)
    farm.leave("w")
    farm.join("other")
    farm.expect()
    farm.finish("w", task)
    farm.expect()


def test_late_answer_to_a_cancelled_call_is_ignored(farm: Recorder) -> None:
    farm.join("w")
    task = farm.submit()
    farm.expect(sent("w", task))
    farm.leave("w")
    farm.join("other")
    farm.expect(sent("other", task))
    farm.scheduler.cancel(task)
    farm.finish("w", task)
    farm.expect()
    farm.finish("other", task)
    farm.expect()
    assert len(farm.scheduler) == 0


# Deadlines


def test_expired_call_is_dropped_before_it_is_sent(farm: Recorder) -> None:
    farm.join("w")
    running = farm.submit()
    farm.expect(sent("w", running))
    task = farm.submit(deadline=5.0)
    farm.expect()
    assert farm.scheduler.wakeup() == 5.0
    farm.after(4.9).expect()
    farm.after(0.2).finish("w", running)
    farm.expect(replied(running, 1.0, "w"), replied(task, DeadlineExceeded, None))
    assert farm.last_error() == "no answer within 5.1 s; the call was in the queue"
    assert farm.scheduler.wakeup() is None


def test_call_that_runs_too_long_is_answered_and_runs_on(farm: Recorder) -> None:
    farm.join("w")
    task = farm.submit(deadline=5.0)
    farm.expect(sent("w", task))
    farm.after(5.0).expect(replied(task, DeadlineExceeded, None))
    assert farm.last_error() == (
        "no answer within 5 s; the call was on worker w; "
        "what happened: queued 0 s, sent to w 5 s ago"
    )
    following = farm.submit()
    farm.expect()
    farm.finish("w", task)
    farm.expect(sent("w", following))


def test_deadline_in_the_past_is_over_at_once(farm: Recorder) -> None:
    farm.join("w")
    task = farm.after(7.0).submit(deadline=6.0)
    farm.expect(replied(task, DeadlineExceeded, None))
    assert len(farm.scheduler) == 0


def test_answer_in_time_is_all_there_is(farm: Recorder) -> None:
    farm.join("w")
    task = farm.submit(deadline=5.0)
    farm.expect(sent("w", task))
    farm.after(1.0).finish("w", task)
    farm.expect(replied(task, 1.0, "w"))
    farm.after(10.0).expect()
    assert farm.scheduler.wakeup() is None


def test_call_that_has_to_start_in_time_may_then_take_its_own(farm: Recorder) -> None:
    farm.join("w")
    running, waiting = farm.submit(start_by=5.0), farm.submit(start_by=6.0, deadline=6.0)
    farm.expect(sent("w", running))
    farm.now = 5.0
    farm.expect()
    assert farm.scheduler.wakeup() == 6.0
    farm.now = 6.0
    farm.expect(replied(waiting, DeadlineExceeded, None))
    farm.finish("w", running)
    farm.expect(replied(running, 1.0, "w"))


def test_cancelled_call_has_no_deadline(farm: Recorder) -> None:
    farm.join("w")
    running, waiting = farm.submit(deadline=5.0), farm.submit(deadline=6.0)
    farm.expect(sent("w", running))
    farm.scheduler.cancel(running)
    farm.scheduler.cancel(waiting)
    farm.after(10.0).expect()


def test_deadline_holds_while_the_call_waits_at_a_worker(farm: Recorder) -> None:
    farm.learn(SHORT_S)
    farm.join("w")
    first = farm.submit()
    task = farm.submit(deadline=farm.now + 5.0)
    farm.expect(sent("w", first, task))
    farm.after(5.0).expect(replied(task, DeadlineExceeded, None), asked_back("w", task))
    farm.hand_back("w", task)
    farm.expect()
    assert len(farm.scheduler) == 1


def test_deadline_holds_after_a_loss(farm: Recorder) -> None:
    farm.join("w")
    task = farm.submit(deadline=5.0)
    farm.expect(sent("w", task))
    farm.leave("w")
    farm.after(5.0).expect(replied(task, DeadlineExceeded, None))


# Workers that join and change


def test_more_slots_take_more_calls(farm: Recorder) -> None:
    farm.join("w", slots=2)
    tasks = farm.submit_many(4)
    farm.expect(sent("w", *tasks[:2]))
    farm.resize("w", 3)
    farm.expect(sent("w", tasks[2]))


def test_fewer_slots_take_fewer_calls(farm: Recorder) -> None:
    farm.join("w", slots=2)
    tasks = farm.submit_many(3)
    farm.expect(sent("w", *tasks[:2]))
    farm.resize("w", 1)
    farm.expect(asked_back("w", tasks[1]))
    farm.hand_back("w")  # it has begun both
    farm.expect()
    farm.finish("w", tasks[0])
    farm.expect(replied(tasks[0], 1.0, "w"))
    farm.finish("w", tasks[1])
    farm.expect(replied(tasks[1], 1.0, "w"), sent("w", tasks[2]))


def test_worker_without_slots_gets_nothing(farm: Recorder) -> None:
    """A worker that begins to drain, or is unreachable, has no slots."""
    farm.join("w")
    farm.resize("w", 0)
    task, described = farm.submit(), farm.submit(DESCRIBE)
    farm.expect()
    farm.resize("w", 1)
    farm.expect(sent("w", task, described))


def test_worker_may_join_without_slots(farm: Recorder) -> None:
    farm.join("w", slots=0)
    task = farm.submit()
    farm.expect()
    farm.resize("w", 1)
    farm.expect(sent("w", task))


def test_draining_worker_hands_back_and_finishes(farm: Recorder) -> None:
    farm.learn(SHORT_S)
    farm.join("w")
    tasks = farm.submit_many(2)
    farm.expect(sent("w", *tasks))
    farm.resize("w", 0)
    farm.expect(asked_back("w", *tasks))
    farm.hand_back("w", tasks[1])  # unasked or recalled: the same
    farm.expect()
    farm.join("other")
    farm.expect(sent("other", tasks[1]))
    farm.finish("w", tasks[0])
    farm.expect(replied(tasks[0], 1.0, "w"))
    farm.leave("w", "drained", drained=True)
    farm.expect()


def test_a_worker_that_does_not_read_keeps_what_it_has_and_gets_no_more(farm: Recorder) -> None:
    """Recalling its calls and resending them would fill it again, endlessly."""
    farm.join("w", slots=2)
    first, described = farm.submit(), farm.submit(DESCRIBE)
    farm.expect(sent("w", first, described))
    farm.fill("w", True)
    second = farm.submit()
    farm.expect()
    farm.finish("w", first)
    farm.expect(replied(first, 1.0, "w"))
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


def test_newest_description_of_a_model_counts_once_the_old_workers_are_gone(
    farm: Recorder,
) -> None:
    farm.join("old", model(max_batch=1))
    farm.leave("old", drained=True)
    farm.join("new", model(max_batch=2))
    tasks = farm.submit_many(3)
    farm.expect(sent("new", *tasks[:2]))


def test_workers_that_differ_in_a_model_get_what_suits_all(farm: Recorder) -> None:
    farm.join("small", model(max_batch=2, repeatable=False))
    farm.join("large", model(max_batch=8))
    tasks = farm.submit_many(3)
    farm.expect(sent("large", *tasks[:2]), sent("small", tasks[2]))
    assert not farm.queue().repeatable
    assert farm.queue(operation=Operation.DESCRIBE).repeatable


def test_wakeup_is_never_when_there_is_nothing_to_wait_for(farm: Recorder) -> None:
    farm.join("w")
    assert farm.scheduler.wakeup() is None
