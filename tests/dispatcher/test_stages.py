"""The owner cancels what waits of a client: nothing else, and each caller gets one outcome."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from farm.call import Hints, Operation, Result
from farm.dispatcher.dispatcher import Dispatcher
from farm.errors import Cancelled, InvalidInput
from farm.scheduler.actions import Outcome
from farm.scheduler.state import TaskId
from tests.dispatcher.test_dispatcher import W2, cube, served, turns
from tests.dispatcher.test_reuse import Memory, Points, asked, rows
from tests.dispatcher.test_reuse import up as up_with
from tests.dispatcher.test_stage import BOTH, PAIR

MINE, OTHERS = Hints("mine", chain="1"), Hints("others")


async def cancel(dispatcher: Dispatcher, **arguments: str) -> int:
    answer: dict[str, Any] = await dispatcher.questions.ask("cancel", arguments)
    return int(answer["cancelled"])


async def outcomes(*calls: asyncio.Task[Result]) -> list[str]:
    """Return the kinds of the outcomes of finished calls."""
    await turns()
    return [
        "open" if not call.done() else type(call.exception() or call.result()).__name__
        for call in calls
    ]


async def test_only_waiting_calls_of_the_client_or_of_its_chain_are_cancelled() -> None:
    dispatcher, worker = served()
    runs, others = asked(dispatcher, cube(1.0), MINE), asked(dispatcher, cube(2.0), OTHERS)
    one, two = asked(dispatcher, cube(), MINE), asked(dispatcher, cube(), replace(MINE, chain="2"))
    nameless = asked(dispatcher, cube(), Hints())
    await turns()
    for arguments, waiting in (
        ({"client": "mine", "chain": "2"}, two),
        ({"client": "mine"}, one),
        ({"client": ""}, nameless),
    ):
        assert await outcomes(waiting) == ["open"]
        assert await cancel(dispatcher, **arguments) == 1
        assert dispatcher.snapshot()["events"][-1]["text"] == "the owner cancelled 1 waiting calls"
        assert await outcomes(runs, others, waiting) == ["open", "open", "Cancelled"]
        assert await cancel(dispatcher, **arguments) == 0
    with pytest.raises(Cancelled, match="the owner of the farm cancelled the waiting calls"):
        await one
    with pytest.raises(InvalidInput, match="'client' is missing"):
        await cancel(dispatcher)
    for _ in range(2):
        await worker.answer()
    await asyncio.gather(runs, others)
    assert worker.sent == []
    assert dispatcher.stages.calls_open() == 0


async def test_a_call_of_many_rows_fails_if_rows_of_it_wait() -> None:
    dispatcher, worker = served()
    call = asked(dispatcher, rows(*range(500)), MINE)
    await turns()
    assert await cancel(dispatcher, client="mine") == 1
    assert await outcomes(call) == ["Cancelled"]
    assert dispatcher.snapshot()["queues"][0]["queued"] == 0
    await worker.answer()  # of the abandoned part
    await turns()
    assert worker.sent == []


async def test_of_rows_that_are_calls_those_at_workers_go_on() -> None:
    dispatcher, worker = served()
    points = Points(*range(300))
    dispatcher.start_rows(points, "cube", Operation.EVALUATE, MINE)
    await turns()
    assert await cancel(dispatcher, client="mine") == 299
    assert sorted(points.outcomes) == list(range(1, 300))
    (text,) = {str(outcome) for outcome in points.outcomes.values()}
    assert (text.startswith("the owner of the farm cancelled"), points.ended) == (True, False)
    assert dispatcher.snapshot()["queues"][0]["queued"] == 0
    w, task_id, call = await worker.next()
    dispatcher.finished(w, [(task_id, Result((call.inputs[0],), 0.001))])
    await turns()
    assert (points.outcomes[0], points.ended, worker.sent) == ((0.0, False), True, [])
    assert await cancel(dispatcher, client="mine") == 0


async def test_a_value_with_its_gradient_is_one_call() -> None:
    dispatcher, _ = served(PAIR)
    runs, pair = asked(dispatcher, cube(), OTHERS), asked(dispatcher, BOTH, MINE)
    await turns()
    assert await cancel(dispatcher, client="mine") == 1
    assert await outcomes(runs, pair) == ["open", "Cancelled"]
    assert dispatcher.stages.calls_open() == 1


async def test_a_call_that_others_wait_for_goes_on_for_them() -> None:
    dispatcher, worker = up_with(Memory())
    busy = asked(dispatcher, cube(1.0), OTHERS)
    mine, twin = asked(dispatcher, cube(2.0), MINE), asked(dispatcher, cube(2.0), OTHERS)
    await turns()
    assert await cancel(dispatcher, client="mine") == 1
    assert await cancel(dispatcher, client="mine") == 0
    assert await outcomes(busy, mine, twin) == ["open", "Cancelled", "open"]
    await worker.evaluate()
    await worker.evaluate()
    assert (await twin).outputs[0].tolist() == [8.0]


async def test_a_call_that_waits_for_that_of_another_client() -> None:
    dispatcher, worker = up_with(Memory())
    first, mine = asked(dispatcher, cube(2.0), OTHERS), asked(dispatcher, cube(2.0), MINE)
    await turns()
    assert await cancel(dispatcher, client="mine", chain="2") == 0
    assert await cancel(dispatcher, client="mine", chain="1") == 1
    assert await outcomes(first, mine) == ["open", "Cancelled"]
    await worker.evaluate()
    assert (await first).outputs[0].tolist() == [8.0]


async def test_calls_that_come_meanwhile_stay_and_others_get_their_turn() -> None:
    dispatcher, worker = served()
    calls = [asked(dispatcher, cube(), MINE) for _ in range(1000)]
    await turns()
    cancelling = asyncio.create_task(cancel(dispatcher, client="mine"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    late = asked(dispatcher, cube(), MINE)
    assert not cancelling.done()
    assert await cancelling == 999
    assert (await outcomes(*calls)).count("Cancelled") == 999
    assert await outcomes(late) == ["open"]
    worker.join(W2)
    await turns()
    assert len(worker.sent) == 2


# The innermost stage


WHY = Cancelled("the owner of the farm cancelled it")


async def test_only_tasks_that_no_worker_has_are_answered_with_an_error() -> None:
    dispatcher, transport = served()
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
    assert tasks.open == {}
    assert not tasks.cancel(runs), "it has its outcome"
