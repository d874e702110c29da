"""The innermost stage: tasks of the scheduler, and who waits for them."""

from __future__ import annotations

from farm.call import Hints, Result
from farm.errors import Cancelled, Unavailable
from farm.scheduler.actions import Outcome
from farm.scheduler.state import TaskId
from tests.dispatcher.test_dispatcher import CUBE, W1, cube, turns, up
from tests.support.coroutines import on_loop

WHY = Cancelled("the owner of the farm cancelled it")


@on_loop
async def test_a_task_is_open_until_its_last_outcome() -> None:
    dispatcher, transport = up()
    transport.join()
    tasks = dispatcher.stages.tasks
    outcomes: list[Outcome] = []
    task_id = dispatcher.start_call(cube(2.0), Hints(), outcomes.append)
    assert list(tasks.open) == [task_id]
    await transport.answer()
    await turns()
    assert len(outcomes) == 1
    assert tasks.open == {}
    assert not tasks.cancel(task_id), "it has its outcome"


@on_loop
async def test_only_tasks_that_no_worker_has_are_answered_with_an_error() -> None:
    dispatcher, transport = up()
    transport.join(W1)
    tasks = dispatcher.stages.tasks
    outcomes: list[list[Outcome]] = [[], []]
    runs, waits = (
        dispatcher.start_call(cube(1.0), Hints("me", chain=str(n)), found.append)
        for n, found in enumerate(outcomes)
    )
    await turns()
    assert tasks.waiting("me", None) == tasks.waiting("me", "1") == [waits]
    assert tasks.waiting("me", "0") == tasks.waiting("you", None) == []
    assert [tasks.fail(each, WHY) for each in (runs, waits, waits, TaskId(7))] == [0, 1, 0, 0]
    assert outcomes == [[], [WHY]]
    await transport.answer()
    await turns()
    assert isinstance(outcomes[0][0], Result)


@on_loop
async def test_all_tasks_are_answered_at_the_end() -> None:
    dispatcher, _ = up()
    dispatcher.expect([CUBE])
    outcomes: list[Outcome] = []
    dispatcher.start_call(cube(1.0), Hints(), outcomes.append)
    end = Unavailable("the farm ends")
    dispatcher.stages.tasks.fail_all(end)
    assert outcomes == [end]
    assert not dispatcher.stages.tasks.open
