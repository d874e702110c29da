"""Facts about workers in the snapshot of a real dispatcher, whose transport a test plays."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from farm.call import Call, ModelInfo, Operation, Result, TensorInfo, WorkerInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.errors import ModelFailed
from farm.monitoring import workers
from farm.monitoring.workers import WorkerFacts
from farm.scheduler.actions import Outcome
from farm.scheduler.state import TaskId, WorkerId
from farm.sequences import SequenceId
from farm.wire.usage import Used
from tests.support.coroutines import on_loop, until

CUBE = ModelInfo("cube", (TensorInfo("x", (1,)),), (TensorInfo("y", (1,)),))
W = WorkerId("node1/1-a")


class Played:
    """A transport that keeps what it is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[TaskId, Call]] = []

    def start(self, dispatcher: Dispatcher) -> None: ...

    def send(self, worker: WorkerId, tasks: Sequence[tuple[TaskId, Call]]) -> None:
        self.sent += tasks

    def recall(self, worker: WorkerId, tasks: Sequence[TaskId]) -> None: ...

    def end_stream(self, worker: WorkerId, task: TaskId) -> None: ...

    def end_sequence(self, worker: WorkerId, model: str, sequence: SequenceId) -> None: ...

    def stop_workers(self) -> None: ...

    async def close(self) -> None: ...


class Farm:
    def __init__(self) -> None:
        self.transport = Played()
        self.dispatcher = Dispatcher([self.transport])
        WorkerFacts(self.dispatcher)

    def join(self, **labels: str) -> None:
        self.dispatcher.worker_joined(WorkerInfo(W, (CUBE,), labels=labels), self.transport)

    def row(self) -> dict[str, Any]:
        (row,) = self.dispatcher.snapshot()["workers"]
        found: dict[str, Any] = row
        return found

    async def call(self, outcome: Outcome) -> None:
        """Run a call whose outcome the worker gives."""
        call = Call("cube", Operation.EVALUATE, (np.zeros(1),))
        task = asyncio.create_task(self.dispatcher.submit(call))
        await until(lambda: bool(self.transport.sent))
        (task_id, _) = self.transport.sent.pop()
        self.dispatcher.finished(W, [(task_id, outcome)])
        await asyncio.wait({task})
        assert task.exception() is None or isinstance(outcome, ModelFailed)


def result(run_time_s: float, *, worker: str = "") -> Result:
    return Result((np.zeros(1),), run_time_s, worker=worker)


@on_loop
async def test_a_new_worker_has_no_run_times() -> None:
    farm = Farm()
    farm.join(restarts="2")
    row = farm.row()
    assert row["run_times_s"] == {"p50": None, "p90": None, "p99": None, "count": 0}
    assert (row["restarts"], row["memory_bytes"], row["processor"]) == (2, None, None)
    assert row["age_s"] >= 0.0
    assert row["trouble"] == []


@pytest.mark.parametrize("label", ["", "-1", "many", "²", "1.5"])
@on_loop
async def test_a_label_that_is_no_number_counts_as_none(label: str) -> None:
    farm = Farm()
    farm.join(restarts=label)
    assert farm.row()["restarts"] == 0


@on_loop
async def test_the_run_times_of_its_answers_are_shown() -> None:
    farm = Farm()
    farm.join()
    for seconds in (1.0, 1.0, 8.0):
        await farm.call(result(seconds))
    await farm.call(ModelFailed("it raised"))
    row = farm.row()
    times = row["run_times_s"]
    assert (row["done"], row["failed"], times["count"]) == (3, 1, 3)
    assert times["p50"] == pytest.approx(1.0, rel=0.05)
    assert times["p99"] == pytest.approx(8.0, rel=0.05)


@on_loop
async def test_of_a_run_of_rows_the_time_of_one_row_counts() -> None:
    farm = Farm()
    farm.join()
    call = Call("cube", Operation.EVALUATE, (np.zeros((4096, 1)),), rows=4096)
    task = asyncio.create_task(farm.dispatcher.submit(call))
    most = 0
    while not task.done():
        await until(lambda: task.done() or bool(farm.transport.sent))
        sent, farm.transport.sent = farm.transport.sent, []
        for task_id, part in sent:
            rows = part.rows or 1
            most = max(most, rows)
            y = np.zeros((1,) if part.rows is None else (rows, 1))
            farm.dispatcher.finished(W, [(task_id, Result((y,), 2e-6 * rows))])
    assert most > 1
    assert farm.row()["run_times_s"]["p99"] == pytest.approx(2e-6, rel=0.05)


@on_loop
async def test_an_answer_may_name_another_process() -> None:
    """As those of a Dask cluster do, which is one worker."""
    farm = Farm()
    farm.join()
    await farm.call(result(1.0, worker="node7/dask-3"))
    assert farm.row()["run_times_s"]["count"] == 1


@on_loop
async def test_what_it_uses_is_shown_until_it_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    farm = Farm()
    farm.join()
    for tell in farm.dispatcher.on_used:
        tell(W, Used(1000, 0.5))
        tell(WorkerId("unknown"), Used(1, 1.0))
    row = farm.row()
    assert (row["memory_bytes"], row["processor"]) == (1000, 0.5)
    monkeypatch.setattr(workers, "STALE_S", 0.0)
    row = farm.row()
    assert (row["memory_bytes"], row["processor"]) == (1000, 0.5), "an idle worker reports seldom"
    monkeypatch.setattr(workers, "STALE_IDLE_S", 0.0)
    row = farm.row()
    assert (row["memory_bytes"], row["processor"]) == (None, None)


@on_loop
async def test_what_a_busy_worker_uses_is_old_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    farm = Farm()
    farm.join()
    for tell in farm.dispatcher.on_used:
        tell(W, Used(1000, 0.5))
    task = asyncio.create_task(
        farm.dispatcher.submit(Call("cube", Operation.EVALUATE, (np.zeros(1),)))
    )
    await until(lambda: bool(farm.transport.sent))
    monkeypatch.setattr(workers, "STALE_S", 0.0)
    row = farm.row()
    assert (row["memory_bytes"], row["processor"]) == (None, None)
    farm.dispatcher.finished(W, [(farm.transport.sent.pop()[0], result(1.0))])
    await task


@on_loop
async def test_a_worker_that_joins_again_keeps_its_facts_and_one_that_left_does_not() -> None:
    farm = Farm()
    farm.join()
    await farm.call(result(1.0))
    farm.join()
    assert farm.row()["run_times_s"]["count"] == 1
    farm.dispatcher.worker_left(W, "killed")
    farm.join()
    assert farm.row()["run_times_s"]["count"] == 0


@on_loop
async def test_facts_of_many_workers_are_computed_once_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    farm = Farm()
    farm.join()
    for number in range(workers.FEW):
        info = WorkerInfo(f"node2/{number}-b", (CUBE,), labels={"restarts": "5"})
        farm.dispatcher.worker_joined(info, farm.transport)

    def used() -> list[int | None]:
        return [r["memory_bytes"] for r in farm.dispatcher.snapshot()["workers"][:1]]

    monkeypatch.setattr(workers, "REFRESH_S", 1000.0)
    assert used() == [None]
    for tell in farm.dispatcher.on_used:
        tell(W, Used(1000, 0.5))
    assert used() == [None]
    rows = farm.dispatcher.snapshot()["workers"]
    assert rows[1]["trouble"] == ["was started again 5 times"]
    monkeypatch.setattr(workers, "REFRESH_S", 0.0)
    assert used() == [1000]
