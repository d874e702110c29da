"""Rows of bulk calls in flight are joined by others, and each caller gets its own outcome."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial

import numpy as np
import pytest

from farm.call import Array, Call, Hints, ModelInfo, Operation, Result
from farm.dispatcher.dispatcher import Dispatcher
from farm.errors import ModelFailed
from farm.scheduler.actions import Outcome
from farm.scheduler.state import WorkerId
from tests.dispatcher.test_dispatcher import CUBE, W1, cube, turns
from tests.dispatcher.test_reuse import BATCHES, Memory, Points, Worker, answered, asked, rows, up
from tests.support.coroutines import until

KINDS = pytest.mark.parametrize("info", [CUBE, BATCHES], ids=["one by one", "batches"])


def once(*x: float) -> Counter[float]:
    return Counter(map(float, x))


def values(result: Result) -> list[float]:
    found: list[float] = result.outputs[0].reshape(-1).tolist()
    return found


async def known_to_be_quick(dispatcher: Dispatcher, worker: Worker) -> None:
    """Answer a call, so that many rows of a model without batches run together from now on."""
    call = asked(dispatcher, cube(-1.0))
    await answered(worker, call)


@KINDS
async def test_the_same_points_of_two_requests_run_once(info: ModelInfo) -> None:
    dispatcher, worker = up(Memory(), info)
    await known_to_be_quick(dispatcher, worker)
    points = [float(k) for k in range(50)]
    first, second = Points(*points, 3.0), Points(*points[20:], *points[:20])
    for request in (first, second):
        dispatcher.start_rows(request, "cube", Operation.EVALUATE, Hints())
    whole = asked(dispatcher, rows(*points))
    assert await answered(worker, first, second, whole) == once(*points)
    assert values(await whole) == [x**3 for x in points]
    for request in (first, second):
        assert [request.outcomes[k][0] for k in range(50)] == [x**3 for x in request.x[:50]]
    marks = [first.outcomes[k][1] for k in range(51)] + [second.outcomes[k][1] for k in range(50)]
    assert marks.count(False) <= 50, "each point is new at most once"
    assert first.outcomes[50][1] is True


async def test_a_failed_batch_fails_no_caller_of_one_of_its_rows() -> None:
    dispatcher, worker = up(Memory(), BATCHES)
    bulk, other = asked(dispatcher, rows(1.0, 2.0)), asked(dispatcher, rows(1.0, 3.0, 1.0))
    twins = [asked(dispatcher, cube(2.0)) for _ in range(2)]
    await until(lambda: len(worker.sent) == 2)
    worker.end_all(
        lambda call: ModelFailed("no") if 2.0 in call.inputs[0] else Result((call.inputs[0] ** 3,))
    )
    assert await answered(worker, *twins, other) == once(1, 2)
    with pytest.raises(ModelFailed, match=r"^no$"):
        await bulk
    assert values(await other) == [1.0, 27.0, 1.0]
    assert [(await twin).reused for twin in twins] == [False, True]
    assert dispatcher.stages.calls_open() == 0


async def test_callers_of_a_row_share_its_own_failure() -> None:
    dispatcher, worker = up(Memory())
    await known_to_be_quick(dispatcher, worker)
    points = list(map(float, range(40)))
    first, second = Points(*points), Points(*points)
    for request in (first, second):
        dispatcher.start_rows(request, "cube", Operation.EVALUATE, Hints())
    await until(lambda: worker.sent)
    w, task_id, call = worker.sent.pop(0)
    assert len(call.inputs[0]) > 4
    twins = [asked(dispatcher, cube(x)) for x in points[:4]]
    await turns()
    done = Result((call.inputs[0][:2] ** 3,), 0.004, failed=ModelFailed("diverged"))
    dispatcher.finished(w, [(task_id, done)])
    with pytest.raises(ModelFailed, match="diverged"):
        await twins[2]
    assert [(values(await twin), (await twin).run_time_s) for twin in twins[:2]] == [
        ([0.0], 0.002),
        ([1.0], 0.002),
    ]
    ran = await answered(worker, twins[3], first, second)
    assert ran == once(*points[3:]), "neither the failed row nor those before it run again"
    assert first.outcomes[2] == second.outcomes[2] == "diverged"
    assert first.outcomes[1] == (1.0, False)
    assert second.outcomes[1] == (1.0, True)
    for k in (0, *range(3, 40)):
        assert first.outcomes[k][0] == second.outcomes[k][0] == points[k] ** 3


@KINDS
async def test_parts_that_the_queue_refuses_are_sent_later(info: ModelInfo) -> None:
    worker = Worker()
    dispatcher = Dispatcher([worker], memory=Memory(x1=1.0, x3=27.0, x5=125.0), max_queued=1)
    dispatcher.start()
    worker.join(models=(info,))
    points = Points(*map(float, range(7)), 0.0, 2.0)
    dispatcher.start_rows(points, "cube", Operation.EVALUATE, Hints())
    assert await answered(worker, points) == once(0, 2, 4, 6)
    assert [points.outcomes[k][0] for k in range(9)] == [x**3 for x in points.x]
    assert dispatcher.stages.calls_open() == 0


async def test_a_caller_that_waited_in_vain_may_cancel() -> None:
    dispatcher, worker = up(Memory(), BATCHES)
    bulk, single = asked(dispatcher, rows(1.0, 2.0)), asked(dispatcher, cube(2.0))
    await worker.end(ModelFailed("diverged"))
    with pytest.raises(ModelFailed):
        await bulk
    await until(lambda: worker.sent)
    assert dispatcher.stages.calls_open() == 1
    single.cancel()
    await turns()
    assert dispatcher.stages.calls_open() == 0


async def test_a_lost_worker_fails_no_caller_of_a_row_in_its_run() -> None:
    dispatcher, worker = up(Memory())
    await known_to_be_quick(dispatcher, worker)
    bulk = asked(dispatcher, rows(*map(float, range(40))))
    await until(lambda: worker.sent)
    _, task_id, call = worker.sent[0]
    points = call.inputs[0].reshape(-1).tolist()
    twins = [asked(dispatcher, cube(x)) for x in points]
    await turns()
    worker.sent.clear()
    dispatcher.worker_left(WorkerId(W1), "killed", running=[task_id], row=1)
    worker.join()
    ran = await answered(worker, bulk, *twins)
    assert [values(await twin) for twin in twins] == [[x**3] for x in points]
    assert values(await bulk) == [float(k) ** 3 for k in range(40)]
    assert set(ran.values()) == {1}, "the lost rows run once more, whoever asked for them"


async def test_parts_of_a_call_that_wait_for_the_same_failure_end_together() -> None:
    dispatcher, worker = up(Memory())
    single = asked(dispatcher, cube(2.0))
    bulk = asked(dispatcher, rows(2.0, 3.0, 2.0, 2.0))
    call = await worker.end(ModelFailed("diverged"))
    assert call.inputs[0].item() == 2.0
    outcomes = await asyncio.gather(single, bulk, return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["diverged", "row 0: diverged"]
    assert dispatcher.stages.calls_open() == 0


def cubed_up_to_five(call: Call, *, batches: bool) -> Outcome:
    """Cube the rows of a call up to the first 5, which fails."""
    bad = np.flatnonzero(call.inputs[0] == 5)
    if not len(bad):
        return Result((call.inputs[0] ** 3,), 0.001)
    if batches or call.inputs[0].size == 1:
        return ModelFailed("five")
    done = call.inputs[0][: bad[0]] ** 3
    return Result((done,) if len(done) else (), 0.001, failed=ModelFailed("five"))


async def test_random_calls_with_failures_get_the_outcomes_of_their_own_rows() -> None:
    random = np.random.default_rng(7)
    for number in range(24):
        batches, memory = number % 2 == 0, Memory()
        dispatcher, worker = up(memory, BATCHES if batches else CUBE)
        await known_to_be_quick(dispatcher, worker)
        calls: list[tuple[asyncio.Task[Result], Array]] = []
        requests: list[Points] = []
        model = partial(cubed_up_to_five, batches=batches)
        for _ in range(40):
            what = random.random()
            points = random.integers(0, 6, size=random.integers(1, 20)).astype(float)
            if what < 0.2:
                calls.append((asked(dispatcher, cube(points[0])), points[:1]))
            elif what < 0.4:
                calls.append((asked(dispatcher, rows(*points)), points))
            elif what < 0.6:
                requests.append(Points(*points))
                dispatcher.start_rows(requests[-1], "cube", Operation.EVALUATE, Hints())
            elif what < 0.7 and calls:
                calls[random.integers(len(calls))][0].cancel()
            elif worker.sent:
                await worker.end(model)
            await asyncio.sleep(0)
        while not all(task.done() for task, _ in calls) or not all(r.ended for r in requests):
            if worker.sent:
                await worker.end(model)
            await asyncio.sleep(0)
        for task, points in calls:
            if task.cancelled():
                continue
            if 5 in points:
                assert isinstance(task.exception(), ModelFailed)
            else:
                assert values(task.result()) == (points**3).tolist()
        for request in requests:
            for row, x in enumerate(request.x):
                outcome = request.outcomes[row]
                if x == 5 or (batches and 5 in request.x):
                    assert outcome == "five" or (x != 5 and outcome[0] == x**3)
                else:
                    assert outcome[0] == x**3
        assert dispatcher.stages.calls_open() == 0
        kept = [reply.task.id for reply in memory.kept]
        assert len(set(kept)) == len(kept)
