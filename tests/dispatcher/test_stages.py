"""The owner cancels what waits of a client: nothing else, and each caller gets one outcome."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from farm.call import Call, Hints, Operation, Result
from farm.dispatcher.dispatcher import Dispatcher
from farm.errors import Cancelled, InvalidInput
from farm.scheduler.state import TaskId
from tests.dispatcher.test_dispatcher import W2, cube, served, turns
from tests.dispatcher.test_reuse import Memory, Points, asked, rows
from tests.dispatcher.test_reuse import up as up_with
from tests.dispatcher.test_stage import BOTH, PAIR, Kind

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
    with pytest.raises(Cancelled, match=r"the owner of the farm cancelled .* of 'mine'$"):
        await one
    begun = [*dispatcher.view.sent(), TaskId(7)]  # since they were listed
    why = Cancelled("the owner of the farm cancelled it")
    assert [dispatcher.stages.cancel_if_waiting(each, why) for each in begun] == [0, 0]
    with pytest.raises(InvalidInput, match="'client' is missing"):
        await cancel(dispatcher)
    for _ in range(2):
        await worker.answer()
    await asyncio.gather(runs, others)
    assert worker.sent == []
    assert dispatcher.stages.calls_open() == 0


@pytest.mark.parametrize(
    ("kind", "before", "mine", "after"),
    [
        (Kind([]), [], rows(*range(500)), []),
        (Kind([], model=PAIR), [cube()], BOTH, []),
        (Kind([], Memory), [cube(1.0)], cube(2.0), [cube(2.0)]),
        (Kind([], Memory), [cube(2.0)], cube(2.0), []),
    ],
    ids=["many rows", "a pair", "others wait for it", "it waits for another"],
)
async def test_a_call_that_waits_is_one_and_those_of_others_go_on(
    kind: Kind, before: list[Call], mine: Call, after: list[Call]
) -> None:
    dispatcher, worker = up_with(kind.memory(), kind.model)
    others = [asked(dispatcher, call, OTHERS) for call in before]
    waiting = asked(dispatcher, mine, MINE)
    others += [asked(dispatcher, call, OTHERS) for call in after]
    await turns()
    assert await cancel(dispatcher, client="mine", chain="2") == 0
    assert await cancel(dispatcher, client="mine", chain="1") == 1
    assert await cancel(dispatcher, client="mine") == 0
    assert await outcomes(waiting, *others) == ["Cancelled", *["open"] * len(others)]
    assert dispatcher.snapshot()["queues"][0]["queued"] == len(after)
    while worker.sent:  # without others, what was begun is abandoned
        await worker.evaluate()
        await turns()
    assert await outcomes(*others) == ["Result"] * len(others)
    assert len(worker.runs) == max(1, len(before)) + len(after)


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
