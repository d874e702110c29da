"""Events: what is kept, in which words, and that memory is bounded."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from farm.call import Call, Hints, ModelInfo, Operation, Result
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.ended import Failure
from farm.dispatcher.events import EVENTS_KEPT, Listeners
from farm.errors import (
    DeadlineExceeded,
    FarmError,
    LossCause,
    ModelFailed,
    Overloaded,
    TimeLimitExceeded,
    Unavailable,
    WorkerLost,
)
from farm.scheduler.actions import Outcome
from tests.dispatcher.ended_calls import Failures
from tests.dispatcher.test_dispatcher import CUBE, W1, W2, Recorder, cube, rows, turns, up
from tests.dispatcher.test_feeder import Each
from tests.support.coroutines import until


async def test_a_loss_is_not_a_worker_that_left() -> None:
    dispatcher, transport = up()
    for worker in (W1, W2):
        transport.join(worker)
    dispatcher.worker_left(W1, "was drained", drained=True)
    dispatcher.worker_left(W2, "its process ended by signal 9")
    transport.join(W1)
    dispatcher.worker_left(W1, "stopped by its supervisor", cause=LossCause.STOPPED)
    events = [(row["event"], row["text"]) for row in dispatcher.snapshot()["events"]]
    assert events[-4:] == [
        ("left", "was drained"),
        ("lost", "its process ended by signal 9"),
        ("joined", CUBE.name),
        ("left", "stopped by its supervisor"),
    ]


def test_events_are_bounded() -> None:
    listeners = Listeners()
    for number in range(3 * EVENTS_KEPT):
        listeners.note("joined", f"node/{number}", "")
    assert len(listeners.events) == EVENTS_KEPT
    assert listeners.events[-1]["worker"] == f"node/{3 * EVENTS_KEPT - 1}"


PLAIN = replace(CUBE, name="m")
BATCHED = replace(PLAIN, max_batch=4)
SMOOTH = replace(PLAIN, operations=frozenset({Operation.EVALUATE, Operation.GRADIENT}))
BAD = ModelFailed("diverged", detail="line 3")
ME = Hints("me")


def watched(model: ModelInfo = PLAIN, **limits: Any) -> tuple[Dispatcher, Recorder, Failures]:
    dispatcher, transport = up(**limits)
    transport.join(models=(model,))
    return dispatcher, transport, Failures(dispatcher)


async def fail_next(transport: Recorder, outcome: Outcome = BAD, *, together: int = 1) -> None:
    """Answer the next tasks within one iteration of the event loop."""
    await until(lambda: len(transport.sent) >= together)
    tasks = [transport.sent.pop(0) for _ in range(together)]
    for worker, task, _ in tasks:
        transport.dispatcher.finished(worker, [(task, outcome)])
    await turns()


async def test_a_failed_call_is_told_with_its_worker_and_its_client() -> None:
    dispatcher, transport, heard = watched()
    call = cube(model="m")
    ended: list[Outcome] = []
    dispatcher.start_call(call, ME, ended.append)
    await fail_next(transport)
    assert heard() == [Failure(BAD, 1, call, None, W1, "me")]
    assert ended == [BAD]


async def test_a_call_that_never_ran_has_no_worker() -> None:
    dispatcher, _, heard = watched()
    dispatcher.start_call(cube(model="m"), ME, lambda outcome: None)  # the worker has it
    with pytest.raises(DeadlineExceeded):
        await dispatcher.submit(cube(model="m"), Hints("me", deadline_s=0.01))
    (failed,) = heard()
    assert (failed.worker, failed.client, type(failed.error)) == ("", "me", DeadlineExceeded)


async def test_a_long_call_whose_parts_fail_together_is_one_call() -> None:
    dispatcher, transport, heard = watched(BATCHED)
    transport.join(W2, (BATCHED,))
    running = asyncio.create_task(dispatcher.submit(rows(8, "m"), ME))
    await fail_next(transport, together=2)
    with pytest.raises(ModelFailed, match="rows 0 to 3: diverged"):
        await running
    assert [(each.error, each.calls, each.client) for each in heard()] == [(BAD, 1, "me")]


async def test_rows_that_fail_as_one_batch_are_as_many_calls() -> None:
    dispatcher, transport, heard = watched(BATCHED)
    each = Each(8, set())
    dispatcher.start_rows(each, "m", Operation.EVALUATE, ME)
    await fail_next(transport)
    assert [(failure.calls, failure.row) for failure in heard()] == [(4, None)]
    assert list(each.outcomes) == [0, 1, 2, 3]


async def run_of_rows(dispatcher: Dispatcher, transport: Recorder) -> Each:
    """Start rows of which several run as one task, now that the model's run time is known."""
    running = asyncio.create_task(dispatcher.submit(cube(model="m")))
    await transport.answer()
    await running
    each = Each(40, set())
    dispatcher.start_rows(each, "m", Operation.EVALUATE, ME)
    await until(lambda: transport.sent)
    assert (transport.sent[0][2].rows or 1) > 2
    return each


@pytest.mark.parametrize("error", [ModelFailed, TimeLimitExceeded])
async def test_a_row_that_fails_in_a_run_is_one_call(error: type[FarmError]) -> None:
    dispatcher, transport, heard = watched()
    each = await run_of_rows(dispatcher, transport)
    _, task, call = await transport.next()
    if error is ModelFailed:
        failed = Result((np.zeros((2, 1)),), 0.001, failed=BAD)
        dispatcher.finished(W1, [(task, failed)])
    else:
        dispatcher.worker_left(W1, "limit", running=[task], row=2, cause=LossCause.TIME_LIMIT)
    await turns()
    (failure,) = heard()
    assert failure == Failure(failure.error, 1, call, 2, W1, "me")
    assert type(failure.error) is error
    assert 2 in each.outcomes
    assert dispatcher.snapshot()["failed"] == dispatcher.statistics()["m"].fail.count == 1


async def test_the_rows_of_a_lost_run_fail_only_when_they_are_given_up() -> None:
    dispatcher, transport, heard = watched(retries=1)
    each = await run_of_rows(dispatcher, transport)
    _, task, _ = await transport.next()
    dispatcher.worker_left(W1, "signal 9", running=[task], row=1)
    transport.sent.clear()
    await turns()
    assert (heard(), each.outcomes) == ([], {})
    transport.join(W2, (PLAIN,))
    while not heard():
        worker, task, call = await transport.next()
        if 1.0 in call.inputs[0]:
            assert call.rows == 1, "the row that was running runs alone"
            dispatcher.worker_left(worker, "signal 9", running=[task], row=0)
            await turns()
        else:
            dispatcher.finished(worker, [(task, Result((call.inputs[0],), 0.001))])
    assert [(type(x.error), x.calls, x.worker) for x in heard()] == [(WorkerLost, 1, W2)]
    assert "the call was lost 2 times" in each.outcomes[1]
    assert dispatcher.snapshot()["failed"] == 1, "and not the run that was repeated"
    assert dispatcher.statistics()["m"].fail.count == 1


async def test_a_call_that_a_full_queue_refuses_is_a_failure() -> None:
    dispatcher, transport, heard = watched(max_queued_per_client=1)
    ended: list[Outcome] = []
    for _ in range(2):  # one runs, one waits
        dispatcher.start_call(cube(model="m"), ME, ended.append)
        await turns()
    call = cube(model="m")
    with pytest.raises(Overloaded) as refused:
        dispatcher.start_call(call, replace(ME, patient=True), ended.append)
    assert heard() == [Failure(refused.value, 1, call, None, "", "me")]
    for _ in range(2):
        await transport.answer()
    await until(lambda: len(ended) == 2)


async def test_mistakes_of_a_client_and_questions_are_no_failures() -> None:
    dispatcher, _, heard = watched()
    wide = Call("m", Operation.EVALUATE, (np.ones(7),))
    for call in (wide, replace(cube(model="m"), model="unknown")):
        with pytest.raises(FarmError):
            await dispatcher.submit(call, ME)
    empty, _ = up()
    of_empty = Failures(empty)
    with pytest.raises(Unavailable):
        await empty.describe("m")
    assert (heard(), of_empty()) == ([], [])


async def test_a_call_while_no_model_is_known_is_a_failure_unless_its_client_asks_again() -> None:
    dispatcher, _ = up()
    heard = Failures(dispatcher)
    with pytest.raises(Unavailable):
        await dispatcher.submit(cube(model="m"), replace(ME, patient=True))
    assert heard() == []
    with pytest.raises(Unavailable):
        await dispatcher.submit(cube(model="m"), ME)
    assert [(type(each.error), each.client) for each in heard()] == [(Unavailable, "me")]
    dispatcher.give_up()
    with pytest.raises(Unavailable, match="shutting down"):
        await dispatcher.submit(cube(model="m"), ME)
    assert len(heard()) == 1, "an orderly end is no failure"


async def test_a_call_that_waits_in_vain_for_a_first_worker_is_a_failure() -> None:
    dispatcher, _ = up(first_worker_s=0.01)
    heard = Failures(dispatcher)
    dispatcher.expect([PLAIN])
    call = cube(model="m")
    with pytest.raises(Unavailable, match="no worker of model 'm' has joined within") as end:
        await dispatcher.submit(call, ME)
    assert heard() == [Failure(end.value, 1, call, None, "", "me")]
    assert dispatcher.snapshot()["queues"][0]["failed"] == 1
    assert dispatcher.stages.calls_open() == 0


async def test_requests_that_wait_in_vain_for_the_first_model_are_failures() -> None:
    dispatcher, _ = up(first_worker_s=0.01)
    heard = Failures(dispatcher)
    went: list[int] = []
    for number in range(3):
        dispatcher.first_worker.when_known(partial(went.append, number))
    await until(lambda: len(went) == 3)
    assert sum(each.calls for each in heard()) == 3
    assert {str(each.error) for each in heard()} == {
        "no model is known yet: the farm waits for its first worker"
    }
    assert {each.call.model for each in heard()} == {""}
