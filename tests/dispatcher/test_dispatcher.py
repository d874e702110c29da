"""The dispatcher between a real scheduler and a transport that records its requests."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from farm.call import NO_HINTS, Call, Hints, ModelInfo, Operation, Result, TensorInfo, WorkerInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.events import Departure
from farm.errors import (
    DeadlineExceeded,
    FarmError,
    InvalidInput,
    LossCause,
    ModelNotFound,
    Unavailable,
)
from farm.scheduler.actions import Outcome
from farm.scheduler.state import TaskId, WorkerId
from farm.sequences import SequenceId
from farm.wire.usage import ENDS_RUNS
from tests.support.coroutines import until
from tests.support.expected import Expected

CUBE = ModelInfo("cube", (TensorInfo("x", (1,)),), (TensorInfo("y", (1,)),))
ONCE = ModelInfo("once", CUBE.inputs, CUBE.outputs, repeatable=False)
W1, W2 = WorkerId("node1/1-a"), WorkerId("node2/2-b")


class Recorder:
    """A transport that records its requests; the test acts as the workers."""

    def __init__(self) -> None:
        self.sent: list[tuple[WorkerId, TaskId, Call]] = []
        self.messages: list[tuple[WorkerId, int]] = []
        self.recalled: list[tuple[WorkerId, list[TaskId]]] = []
        self.ended: list[tuple[WorkerId, TaskId]] = []
        self.life: list[str] = []
        self.leave_on_stop = True

    def start(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        self.life.append("start")

    def send(self, worker: WorkerId, tasks: Sequence[tuple[TaskId, Call]]) -> None:
        self.sent += [(worker, task_id, call) for task_id, call in tasks]
        self.messages.append((worker, len(tasks)))

    def recall(self, worker: WorkerId, tasks: Sequence[TaskId]) -> None:
        self.recalled.append((worker, list(tasks)))

    def end_stream(self, worker: WorkerId, task: TaskId) -> None:
        self.ended.append((worker, task))

    def end_sequence(self, worker: WorkerId, model: str, sequence: SequenceId) -> None:
        """Do nothing: none of the calls belongs to a sequence."""

    def stop_workers(self) -> None:
        self.life.append("stop workers")
        if self.leave_on_stop:
            for row in self.dispatcher.snapshot()["workers"]:
                self.dispatcher.worker_left(WorkerId(row["name"]), "stopped", drained=True)

    async def close(self) -> None:
        self.life.append("close")

    # Actions of the workers, controlled by the test

    def join(self, worker: WorkerId = W1, models: tuple[ModelInfo, ...] = (CUBE,)) -> None:
        host = worker.partition("/")[0]
        info = WorkerInfo(worker, models, host=host, pid=7, labels={ENDS_RUNS: "yes"})
        self.dispatcher.worker_joined(info, self)

    async def next(self) -> tuple[WorkerId, TaskId, Call]:
        """Return the next call that is sent."""
        await until(lambda: self.sent)
        return self.sent.pop(0)

    async def answer(self, value: float = 8.0, run_time_s: float = 0.001) -> None:
        """Answer the next call that is sent to a worker."""
        await self.end(Result((np.array([value]),), run_time_s))

    async def end(self, end: Outcome | Callable[[Call], Outcome]) -> Call:
        """End the next call that is sent, or let a model do so; return it."""
        worker, task_id, call = await self.next()
        outcome = end(call) if callable(end) else end
        self.dispatcher.finished(worker, [(task_id, outcome)])
        return call

    def end_all(self, model: Callable[[Call], Outcome]) -> list[Call]:
        """End all calls that were sent as the model does; return them."""
        sent, self.sent = self.sent, []
        for worker, task_id, call in sent:
            self.dispatcher.finished(worker, [(task_id, model(call))])
        return [call for _, _, call in sent]


def up(**limits: Any) -> tuple[Dispatcher, Recorder]:
    transport = Recorder()
    dispatcher = Dispatcher([transport], **limits)
    dispatcher.start()
    return dispatcher, transport


def served(*models: ModelInfo) -> tuple[Dispatcher, Recorder]:
    """A dispatcher with the worker W1, of `CUBE` unless other models are given."""
    dispatcher, transport = up()
    transport.join(W1, models or (CUBE,))
    return dispatcher, transport


def cube(x: float = 2.0, config: str = "{}", model: str = "cube") -> Call:
    return Call(model, Operation.EVALUATE, (np.array([x]),), config)


async def turns(count: int = 10) -> None:
    """Run the event loop until all pending callbacks have run."""
    for _ in range(count):
        await asyncio.sleep(0)


# Calls


async def test_call_goes_to_a_worker_and_its_result_comes_back() -> None:
    dispatcher, transport = served()
    call, began = cube(), time.monotonic()
    waiting = asyncio.create_task(dispatcher.submit(call))
    worker, task_id, sent = await transport.next()
    assert (worker, sent) == (W1, call)
    (row,) = dispatcher.snapshot()["workers"]
    assert (row["host"], row["pid"], row["in_flight"]) == ("node1", 7, 1)
    answer = Result((np.array([8.0]),), 0.25, idle_s=0.5)
    dispatcher.finished(worker, [(task_id, answer)])
    result = await waiting
    assert result.outputs is answer.outputs
    assert (result.run_time_s, result.idle_s, result.worker) == (0.25, 0.5, W1)
    assert 0.0 <= result.queue_time_s <= time.monotonic() - began


async def test_call_of_a_model_that_is_expected_waits_for_its_worker() -> None:
    dispatcher, transport = up()
    dispatcher.expect([CUBE])
    assert list(dispatcher.models()) == ["cube"]
    waiting = asyncio.create_task(dispatcher.submit(cube()))
    with pytest.raises(InvalidInput):
        await dispatcher.submit(Call("cube", Operation.EVALUATE, (np.ones(2),)))
    await turns()
    assert transport.sent == []
    transport.join()
    dispatcher.expect([ONCE, ModelInfo("cube", CUBE.inputs, CUBE.outputs, max_batch=9)])
    assert dispatcher.models() == {"cube": CUBE, "once": ONCE}, "its workers know better"
    await transport.answer(8.0)
    assert (await waiting).outputs[0][0] == 8.0


ROWS = ModelInfo("rows", (TensorInfo("x", (1, 1)),), CUBE.outputs, max_batch=2)


def rows(count: int, model: str = "rows") -> Call:
    x = np.arange(float(count)).reshape(count, 1)
    return Call(model, Operation.EVALUATE, (x,), rows=count)


def doubled(call: Call) -> Result:
    """Return the answer of a model that doubles its rows."""
    return Result((2.0 * call.inputs[0].reshape(-1, 1),), 0.001)


async def test_call_of_many_rows_runs_in_parts_and_is_answered_whole() -> None:
    dispatcher, transport = up()
    transport.join(W1, (ROWS, CUBE))
    transport.join(W2, (ROWS, CUBE))
    for model, parts in (("rows", [2, 2, 1]), ("cube", [1, 1, 1, 1, 1])):
        waiting = asyncio.create_task(dispatcher.submit(rows(5, model)))
        seen = []
        for _ in parts:
            worker, task_id, call = await transport.next()
            seen.append(call.rows)
            dispatcher.finished(worker, [(task_id, doubled(call))])
        assert sorted(seen, key=str) == sorted(parts, key=str)
        result = await waiting
        assert result.outputs[0].tolist() == [[0.0], [2.0], [4.0], [6.0], [8.0]]
    counted = dispatcher.statistics()
    assert [counted[m].rows for m in ("rows", "cube")] == [5, 5]
    assert [counted[m].executions for m in ("rows", "cube")] == [3, 5]
    assert [counted[m].success.count for m in ("rows", "cube")] == [1, 1]
    assert not dispatcher.stages.feeder


async def test_a_call_without_rows_is_answered_without_a_worker() -> None:
    dispatcher, transport = up()
    dispatcher.expect([ROWS])
    none = Call("rows", Operation.EVALUATE, (np.ones((0, 1, 1)),), rows=0)
    result = await dispatcher.submit(none)
    assert [(a.shape, a.dtype.name) for a in result.outputs] == [((0, 1), "float64")]
    outcomes: list[object] = []
    dispatcher.cancel(dispatcher.start_call(none, NO_HINTS, outcomes.append))
    await turns()
    assert (outcomes, transport.sent, dispatcher.stages.calls_open()) == ([], [], 0)
    with pytest.raises(InvalidInput, match="has shape"):
        await dispatcher.submit(Call("rows", Operation.EVALUATE, (np.ones((0, 2)),), rows=0))


async def test_rows_wait_no_longer_than_their_call_may() -> None:
    dispatcher, _ = served()
    waiting = asyncio.create_task(dispatcher.submit(rows(1000, "cube"), Hints(deadline_s=0.05)))
    with pytest.raises(DeadlineExceeded, match="no answer within ") as caught:
        await waiting
    assert float(caught.value.message.split()[3]) >= 0.05, "from when the call was taken"
    assert not dispatcher.stages.tasks.open


async def test_call_of_rows_that_began_in_time_may_take_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dispatcher, transport = served()
    waiting = asyncio.create_task(dispatcher.submit(rows(20, "cube"), Hints(start_within_s=1000.0)))
    await until(lambda: transport.sent)
    clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + 2000.0)
    while not waiting.done():
        await turns()
        transport.end_all(doubled)
    assert len((await waiting).outputs[0]) == 20


async def test_calls_in_different_shapes_and_types_meet_in_a_batch() -> None:
    dispatcher, transport = served(ROWS)
    first = asyncio.create_task(dispatcher.submit(rows(1)))
    busy = await transport.next()
    arrays = np.ones(1), np.ones((1, 1), np.float32)
    alike = [Call("rows", Operation.EVALUATE, (array,)) for array in arrays]
    tasks = [asyncio.create_task(dispatcher.submit(call)) for call in alike]
    await turns()
    transport.messages.clear()
    dispatcher.finished(busy[0], [(busy[1], doubled(busy[2]))])
    await first
    await turns()
    assert transport.messages == [(W1, 2)]
    for task in tasks:
        task.cancel()


async def test_calls_of_one_turn_leave_in_one_message() -> None:
    dispatcher, transport = up()
    batching = ModelInfo("cube", CUBE.inputs, CUBE.outputs, max_batch=8)
    transport.join(models=(batching,))
    tasks = [asyncio.create_task(dispatcher.submit(cube(i))) for i in range(5)]
    await until(lambda: transport.messages)
    assert transport.messages == [(W1, 5)]
    transport.end_all(lambda call: Result(()))
    await asyncio.gather(*tasks)


async def test_unknown_model_is_refused_with_the_names_of_the_others() -> None:
    dispatcher, transport = up()
    with pytest.raises(Unavailable, match="no model is known yet: the farm waits for its first"):
        await dispatcher.submit(cube())
    transport.join()
    with pytest.raises(ModelNotFound, match="the models are: cube"):
        await dispatcher.submit(cube(model="beam"))


async def test_answers_to_calls_of_another_life_are_ignored() -> None:
    dispatcher, transport = served()
    other, _ = up()
    ids = set()
    for life in (dispatcher, other):
        life.worker_joined(WorkerInfo(W1, (CUBE,)), transport)
        ids.add(life.start_call(cube(), Hints(), lambda outcome: None))
    assert len(ids) == 2
    dispatcher.finished(W1, [(task_id, Result(())) for task_id in ids])
    await turns()
    assert len(transport.sent) == 2


# Time


async def test_a_deadline_may_be_far_away_but_is_a_number() -> None:
    dispatcher, transport = served()
    for deadline_s in (math.inf, 1e12):
        waiting = asyncio.create_task(dispatcher.submit(cube(), Hints(deadline_s=deadline_s)))
        await transport.answer()
        await waiting
    with pytest.raises(InvalidInput, match="deadline"):
        await dispatcher.submit(cube(), Hints(deadline_s=math.nan))


# Workers


async def test_call_of_a_lost_worker_runs_elsewhere() -> None:
    dispatcher, transport = served()
    waiting = asyncio.create_task(dispatcher.submit(cube()))
    await transport.next()
    transport.join(W2)
    dispatcher.worker_left(W1, "signal SIGKILL")
    dispatcher.worker_left(W1, "its connection was lost")  # a second report is ignored
    await transport.answer()
    assert (await waiting).worker == W2
    events = [(e["event"], e["worker"]) for e in dispatcher.snapshot()["events"]]
    assert events == [("joined", W1), ("joined", W2), ("lost", W1)]


async def test_call_that_went_missing_is_sent_again() -> None:
    dispatcher, transport = served()
    waiting = asyncio.create_task(dispatcher.submit(cube()))
    _, task_id, _ = await transport.next()
    dispatcher.went_missing(W1, [task_id])
    await transport.answer()
    assert (await waiting).worker == W1
    assert dispatcher.snapshot()["events"][-1]["event"] == "missing"


async def test_workers_are_waited_for() -> None:
    dispatcher, transport = up()
    waiting = asyncio.create_task(dispatcher.wait_for_workers(2, timeout_s=10.0))
    for worker in (W1, W2):
        await turns()
        assert not waiting.done()
        transport.join(worker)
    await waiting
    with pytest.raises(Unavailable, match=r"2 of 3 workers joined within 0\.01 s"):
        await dispatcher.wait_for_workers(3, timeout_s=0.01)


# Descriptions


async def describe(dispatcher: Dispatcher, transport: Recorder, config: str) -> bool:
    """Describe a model; return whether a worker was asked."""
    waiting = asyncio.create_task(dispatcher.describe("cube", config))
    await until(lambda: waiting.done() or transport.sent)
    if waiting.done():
        assert waiting.result() == CUBE
        return False
    call = await transport.end(Result((), info=CUBE))
    assert (call.operation, call.config) == (Operation.DESCRIBE, config)
    assert await waiting == CUBE
    return True


async def test_description_is_asked_for_once() -> None:
    dispatcher, transport = served()
    assert not await describe(dispatcher, transport, "{}")  # the worker sent it when it joined
    assert await describe(dispatcher, transport, '{"n":2}')
    assert not await describe(dispatcher, transport, '{"n":2}')
    assert dispatcher.models() == {"cube": CUBE}
    with pytest.raises(InvalidInput):  # it checks calls of its config
        await dispatcher.submit(Call("cube", Operation.EVALUATE, (np.zeros(5),), '{"n":2}'))


async def test_a_model_is_ready_if_it_is_known_and_a_worker_may_have_it() -> None:
    assert not up(expected=Expected(may_come=True))[0].is_ready("cube")
    dispatcher, _ = served()
    assert dispatcher.is_ready("cube")
    dispatcher.worker_left(W1, "killed")
    assert not dispatcher.is_ready("cube")


@pytest.mark.parametrize(
    ("operation", "outcome"),
    [
        (Operation.DESCRIBE, InvalidInput("no such level")),
        (Operation.EVALUATE, Result((), info=ONCE)),
    ],
    ids=["an error", "an answer to something else"],
)
async def test_only_a_worker_that_is_asked_for_it_gives_a_description(
    operation: Operation, outcome: Outcome
) -> None:
    dispatcher, transport = served()
    call = replace(cube(config='{"n":2}'), operation=operation)
    dispatcher.start_call(call, NO_HINTS, lambda outcome: None)
    await transport.end(outcome)
    assert await describe(dispatcher, transport, '{"n":2}')


async def test_no_call_waited_for_less_than_no_time() -> None:
    """Not even a call that is submitted during an answer and sent in the same iteration."""
    dispatcher, transport = served()
    found: list[float] = []

    def again(outcome: Result | FarmError) -> None:
        assert isinstance(outcome, Result)
        found.append(outcome.queue_time_s)
        if len(found) < 3:
            began = time.monotonic()
            while time.monotonic() == began:
                pass
            dispatcher.start_call(cube(), NO_HINTS, again)

    dispatcher.start_call(cube(), NO_HINTS, again)
    for _ in range(3):
        await transport.answer()
    await until(lambda: len(found) == 3)
    assert min(found) >= 0.0


# Shutdown


async def test_close_lets_calls_finish_then_stops_workers_then_closes_transports() -> None:
    dispatcher, transport = served()
    waiting = asyncio.create_task(dispatcher.submit(cube()))
    await until(lambda: transport.sent)
    closing = asyncio.create_task(dispatcher.close(grace_s=20.0))
    await turns()
    with pytest.raises(Unavailable, match="shutting down"):
        await dispatcher.submit(cube())
    assert transport.life == ["start"]
    await transport.answer()
    await waiting
    await closing
    assert transport.life == ["start", "stop workers", "close"]


async def test_close_answers_what_does_not_finish_and_then_nothing_is_asked_of_transports() -> None:
    dispatcher, transport = served()
    for _ in range(20):  # so short that several are prefetched
        waiting = asyncio.create_task(dispatcher.submit(cube()))
        await transport.answer()
        await waiting
    tasks = [asyncio.create_task(dispatcher.submit(cube())) for _ in range(5)]
    await until(lambda: len(transport.sent) > 1)
    transport.leave_on_stop = False
    await dispatcher.close(grace_s=0.02)
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {Unavailable}
    transport.sent.clear()
    transport.recalled.clear()
    dispatcher.worker_resized(W1, 1)  # recalls again the tasks queued there
    await turns()
    dispatcher.worker_left(W1, "its connection was lost")
    await turns()
    assert (transport.sent, transport.recalled) == ([], [])


async def test_close_does_not_wait_for_calls_that_are_cancelled_meanwhile() -> None:
    dispatcher, transport = served()
    waiting = asyncio.create_task(dispatcher.submit(cube()))
    await until(lambda: transport.sent)
    closing = asyncio.create_task(dispatcher.close(grace_s=1000.0))
    await turns()
    waiting.cancel()
    await asyncio.wait_for(closing, 10.0)


async def test_a_slow_call_is_answered_by_its_copy_and_close_waits_only_for_idle_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("farm.dispatcher.dispatcher.WORKERS_GRACE_S", 1000.0)
    dispatcher, transport = served()
    times = dispatcher._scheduler.queue("cube", Operation.EVALUATE)
    times.counts.done = 20
    for _ in range(20):
        times.run_times.add(1e-3)
    waiting = asyncio.create_task(dispatcher.submit(cube()))
    first, task_id, _ = await transport.next()
    idle = W2, WorkerId("node1/3-c")
    for worker in idle:
        transport.join(worker)
    assert (first, *(await transport.next())[:2]) == (W1, W2, task_id)
    dispatcher.finished(W2, [(task_id, Result((np.array([8.0]),), 0.25))])
    result = await waiting
    assert (result.copied, result.worker, transport.ended) == (True, W2, [(W1, task_id)])
    state = dispatcher.snapshot()
    assert state["overhead_s"] is None, "the time before the copy is not farm's overhead"
    assert dispatcher.stages.calls_open() == 0
    transport.leave_on_stop = False
    closing = asyncio.create_task(dispatcher.close(grace_s=1000.0))
    await until(lambda: "stop workers" in transport.life)
    await turns()
    assert not closing.done(), "the idle workers have not left"
    for worker in idle:
        dispatcher.worker_left(worker, "stopped", drained=True)
    await asyncio.wait_for(closing, 10.0)


# Snapshots


async def test_other_parts_hear_of_workers_and_answers() -> None:
    dispatcher, transport = up()
    heard: list[object] = []
    dispatcher.on_joined.append(lambda info, before: heard.append((info.name, before is None)))
    dispatcher.on_left.append(lambda info, how: heard.append((info.name, how)))
    dispatcher.on_answered.append(lambda task, outcome, now: heard.append((task.rows, outcome)))
    transport.join(W1)
    transport.join(W1)
    running = asyncio.create_task(dispatcher.submit(cube()))
    await transport.answer()
    result = await running
    dispatcher.worker_left(W1, "killed", cause=LossCause.CRASH, detail="line 3")
    dispatcher.worker_left(W1, "heard again")
    left = Departure("killed", LossCause.CRASH, "line 3")
    assert heard == [(W1, True), (W1, False), (1, result), (W1, left)]


async def test_call_of_a_callback_is_sent_before_the_turn_ends() -> None:
    dispatcher, transport = served()
    second: list[TaskId] = []

    def ask_again(outcome: object) -> None:
        second.append(dispatcher.start_call(cube(), NO_HINTS, lambda outcome: None))

    dispatcher.start_call(cube(), NO_HINTS, ask_again)
    await until(lambda: transport.sent)
    worker, task_id, _ = transport.sent[0]
    answer = Result((np.array([8.0]),), 0.001)
    dispatcher.turns.act_on(lambda: dispatcher.finished(worker, [(task_id, answer)]))
    assert [task_id for _, task_id, _ in transport.sent][1:] == second
