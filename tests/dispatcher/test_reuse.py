"""Repeats are answered from memory, twins share one run, and each caller gets one outcome."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from farm.call import Array, Call, Hints, ModelInfo, Operation, Result, WorkerInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.errors import ModelFailed
from farm.scheduler.actions import Reply
from farm.scheduler.state import WorkerId
from tests.dispatcher.ended_calls import Failures
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
    """A worker that cubes the rows of each call that the test lets it answer; runs: those rows."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[list[float]] = []

    async def evaluate(self) -> Array:
        """Answer the next call and return its inputs."""
        worker, task_id, call = await self.next()
        inputs = call.inputs[0]
        self.dispatcher.finished(worker, [(task_id, Result((inputs**3,), 0.001))])
        self.runs.append(inputs.reshape(-1).tolist())
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


DEADLINE, START, URGENT = Hints(deadline_s=60.0), Hints(start_within_s=60.0), Hints(priority=5)


class Scene(NamedTuple):
    """Calls that come together, the rows of each run, and which calls say that they have another's.

    reused, missed: as the statistics of the model count rows. known: the points that are kept.
    """

    calls: Sequence[Call | tuple[Call, Hints]]
    runs: list[list[float]]
    of_others: list[bool]
    reused: int
    missed: int
    known: Sequence[float] = ()


SCENES = {
    "a known point": Scene([cube(2.0)], [], [True], 1, 0, [2.0]),
    "known rows": Scene([rows(3.0, 2.0)], [], [True], 2, 0, [2.0, 3.0]),
    "some known rows": Scene(
        [rows(1.0, 2.0, 3.0, 1.0, 4.0)], [[1.0], [3.0]], [True], 3, 2, [2.0, 4.0]
    ),
    "no known rows": Scene([rows(1.0, 2.0)], [[1.0, 2.0]], [False], 0, 2),
    "a config that has no keys": Scene(
        [replace(cube(2.0), config='{"a":1}')], [[2.0]], [False], 0, 0, [2.0]
    ),
    "twins": Scene([cube(2.0), cube(2.0), rows(2.0)], [[2.0]], [False, True, True], 2, 1),
    "rows of a batch": Scene(
        [rows(1.0, 2.0, 3.0), cube(2.0), rows(3.0)], [[1.0, 2.0, 3.0]], [False, True, True], 2, 3
    ),
    "rows of calls and batches": Scene(
        [cube(1.0), rows(2.0, 3.0), rows(0.0, 3.0, 2.0, 9.0, 4.0, 1.0, 4.0)],
        [[1.0], [2.0, 3.0], [0.0], [4.0]],
        [False, False, True],
        5,
        5,
        [9.0],
    ),
    "a deadline": Scene([(cube(2.0), DEADLINE), cube(2.0)], [[2.0]] * 2, [False] * 2, 0, 2),
    "a latest start": Scene([cube(2.0), (cube(2.0), START)], [[2.0]] * 2, [False] * 2, 0, 2),
    "an urgent call": Scene([cube(2.0), (cube(2.0), URGENT)], [[2.0]] * 2, [False] * 2, 0, 2),
    "rows with a deadline": Scene(
        [rows(1.0, 2.0), (rows(2.0, 1.0, 2.0), DEADLINE)],
        [[1.0, 2.0], [2.0, 1.0]],
        [False, True],
        1,
        4,
    ),
    "urgent rows": Scene(
        [rows(1.0, 2.0), (rows(2.0, 1.0, 2.0), URGENT)],
        [[2.0, 1.0], [1.0, 2.0]],
        [False, True],
        1,
        4,
    ),
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
async def test_each_row_runs_once_unless_its_call_has_a_reason_not_to_wait(scene: Scene) -> None:
    memory = Memory(**{f"x{x:g}": x**3 for x in scene.known})
    dispatcher, worker = up(memory, BATCHES)
    calls = [each if isinstance(each, tuple) else (each, Hints()) for each in scene.calls]
    waiting = [asked(dispatcher, *each) for each in calls]
    await answered(worker, *waiting)
    assert worker.runs == scene.runs
    results = [await each for each in waiting]
    for (call, _), result in zip(calls, results, strict=True):
        assert result.outputs[0].tolist() == (call.inputs[0] ** 3).tolist()
    assert [result.reused for result in results] == scene.of_others
    counted = dispatcher.statistics()["cube"]
    assert (counted.reused, counted.missed) == (scene.reused, scene.missed)
    assert (counted.success.count, counted.rows) == (len(calls), sum(map(len, scene.runs)))
    assert dispatcher.stages.calls_open() == 0


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


async def test_twins_share_a_failure() -> None:
    dispatcher, worker = up(Memory())
    failures = Failures(dispatcher)
    twins = [asked(dispatcher, cube(2.0)) for _ in range(2)]
    await worker.end(ModelFailed("diverged"))
    outcomes = await asyncio.gather(*twins, return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["diverged", "diverged"]
    assert [failure.calls for failure in failures()] == [2]
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


async def test_calls_beyond_a_bound_wait_in_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farm.dispatcher.reuse.MOST_JOINED", 2)
    dispatcher, worker = up(Memory())
    twins = [asked(dispatcher, cube(2.0)) for _ in range(5)]
    await turns()
    assert dispatcher.stages.calls_open() == 3
    for _ in range(3):
        await worker.evaluate()
    assert sum(result.reused for result in await asyncio.gather(*twins)) == 2


async def test_a_failed_batch_fails_no_point_that_is_known() -> None:
    dispatcher, worker = up(Memory(x1=1.0, x3=27.0), BATCHES)
    points = Points(1.0, 2.0, 3.0)
    dispatcher.start_rows(points, "cube", Operation.EVALUATE, Hints())
    call = await worker.end(ModelFailed("diverged"))
    assert call.inputs[0].tolist() == [[2.0]]
    await until(lambda: points.ended)
    assert points.outcomes == {0: (1.0, True), 1: "diverged", 2: (27.0, True)}


async def test_a_failed_row_is_named_by_its_place_in_the_call() -> None:
    dispatcher, worker = up(Memory(x1=1.0, x2=8.0))
    bulk = asked(dispatcher, rows(1.0, 2.0, 3.0))
    call = await worker.end(Result((), failed=ModelFailed("diverged")))
    assert call.inputs[0].reshape(-1).tolist() == [3.0]
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
