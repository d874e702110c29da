"""Repeats are answered from memory, twins share one run, and each caller gets one outcome."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from farm.call import Array, Call, Hints, ModelInfo, Operation, Result, WorkerInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.partition import Rows
from farm.errors import FarmError, ModelFailed
from farm.scheduler.actions import Reply
from farm.scheduler.state import WorkerId
from tests.dispatcher.test_dispatcher import CUBE, W1, Recorder, cube, turns
from tests.dispatcher.test_feeder import Each
from tests.support.coroutines import until

BATCHES = ModelInfo("cube", CUBE.inputs, CUBE.outputs, max_batch=8)


class Memory:
    """Keeps evaluations in a dictionary; the key of a point is its input as text."""

    reuses = True

    def __init__(self, **known: float) -> None:
        self.known = {key.encode(): value for key, value in known.items()}
        self.kept: list[Reply] = []
        self.workers: list[str] = []

    def joined(self, info: WorkerInfo, before: object) -> None:
        self.workers.append(info.name)

    def left(self, info: WorkerInfo, departure: object) -> None:
        self.workers.remove(info.name)

    def keep(self, replies: Iterable[Reply]) -> None:
        for reply in replies:
            self.kept.append(reply)
            if isinstance(reply.outcome, Result) and reply.outcome.outputs:
                points = reply.task.call.inputs[0].reshape(-1)
                values = reply.outcome.outputs[0].reshape(-1)
                for x, y in zip(points, values, strict=False):
                    self.known[f"x{x:g}".encode()] = y

    def keys(self, call: Call) -> Sequence[bytes] | None:
        if call.config != "{}":
            return None
        return [f"x{x:g}".encode() for x in call.inputs[0].reshape(-1)]

    def find(self, key: bytes) -> Result | None:
        if key not in self.known:
            return None
        return Result((np.array([self.known[key]]),), 0.5, worker="then", reused=True)


class Worker(Recorder):
    """A worker that cubes the rows of each call that the test lets it answer."""

    async def evaluate(self, *, failed: FarmError | None = None, rows: int | None = None) -> Array:
        """Answer the next call and return its inputs. rows: answer so many of them."""
        worker, task_id, call = await self.next()
        inputs = call.inputs[0]
        done = inputs if rows is None else inputs[:rows]
        result = Result((done**3,), 0.001, failed=failed)
        self.dispatcher.finished(worker, [(task_id, result)])
        return inputs.reshape(-1)


def up(memory: Memory, info: ModelInfo = CUBE) -> tuple[Dispatcher, Worker]:
    worker = Worker()
    dispatcher = Dispatcher([worker], memory=memory)
    dispatcher.start()
    worker.join(models=(info,))
    return dispatcher, worker


def asked(
    dispatcher: Dispatcher,
    call: Call,
    hints: Hints = Hints(),  # noqa: B008  # immutable
) -> asyncio.Task[Result]:
    return asyncio.create_task(dispatcher.submit(call, hints))


def rows(*x: float) -> Call:
    return Call("cube", Operation.EVALUATE, (np.array(x)[:, None],), rows=len(x))


async def test_a_known_point_needs_no_worker() -> None:
    dispatcher, worker = up(Memory(x2=8.0))
    result = await dispatcher.submit(cube(2.0))
    assert (result.outputs[0].tolist(), result.reused, result.worker) == ([8.0], True, "then")
    assert worker.sent == []
    statistics = dispatcher.statistics()["cube"]
    assert (statistics.reused, statistics.success.count, statistics.rows) == (1, 1, 0)
    assert statistics.missed == 0


async def test_an_unknown_point_is_evaluated_once_and_kept_before_it_is_answered() -> None:
    memory = Memory()
    dispatcher, worker = up(memory)
    order: list[str] = []
    keep = memory.keep

    def keep_first(replies: Iterable[Reply]) -> None:
        order.append("kept")
        keep(replies)

    memory.keep = keep_first  # type: ignore[method-assign]  # a spy
    dispatcher.start_call(cube(2.0), Hints(), lambda outcome: order.append("answered"))
    await worker.evaluate()
    await until(lambda: len(order) == 2)
    assert order == ["kept", "answered"]
    assert (await dispatcher.submit(cube(2.0))).reused
    assert worker.sent == []
    assert dispatcher.statistics()["cube"].missed == 1


async def test_twins_share_one_run() -> None:
    dispatcher, worker = up(Memory())
    first, second, bulk = (asked(dispatcher, call) for call in (cube(2.0), cube(2.0), rows(2.0)))
    await turns()
    assert (await worker.evaluate()).tolist() == [2.0]
    results = await asyncio.gather(first, second, bulk)
    assert [result.reused for result in results] == [False, True, True]
    assert [result.outputs[0].shape for result in results] == [(1,), (1,), (1, 1)]
    assert {float(result.outputs[0].item()) for result in results} == {8.0}
    assert (worker.sent, dispatcher.statistics()["cube"].reused) == ([], 2)
    assert dispatcher.statistics()["cube"].missed == 1


async def test_twins_share_a_failure() -> None:
    dispatcher, worker = up(Memory())
    twins = [asked(dispatcher, cube(2.0)) for _ in range(2)]
    w, task_id, _ = await worker.next()
    dispatcher.finished(w, [(task_id, ModelFailed("diverged"))])
    outcomes = await asyncio.gather(*twins, return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["diverged", "diverged"]
    again = asked(dispatcher, cube(2.0))  # a failure is not kept: the next call runs
    await worker.evaluate()
    assert not (await again).reused


async def test_a_failure_counts_although_the_first_twin_is_cancelled() -> None:
    dispatcher, worker = up(Memory())
    first, second = asked(dispatcher, cube(2.0)), asked(dispatcher, cube(2.0))
    w, task_id, _ = await worker.next()
    first.cancel()
    await turns()
    dispatcher.finished(w, [(task_id, ModelFailed("diverged"))])
    with pytest.raises(ModelFailed, match="diverged"):
        await second
    assert dispatcher.statistics()["cube"].fail.count == 1


@pytest.mark.parametrize("hints", [Hints(deadline_s=60.0), Hints(start_within_s=60.0)])
async def test_a_call_with_a_time_limit_of_its_own_runs_alone(hints: Hints) -> None:
    dispatcher, worker = up(Memory())
    twins = [asked(dispatcher, cube(2.0), h) for h in (hints, Hints(), hints)]
    for _ in twins:
        await worker.evaluate()
    assert [result.reused for result in await asyncio.gather(*twins)] == [False] * 3


async def test_an_urgent_call_does_not_wait_for_one_that_is_not() -> None:
    dispatcher, worker = up(Memory())
    slow, urgent = asked(dispatcher, cube(2.0)), asked(dispatcher, cube(2.0), Hints(priority=5))
    await worker.evaluate()
    await worker.evaluate()
    assert [r.reused for r in await asyncio.gather(slow, urgent)] == [False, False]


async def test_calls_beyond_a_bound_wait_in_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farm.dispatcher.reuse.MOST_JOINED", 2)
    dispatcher, worker = up(Memory())
    twins = [asked(dispatcher, cube(2.0)) for _ in range(5)]
    await turns()
    assert dispatcher.stages.calls_open() == 3
    for _ in range(3):
        await worker.evaluate()
    assert sum(result.reused for result in await asyncio.gather(*twins)) == 2


async def test_a_call_that_memory_does_not_know_runs_as_ever() -> None:
    dispatcher, worker = up(Memory(x2=8.0))
    call = asked(dispatcher, replace(cube(2.0), config='{"a":1}'))
    await worker.evaluate()
    assert not (await call).reused


async def test_of_a_batch_only_unknown_rows_run_and_each_of_them_once() -> None:
    dispatcher, worker = up(Memory(x2=8.0, x4=64.0), BATCHES)
    bulk = asked(dispatcher, rows(1.0, 2.0, 3.0, 1.0, 4.0))
    assert [(await worker.evaluate()).tolist() for _ in range(2)] == [[1.0], [3.0]]
    result = await bulk
    assert worker.sent == []
    assert result.outputs[0].tolist() == [[1.0], [8.0], [27.0], [1.0], [64.0]]
    assert result.reused
    assert dispatcher.statistics()["cube"].reused == 3
    assert dispatcher.statistics()["cube"].missed == 2
    again = await dispatcher.submit(rows(4.0, 3.0, 2.0, 1.0))
    assert again.outputs[0].tolist() == [[64.0], [27.0], [8.0], [1.0]]
    assert worker.sent == []


async def test_a_batch_without_known_rows_is_sent_as_it_is() -> None:
    dispatcher, worker = up(Memory(), BATCHES)
    bulk = asked(dispatcher, rows(1.0, 2.0))
    assert (await worker.evaluate()).tolist() == [1.0, 2.0]
    assert not (await bulk).reused


class Points(Each):
    """Rows that are calls of their own, as those of a request to /farm."""

    rows_a_step = 1 << 60

    def __init__(self, *x: float) -> None:
        super().__init__(len(x), set())
        self.x = np.array(x)

    def part(self, first: int, most: int) -> Call:
        return rows(*self.x[first : first + most])

    def value(self, result: Result, row: int) -> tuple[float, bool]:
        return float(result.outputs[0][row, 0]), result.reused


async def answered(worker: Worker, *waiting: asyncio.Task[Result] | Points) -> Counter[float]:
    """Answer all that is sent until these calls are over; return how often each row was run."""
    ran: Counter[float] = Counter()
    while not all(w.ended if isinstance(w, Points) else w.done() for w in waiting):
        if worker.sent:
            ran.update((await worker.evaluate()).tolist())
        await asyncio.sleep(0)
    return ran


@pytest.mark.parametrize("info", [CUBE, BATCHES], ids=["one by one", "batches"])
async def test_each_of_many_points_says_whether_it_ran(info: ModelInfo) -> None:
    dispatcher, worker = up(Memory(x1=1.0, x2=8.0, x5=125.0), info)
    points = Points(1.0, 2.0, 3.0, 4.0, 5.0, 3.0)
    checked: Rows = points
    dispatcher.start_rows(checked, "cube", Operation.EVALUATE, Hints())
    ran = await answered(worker, points)
    assert [points.outcomes[k] for k in range(5)] == [
        (1.0, True),
        (8.0, True),
        (27.0, False),
        (64.0, False),
        (125.0, True),
    ]
    assert points.outcomes[5] in ((27.0, True), (27.0, False))
    assert set(ran) == {3.0, 4.0}


async def test_a_failed_batch_fails_no_point_that_is_known() -> None:
    dispatcher, worker = up(Memory(x1=1.0, x3=27.0), BATCHES)
    points = Points(1.0, 2.0, 3.0)
    dispatcher.start_rows(points, "cube", Operation.EVALUATE, Hints())
    w, task_id, call = await worker.next()
    assert call.inputs[0].tolist() == [[2.0]]
    dispatcher.finished(w, [(task_id, ModelFailed("diverged"))])
    await until(lambda: points.ended)
    assert points.outcomes == {0: (1.0, True), 1: "diverged", 2: (27.0, True)}


async def test_a_failed_row_is_named_by_its_place_in_the_call() -> None:
    dispatcher, worker = up(Memory(x1=1.0, x2=8.0))
    bulk = asked(dispatcher, rows(1.0, 2.0, 3.0))
    await until(lambda: worker.sent)
    _, task_id, call = worker.sent.pop()
    assert call.inputs[0].reshape(-1).tolist() == [3.0]
    dispatcher.finished(W1, [(task_id, Result((), failed=ModelFailed("diverged")))])
    with pytest.raises(ModelFailed, match="row 2: diverged"):
        await bulk


async def test_a_farm_that_closes_answers_what_it_found() -> None:
    dispatcher, _ = up(Memory(x2=8.0))
    outcomes: list[object] = []
    dispatcher.start_call(cube(2.0), Hints(), outcomes.append)
    await dispatcher.close(grace_s=60.0)
    assert len(outcomes) == 1


async def test_memory_hears_of_workers() -> None:
    memory = Memory()
    dispatcher, _ = up(memory)
    assert memory.workers == [W1]
    dispatcher.worker_left(WorkerId(W1), "gone")
    assert memory.workers == []
