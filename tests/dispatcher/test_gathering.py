"""Calls of a fast model that arrive together run as rows of one task, but remain calls."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from farm.call import Call, Hints, ModelInfo, Operation, Result, TensorInfo, WorkerInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.gathering import LARGEST_BYTES
from farm.dispatcher.partition import QUICK_RUN_S
from farm.errors import FarmError, InvalidInput, ModelFailed, Overloaded, Unavailable, WorkerLost
from farm.scheduler.actions import Outcome
from farm.scheduler.state import TaskId, WorkerId
from farm.wire.usage import SPLITS_RUNS
from tests.dispatcher.ended_calls import Failures
from tests.dispatcher.test_dispatcher import CUBE, W1, W2, Recorder, cube, turns, up
from tests.support.coroutines import until
from tests.support.scheduler_invariants import check

BATCHED = replace(CUBE, max_batch=8)
ROW_S = 1e-6
ME = Hints(client="me")


class Asked:
    """Calls that are asked at once, and their outcomes."""

    def __init__(self, dispatcher: Dispatcher, calls: list[Call], hints: Hints = ME) -> None:
        self.outcomes: dict[int, list[Outcome]] = {n: [] for n in range(len(calls))}
        self.ids = [
            dispatcher.start_call(call, hints, self.outcomes[n].append)
            for n, call in enumerate(calls)
        ]

    def shown(self) -> list[list[Any]]:
        """The numbers or errors that each call got until now."""
        return [
            [one.outputs[0].tolist() if isinstance(one, Result) else one for one in found]
            for found in self.outcomes.values()
        ]

    async def all(self) -> list[Any]:
        """The number that each call got, or its error."""
        await until(lambda: all(self.outcomes.values()))
        assert all(len(found) == 1 for found in self.outcomes.values())
        return [found[0] for found in self.shown()]


def join(transport: Recorder, worker: WorkerId, *models: ModelInfo, splits: bool = True) -> None:
    """Let a worker join; splits: whether it can split runs."""
    labels = {SPLITS_RUNS: "yes"} if splits else {}
    info = WorkerInfo(worker, models or (CUBE,), host=worker.partition("/")[0], labels=labels)
    transport.dispatcher.worker_joined(info, transport)


def answer(call: Call) -> Result:
    """The answer of a worker to a call, or to all of its rows."""
    rows = call.rows or 1
    times = (ROW_S,) * rows if rows > 1 else ()  # as workers tell them
    return Result((call.inputs[0] ** 3,), rows * ROW_S, row_times_s=times)


def work(transport: Recorder) -> list[int]:
    """Answer all that was sent; return the number of rows of each task."""
    return [call.rows or 1 for call in transport.end_all(answer)]


async def known(*models: ModelInfo, **limits: Any) -> tuple[Dispatcher, Recorder]:
    """A dispatcher and its worker, after quick calls of each model, of which two came together."""
    dispatcher, transport = up(**limits)
    join(transport, W1, *models)
    for model in models or (CUBE,):
        first = asyncio.create_task(dispatcher.submit(cube(model=model.name)))
        await until(lambda: transport.sent)
        work(transport)
        await first
    both = Asked(dispatcher, [cube(model=model.name)] * 2)
    while not all(both.outcomes.values()):
        await turns(1)
        work(transport)
    return dispatcher, transport


def only(transport: Recorder) -> tuple[WorkerId, TaskId, Call]:
    """Return the only task that was sent."""
    (task,) = transport.sent
    transport.sent.clear()
    return task


async def sent(transport: Recorder) -> list[int]:
    """The number of rows of each task that is sent now."""
    await until(lambda: transport.sent)
    await turns()
    return [call.rows or 1 for _, _, call in transport.sent]


async def test_calls_that_arrive_together_are_one_task_and_each_has_its_own_answer() -> None:
    dispatcher, transport = await known()
    asked = Asked(dispatcher, [cube(float(n)) for n in range(16)])
    assert dispatcher.stages.calls_open() == 16
    assert await sent(transport) == [16]
    work(transport)
    assert await asked.all() == [[n**3.0] for n in range(16)]
    assert dispatcher.stages.calls_open() == 0


async def test_after_a_lone_caller_the_first_of_several_is_started_by_itself() -> None:
    dispatcher, transport = await known()
    for count, rows in ((1, [1]), (1, [1]), (4, [1, 3]), (4, [4]), (1, [1])):
        asked = Asked(dispatcher, [cube(float(n)) for n in range(count)])
        assert await sent(transport) == rows
        work(transport)
        assert await asked.all() == [[n**3.0] for n in range(count)]


async def test_calls_that_differ_in_more_than_numbers_are_not_rows_of_one_task() -> None:
    free = ModelInfo("free", (TensorInfo("x", (-1,)),), CUBE.outputs)
    dispatcher, transport = await known(CUBE, free)
    calls = [cube(), cube(config='{"a":1}'), cube(model="free")]
    calls.append(Call("free", Operation.EVALUATE, (np.ones(2),)))
    calls.append(Call("cube", Operation.EVALUATE, (np.array([2]),)))
    Asked(dispatcher, calls)
    Asked(dispatcher, [cube()], Hints(client="another"))
    Asked(dispatcher, [cube()], Hints(client="me", priority=1))
    Asked(dispatcher, [cube()], Hints(client="me", shown_as=("me", None)))
    rows: list[int] = []
    while len(rows) < 8:  # nothing waits behind a call of another config
        await sent(transport)
        rows += work(transport)
    assert rows == [1] * 8


@pytest.mark.parametrize(
    ("hints", "model", "rows"),
    [
        (Hints(chain="chain 1"), CUBE, None),
        (Hints(call_id="one"), CUBE, None),
        (Hints(deadline_s=9.0), CUBE, None),
        (Hints(start_within_s=9.0), CUBE, None),
        (ME, replace(CUBE, repeatable=False), None),
        (ME, replace(BATCHED, repeatable=False), None),
        (ME, replace(CUBE, keeps_point=True), None),
        (ME, BATCHED, 2),
    ],
    ids=["chain", "id", "deadline", "begin", "once", "batch once", "keeps its point", "two rows"],
)
async def test_what_concerns_one_call_alone_keeps_it_alone(
    hints: Hints, model: ModelInfo, rows: int | None
) -> None:
    dispatcher, transport = await known(model)
    shape = (1,) if rows is None else (rows, 1)
    call = Call("cube", Operation.EVALUATE, (np.ones(shape),), rows=rows)
    Asked(dispatcher, [call, call], hints)
    assert set(await sent(transport)) == {rows or 1}


async def test_calls_that_someone_follows_run_alone() -> None:
    dispatcher, transport = await known()
    dispatcher.on_answered.append(lambda task, outcome, now: None)
    Asked(dispatcher, [cube(), cube()])
    assert await sent(transport) == [1, 1]


async def test_large_inputs_are_not_copied_together() -> None:
    large = replace(CUBE, inputs=(TensorInfo("x", (-1,)),))
    dispatcher, transport = await known(large)
    most = LARGEST_BYTES // 8
    for size, rows in ((most, [2]), (most + 1, [1, 1])):
        calls = [Call("cube", Operation.EVALUATE, (np.ones(size),)) for _ in range(2)]
        Asked(dispatcher, calls)
        assert await sent(transport) == rows
        work(transport)


async def test_calls_of_a_slower_model_go_to_as_many_workers_as_there_are() -> None:
    dispatcher, transport = await known()
    join(transport, W2)
    join(transport, WorkerId("node3/3-c"))
    first = asyncio.create_task(dispatcher.submit(cube()))
    await transport.answer(run_time_s=2 * QUICK_RUN_S)
    await first
    Asked(dispatcher, [cube(), cube()])
    assert await sent(transport) == [1, 1]
    assert len({worker for worker, _, _ in transport.sent}) == 2


async def test_no_task_takes_longer_than_a_quick_run() -> None:
    dispatcher, transport = await known()
    many = int(2.5 * QUICK_RUN_S / ROW_S)
    asked = Asked(dispatcher, [cube(float(n)) for n in range(many)])
    rows: list[int] = []
    while not all(asked.outcomes.values()):
        rows += work(transport)
        await turns(1)
    assert await asked.all() == [[n**3.0] for n in range(many)]
    assert max(rows) <= QUICK_RUN_S / ROW_S


async def test_the_error_of_a_call_is_its_own() -> None:
    dispatcher, transport = await known()
    failures = Failures(dispatcher)
    asked = Asked(dispatcher, [cube(float(n)) for n in range(4)])
    await sent(transport)
    worker, task_id, call = only(transport)
    some = replace(call, inputs=(call.inputs[0][:2],), rows=2)
    failed = replace(answer(some), failed=ModelFailed("no root"))
    dispatcher.finished(worker, [(task_id, failed)])
    assert await sent(transport) == [1], "the last one runs again"
    work(transport)
    found = await asked.all()
    assert found[:2] + found[3:] == [[0.0], [1.0], [27.0]]
    assert isinstance(found[2], ModelFailed)
    assert [failure.calls for failure in failures()] == [1]


def rows_of(call: Call, end: int, *, more: bool = False) -> Result:
    """The answer to the rows of a run before `end`."""
    outputs = (call.inputs[0][:end] ** 3,) if end else ()
    return Result(outputs, end * ROW_S, more=more, row_times_s=(ROW_S,) * end)


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["answered", "cancelled"])
@pytest.mark.parametrize("row", [0, 2, 3])
async def test_a_call_that_takes_long_does_not_hold_up_those_beside_it(
    row: int, is_cancelled: bool
) -> None:
    dispatcher, transport = await known()
    join(transport, W2)
    asked = Asked(dispatcher, [cube(float(n)) for n in range(4)])
    assert await sent(transport) == [4]
    stuck, task_id, call = only(transport)
    dispatcher.finished(stuck, [(task_id, rows_of(call, row, more=True))])
    while not all(asked.outcomes[n] for n in range(4) if n != row):
        await turns()
        assert all(worker != stuck for worker, _, _ in transport.sent)
        work(transport)
    assert asked.outcomes[row] == []
    assert dispatcher.stages.calls_open() == 1
    if is_cancelled:
        dispatcher.cancel(asked.ids[row])
        assert dispatcher.stages.calls_open() == 0
    dispatcher.finished(stuck, [(task_id, rows_of(call, row + 1))])
    await turns()
    assert asked.shown() == [[] if is_cancelled and n == row else [[n**3.0]] for n in range(4)]
    assert dispatcher.stages.calls_open() == 0
    assert dispatcher.snapshot()["done"] == 7 - is_cancelled


async def test_calls_are_not_gathered_for_workers_that_cannot_split_a_run() -> None:
    dispatcher, transport = await known()
    join(transport, W2, splits=False)
    Asked(dispatcher, [cube(), cube()])
    assert await sent(transport) == [1, 1]
    work(transport)
    dispatcher.worker_left(W2, "gone", drained=True)
    Asked(dispatcher, [cube(), cube()])
    assert await sent(transport) == [2]


async def test_calls_whose_answers_differ_in_shape_run_by_themselves_at_last() -> None:
    varies = replace(CUBE, outputs=(TensorInfo("y", (-1,)),))
    dispatcher, transport = await known(varies)
    asked = Asked(dispatcher, [cube(float(n)) for n in range(4)])
    assert await sent(transport) == [4]
    transport.end_all(partial(rows_of, end=1))
    assert await sent(transport) == [1, 1, 1]
    work(transport)
    assert await asked.all() == [[0.0], [1.0], [8.0], [27.0]]


# Models with batches


@pytest.mark.parametrize("rows", [None, 1])
async def test_calls_of_a_model_with_batches_are_rows_of_a_batch(rows: int | None) -> None:
    dispatcher, transport = await known(BATCHED)
    join(transport, W2, BATCHED, splits=False)
    shape = (1,) if rows is None else (1, 1)
    calls = [replace(cube(float(n)), rows=rows) for n in range(12)]
    calls = [replace(call, inputs=(call.inputs[0].reshape(shape),)) for call in calls]
    asked = Asked(dispatcher, calls)
    assert sorted(await sent(transport)) == [4, 8]
    transport.end_all(lambda call: Result((call.inputs[0] ** 3,), 7e-6, batch_rows=call.rows or 1))
    await until(lambda: all(asked.outcomes.values()))
    for n, (outcome,) in asked.outcomes.items():
        assert isinstance(outcome, Result)
        assert outcome.outputs[0].shape == shape
        assert outcome.outputs[0].reshape(-1)[0] == n**3.0
        assert outcome.run_time_s == 7e-6, "that of the batch"
        assert outcome.batch_rows in (4, 8)


@pytest.mark.parametrize("error", [ModelFailed("no root"), InvalidInput("no number")])
async def test_after_the_failure_of_a_batch_each_call_runs_by_itself(error: FarmError) -> None:
    dispatcher, transport = await known(BATCHED)
    failures = Failures(dispatcher)
    asked = Asked(dispatcher, [cube(float(n)) for n in range(4)])
    assert await sent(transport) == [4]
    await transport.end(error)
    assert await sent(transport) == [1, 1, 1, 1]
    assert failures() == []
    transport.end_all(lambda call: error if 2.0 in call.inputs[0] else answer(call))
    found = await asked.all()
    assert [np.reshape(one, -1)[0] for one in found[:2] + found[3:]] == [0.0, 1.0, 27.0]
    assert found[2] is error
    assert [failure.calls for failure in failures()] == [1]
    assert dispatcher.snapshot()["failed"] == 1


async def test_only_the_call_that_kills_workers_fails() -> None:
    dispatcher, transport = await known(BATCHED)
    asked = Asked(dispatcher, [cube(float(n)) for n in range(4)])
    assert await sent(transport) == [4]
    lost = 0
    while not all(asked.outcomes.values()):
        await turns()
        if not transport.sent:
            continue
        worker, task_id, call = transport.sent.pop(0)
        if 2.0 not in call.inputs[0]:
            dispatcher.finished(worker, [(task_id, answer(call))])
            continue
        lost += 1
        transport.sent.clear()
        dispatcher.worker_left(worker, "killed", running=[task_id])
        join(transport, WorkerId(f"node1/{lost + 1}-a"), BATCHED)
    found = await asked.all()
    assert [np.reshape(one, -1)[0] for one in found[:2] + found[3:]] == [0.0, 1.0, 27.0]
    assert isinstance(found[2], WorkerLost)
    assert lost == 4, "as often as a call of its own"


# Cancelled


@pytest.mark.parametrize(
    ("count", "cancelled"), [(6, (0, 3, 4)), (6, range(6)), (1, (0,))], ids=["some", "all", "one"]
)
@pytest.mark.parametrize("when", ["new", "sent", "queued"])
async def test_a_cancelled_call_is_not_answered_and_the_others_are(
    when: str, count: int, cancelled: Sequence[int]
) -> None:
    dispatcher, transport = await known()
    if when == "queued":
        dispatcher.worker_left(W1, "gone", drained=True)
    asked = Asked(dispatcher, [cube(float(n)) for n in range(count)])
    if when != "new":
        await turns()
    for n in cancelled:
        assert dispatcher.stages.cancel(asked.ids[n])
        assert not dispatcher.stages.cancel(asked.ids[n])
    if when == "queued":
        join(transport, W2)
    if len(cancelled) == count:
        assert dispatcher.stages.are_over()
        await turns()
        assert [call.rows or 1 for _, _, call in transport.sent] == [count] * (when == "sent")
    while dispatcher.stages.calls_open():
        await turns(1)
        work(transport)
    work(transport)
    await turns()
    assert asked.shown() == [[] if n in cancelled else [[n**3.0]] for n in range(count)]


# Counted


async def test_each_is_counted_as_a_call_and_as_a_caller() -> None:
    dispatcher, transport = await known()
    dispatcher.worker_left(W1, "gone", drained=True)
    asked = Asked(dispatcher, [cube(float(n)) for n in range(16)])
    await turns()
    (queue,) = [q for q in dispatcher.snapshot()["queues"] if q["operation"] == "evaluate"]
    assert queue["queued"] == 16
    assert dispatcher.view.clients(0.0)["me"].callers == 16
    join(transport, W2)
    await sent(transport)
    assert dispatcher.view.clients(0.0)["me"].callers == 16
    work(transport)
    await asked.all()
    assert "me" not in dispatcher.view.clients(0.0)
    counts = dispatcher.statistics()["cube"]
    assert (counts.success.count, counts.rows, counts.executions) == (19, 19, 19)
    (row,) = [r for r in dispatcher.snapshot()["clients"] if r["client"] == "me"]
    assert row["done"] == 18


# Not accepted after all


async def test_calls_that_the_queue_has_no_room_for_get_its_error() -> None:
    dispatcher, _ = await known(max_queued=4)
    dispatcher.worker_left(W1, "gone", drained=True)
    failures = Failures(dispatcher)
    hints = [Hints(client=f"client {n}") for n in range(9)]
    outcomes: list[Outcome] = []
    refused: list[FarmError] = []
    for one in hints:
        try:
            dispatcher.start_call(cube(), one, outcomes.append)
        except Overloaded as error:
            refused.append(error)
    await turns()
    assert len(outcomes) + len(refused) == 5
    assert {type(outcome) for outcome in outcomes} <= {Overloaded}
    assert sum(failure.calls for failure in failures()) == 5


async def test_new_calls_end_with_the_farm_once() -> None:
    dispatcher, transport = await known()
    asked = Asked(dispatcher, [cube(float(n)) for n in range(3)])
    closing = asyncio.create_task(dispatcher.close())
    await sent(transport)
    work(transport)
    await closing
    assert await asked.all() == [[0.0], [1.0], [8.0]]


async def test_calls_that_nobody_answers_end_with_the_farm() -> None:
    dispatcher, _ = await known()
    asked = Asked(dispatcher, [cube(float(n)) for n in range(3)])
    dispatcher.give_up()
    found = await asked.all()
    assert {type(one) for one in found} == {Unavailable}
    assert dispatcher.stages.calls_open() == 0


# All together


@pytest.mark.parametrize("seed", [0, 1, 2, 7, 8, 11])  # of 20, with all their branches
async def test_whatever_happens_each_call_has_one_outcome_of_its_own(seed: int) -> None:
    rng = random.Random(seed)
    dispatcher, transport = await known()
    outcomes: dict[int, list[Outcome]] = {}
    open_ids: dict[int, TaskId] = {}
    cancelled: set[int] = set()
    stuck: list[tuple[WorkerId, TaskId, Result]] = []
    workers, names = {W1}, 1

    def ask() -> None:
        for _ in range(rng.randint(1, 40)):
            n = len(outcomes)
            outcomes[n] = []
            hints = rng.choice([ME, ME, ME, Hints(client="b"), Hints(chain="c")])
            open_ids[n] = dispatcher.start_call(cube(float(n)), hints, outcomes[n].append)

    def cancel() -> None:
        for n in rng.sample(sorted(open_ids), min(3, len(open_ids))):
            if not outcomes[n]:
                cancelled.add(n)
                dispatcher.cancel(open_ids.pop(n))

    def some_work() -> None:
        while transport.sent and rng.random() < 0.9:
            worker, task_id, call = transport.sent.pop(0)
            if worker not in workers:
                continue
            result: Outcome = answer(call)
            rows = call.rows or 1
            if rows > 1 and rng.random() < 0.3:
                row = rng.randint(0, rows - 1)
                first = rows_of(call, row, more=True)
                dispatcher.finished(worker, [(task_id, first)])
                stuck.append((worker, task_id, rows_of(call, row + 1)))
                continue
            if rows > 1 and isinstance(result, Result) and rng.random() < 0.3:
                done = rng.randint(0, rows - 1)
                part = replace(call, inputs=(call.inputs[0][:done],), rows=done)
                result = replace(answer(part), failed=ModelFailed("no"))
            dispatcher.finished(worker, [(task_id, result)])

    def go_on() -> None:
        while stuck and rng.random() < 0.7:
            worker, task_id, last = stuck.pop(rng.randrange(len(stuck)))
            if worker in workers:
                dispatcher.finished(worker, [(task_id, last)])

    def lose() -> None:
        nonlocal names
        if workers and rng.random() < 0.3:
            worker = workers.pop()
            dispatcher.worker_left(worker, "killed", row=rng.choice([None, 0, 1]))
        names += 1
        workers.add(WorkerId(f"node1/{names}-a"))
        join(transport, WorkerId(f"node1/{names}-a"))

    for _ in range(60):
        rng.choice([ask, cancel, some_work, some_work, go_on, lose])()
        await turns(rng.randint(0, 2))
        check(dispatcher._scheduler)
    while dispatcher.stages.calls_open():
        await turns(1)
        go_on()
        work(transport)
    for n, found in outcomes.items():
        if n in cancelled:
            assert found == []
            continue
        (one,) = found
        if isinstance(one, Result):
            assert one.outputs[0].tolist() == [float(n) ** 3]
        else:
            assert isinstance(one, ModelFailed | WorkerLost)
    check(dispatcher._scheduler)
    assert dispatcher.stages.calls_open() == 0
