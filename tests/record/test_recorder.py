"""What a farm records and reuses: repeatable models of a known version, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.call import Array, Call, Derivative, Hints, ModelInfo, Operation, Result, TensorInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.errors import Cancelled, FarmError, ModelFailed
from farm.record.entry import Entry, Status
from farm.record.file import entries_in
from farm.record.recorder import Recorder
from farm.scheduler.state import TaskId, WorkerId
from farm.storage.frames import Damage
from tests.dispatcher import test_dispatcher
from tests.dispatcher.test_dispatcher import W1, W2
from tests.record.entries import flip_bit
from tests.support.coroutines import until
from tests.sweep.samples import raising

SQUARE = ModelInfo(
    "square",
    (TensorInfo("x", (2,)),),
    (TensorInfo("y", (2,)),),
    frozenset({Operation.EVALUATE, Operation.GRADIENT, Operation.COST, Operation.STREAM}),
    version="1",
)


class Farm:
    """A dispatcher that records, and a worker that squares."""

    def __init__(self, path: Path, *models: ModelInfo, reuses: bool = True) -> None:
        self.recorder = Recorder(path, reuses=reuses)
        self.worker = test_dispatcher.Recorder()
        self.dispatcher = Dispatcher([self.worker], memory=self.recorder)
        self.recorder.start(self.dispatcher.description, self.dispatcher.note)
        self.dispatcher.start()
        self.worker.join(models=models or (SQUARE,))
        self.ran = 0

    async def asked(self, call: Call, outcome: Result | FarmError | None = None) -> Result:
        """Return the result of a call; the worker evaluates it unless it is known."""
        asked = asyncio.create_task(self.dispatcher.submit(call, Hints("mcmc", chain="c")))
        while not asked.done():
            if self.worker.sent:
                worker, task_id, sent = self.worker.sent.pop()
                self.ran += 1
                answer = outcome or Result((sent.inputs[0] ** 2,), 0.5)
                self.dispatcher.finished(worker, [(task_id, answer)])
            await asyncio.sleep(0)
        return await asked

    def events(self) -> list[str]:
        events = self.dispatcher.snapshot()["events"]
        return [f"{e['worker']}: {e['text']}" for e in events if e["event"] == "record"]


@contextlib.contextmanager
def farm(path: Path, *models: ModelInfo, **settings: Any) -> Iterator[Farm]:
    running = Farm(path, *models, **settings)
    try:
        yield running
    finally:
        running.recorder.close()


def at(*x: float, operation: Operation = Operation.EVALUATE, **more: Any) -> Call:
    return Call("square", operation, (np.array(x),), **more)


def recorded(path: Path) -> list[Entry]:
    places: list[Damage] = []
    found = [each for each, _, _ in entries_in(path, places.append) if isinstance(each, Entry)]
    assert places == []
    return found


def gradient(*sens: float) -> Call:
    wrt = Derivative(0, 0, sens=np.array(sens))
    return at(1.0, 2.0, operation=Operation.GRADIENT, derivative=wrt)


async def test_an_evaluation_is_kept_with_everything_about_it(path: Path) -> None:
    with farm(path) as running:
        await running.asked(at(1.0, -3.0, config='{"a":1}'))
    (entry,) = recorded(path)
    assert (entry.model, entry.version, entry.operation) == ("square", "1", "evaluate")
    assert (entry.config, entry.worker, entry.client) == ('{"a":1}', W1, "mcmc")
    assert (entry.chain, entry.run_time_s, entry.status) == ("c", 0.5, Status.FINITE)
    assert (entry.inputs[0].tolist(), entry.outputs[0].tolist()) == ([1.0, -3.0], [1.0, 9.0])
    assert entry.time > 1.7e9


async def test_a_restarted_farm_runs_nothing_twice(path: Path) -> None:
    calls = [at(1.0, 2.0), at(1.0, 2.0, config='{"a":1}'), gradient(1.0, 0.0), gradient(0.0, 1.0)]
    with farm(path) as running:
        first = [await running.asked(call) for call in calls]
        assert running.ran == 4
    with farm(path) as running:
        second = [await running.asked(call) for call in calls]
        assert running.ran == 0
    for one, other in zip(first, second, strict=True):
        assert (one.reused, other.reused, other.worker) == (False, True, W1)
        assert one.outputs[0].tobytes() == other.outputs[0].tobytes()


async def test_rows_and_single_calls_share_the_record(path: Path) -> None:
    points = np.array([[1.0, 2.0], [3.0, 4.0], [-0.0, 0.0]])
    bulk = Call("square", Operation.EVALUATE, (points,), rows=3)
    with farm(path, replace(SQUARE, max_batch=8)) as running:
        await running.asked(bulk)
        assert running.ran == 1
        for point in (*points, [0.0, -0.0]):
            result = await running.asked(at(*point))
            assert result.outputs[0].tolist() == [x**2 for x in point]
        assert running.ran == 1
    assert [entry.run_time_s for entry in recorded(path)] == [pytest.approx(0.5 / 3)] * 3


async def test_single_calls_answer_rows(path: Path) -> None:
    with farm(path) as running:
        await running.asked(at(1.0, 2.0))
        bulk = Call("square", Operation.EVALUATE, (np.array([[1.0, 2.0], [1.0, 2.0]]),), rows=2)
        assert (await running.asked(bulk)).outputs[0].tolist() == [[1.0, 4.0]] * 2
        assert running.ran == 1


@pytest.mark.parametrize(
    "other",
    [
        replace(SQUARE, version="2"),
        replace(SQUARE, version=""),
        replace(SQUARE, repeatable=False),
        replace(SQUARE, outputs=(TensorInfo("y", (1, 2)),)),
    ],
)
async def test_a_changed_model_is_not_answered_from_old_results(
    path: Path, other: ModelInfo
) -> None:
    with farm(path) as running:
        await running.asked(at(1.0, 2.0))
    with farm(path, other) as running:
        for _ in range(2):
            sevens = np.full(other.outputs[0].shape, 7.0)
            again = await running.asked(at(1.0, 2.0), Result((sevens,)))
            assert again.outputs[0].tolist() == sevens.tolist()
        assert running.ran == (1 if other.version and other.repeatable else 2)
    with farm(path) as running:
        assert (await running.asked(at(1.0, 2.0))).outputs[0].tolist() == [1.0, 4.0]


async def test_a_record_without_reuse_answers_nothing(path: Path) -> None:
    for ran in (1, 2):
        with farm(path, reuses=False) as running:
            await running.asked(at(1.0, 2.0))
            assert running.ran == 1
        assert len(recorded(path)) == ran


@pytest.mark.parametrize("row", [0, 2])
async def test_the_rows_of_a_split_run_are_kept_once_each(path: Path, row: int) -> None:
    x = np.array([[1.0, float(n)] for n in range(40)])
    rows = Call("square", Operation.EVALUATE, (x,), rows=40)
    with farm(path, reuses=False) as running:
        await running.asked(at(1.0, 50.0), Result((np.array([1.0, 2500.0]),), 1e-6))
        asked = asyncio.create_task(running.dispatcher.submit(rows))
        stuck: list[tuple[WorkerId, TaskId, Result]] = []
        while not asked.done():
            await asyncio.sleep(0)
            for worker, task_id, sent in running.worker.sent:
                y, count = sent.inputs[0] ** 2, sent.rows or 1
                times = (1e-6,) * count
                if count > row + 1 and not stuck:
                    some, done = y[: row + 1], times[: row + 1]
                    stuck.append((worker, task_id, Result((some,), sum(done), row_times_s=done)))
                    y, times = y[:row], times[:row]
                    first = Result((y,) if row else (), sum(times), more=True, row_times_s=times)
                    running.dispatcher.finished(worker, [(task_id, first)])
                else:
                    whole = Result((y,), sum(times), row_times_s=times if count > 1 else ())
                    running.dispatcher.finished(worker, [(task_id, whole)])
            running.worker.sent.clear()
            if stuck and not running.dispatcher.view.queued():
                running.dispatcher.finished(stuck[0][0], [stuck[0][1:]])
        assert (await asked).outputs[0].tolist() == (x**2).tolist()
    found = [(entry.inputs[0].tolist(), entry.outputs[0].tolist()) for entry in recorded(path)]
    points = [*x, np.array([1.0, 50.0])]
    assert sorted(found) == sorted([(each.tolist(), (each**2).tolist()) for each in points])


async def test_nan_and_failures_are_kept_and_not_reused(path: Path) -> None:
    bad = Result((np.array([np.nan, 1.0]),))
    with farm(path) as running:
        for _ in range(2):
            assert np.isnan((await running.asked(at(1.0, 1.0), bad)).outputs[0][0])
            with pytest.raises(ModelFailed, match="diverged"):
                await running.asked(at(2.0, 2.0), ModelFailed("diverged", detail="trace"))
        assert running.ran == 4
    entries = recorded(path)
    assert [entry.status for entry in entries] == [Status.NOT_FINITE, Status.FAILED] * 2
    assert entries[1].error == ("ModelFailed", "diverged", "trace")


async def test_a_failed_batch_keeps_the_row_at_fault(path: Path) -> None:
    bulk = Call("square", Operation.EVALUATE, (np.ones((3, 2)) * [[1.0], [2.0], [3.0]],), rows=3)
    error = ModelFailed("diverged")
    error.row = 1
    with farm(path, replace(SQUARE, max_batch=8)) as running, pytest.raises(ModelFailed):
        await running.asked(bulk, error)
    (entry,) = recorded(path)
    assert (entry.status, entry.inputs[0].tolist()) == (Status.FAILED, [2.0, 2.0])


async def test_what_is_no_evaluation_is_not_kept(path: Path) -> None:
    with farm(path) as running:
        await running.asked(at(1.0, 1.0, operation=Operation.COST))
        await running.asked(at(1.0, 1.0, operation=Operation.STREAM))
        with pytest.raises(Cancelled):
            await running.asked(at(1.0, 1.0), Cancelled("no"))
    with farm(path, replace(SQUARE, repeatable=False)) as running:
        await running.asked(at(1.0, 1.0))
    assert recorded(path) == []


async def test_nothing_is_reused_while_workers_have_different_versions(path: Path) -> None:
    with farm(path) as running:
        await running.asked(at(1.0, 2.0))
        running.worker.join(W2, (replace(SQUARE, version="2"),))
        await running.asked(at(1.0, 2.0))
        assert running.ran == 2
        assert "square: its workers have the versions '1' and '2'" in running.events()[-1]
        running.dispatcher.worker_left(W2, "gone")
        assert (await running.asked(at(1.0, 2.0))).reused


async def test_an_answer_is_kept_under_the_version_of_its_worker(path: Path) -> None:
    with farm(path, replace(SQUARE, version="old")) as running:
        asked = asyncio.create_task(running.dispatcher.submit(at(1.0, 2.0)))
        worker, task_id, _ = await running.worker.next()
        running.worker.join(W2, (replace(SQUARE, version="new"),))
        running.dispatcher.finished(worker, [(task_id, Result((np.array([5.0, 5.0]),)))])
        running.dispatcher.worker_left(W1, "gone")
        await asked
        assert (await running.asked(at(1.0, 2.0))).outputs[0].tolist() == [1.0, 4.0]
    assert [entry.version for entry in recorded(path)] == ["old", "new"]


@pytest.mark.parametrize(
    ("info", "text"),
    [
        (replace(SQUARE, version=""), 'no answer is reused. Set `version = "1"` in the model'),
        (replace(SQUARE, version="file:ab"), "its version is file:ab, derived from its file"),
        (replace(SQUARE, repeatable=False), "it is not repeatable: its calls are neither recorded"),
    ],
)
async def test_the_farm_says_why_and_how_a_model_is_reused(
    path: Path, info: ModelInfo, text: str
) -> None:
    with farm(path, info) as running:
        (event,) = running.events()
        assert text in event
        status = running.dispatcher.snapshot
        running.worker.join(W2, (info,))
        assert len(running.events()) == 1, "it says so once"
        assert status()["models"] == ["square"]
        reused = info.repeatable and info.version != ""
        assert (await running.asked(at(1.0, 1.0))).reused is False
        assert (await running.asked(at(1.0, 1.0))).reused is reused
        assert running.recorder.status()["models"]["square"]["reused"] is reused


async def test_a_full_disk_costs_no_answer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with farm(path) as running:
        await running.asked(at(1.0, 1.0))
        full = OSError(errno.ENOSPC, "No space left on device")
        with monkeypatch.context() as patched:
            patched.setattr("farm.storage.journal.os.pwrite", raising(full))
            await running.asked(at(2.0, 2.0))
        (event,) = running.events()
        assert "a.record: nothing more is recorded: the disk is full" in event
        await running.asked(at(3.0, 3.0))
        assert (await running.asked(at(1.0, 1.0))).reused
        assert len(running.events()) == 1
        assert running.recorder.status()["trouble"] == "the disk is full"
    assert len(recorded(path)) == 1


async def test_a_mistake_in_the_record_costs_no_answer(path: Path) -> None:
    with farm(path) as running:
        odd = Result((np.array([object()], dtype=object),))
        assert (await running.asked(at(1.0, 1.0), odd)).outputs == odd.outputs
        assert "nothing more is recorded: an evaluation cannot be encoded" in running.events()[-1]


async def test_damage_is_reported_when_the_farm_starts(path: Path) -> None:
    with farm(path) as running:
        await running.asked(at(1.0, 1.0))
        await running.asked(at(2.0, 2.0))
    flip_bit(path, 20)
    with farm(path) as running:
        await until(lambda: running.events())
        assert "damaged from byte 14 to byte" in running.events()[0]
        assert (await running.asked(at(1.0, 1.0))).reused
        assert running.recorder.status()["damaged"][0][0] == 14


async def test_rows_of_varying_shape_are_not_reused_together(path: Path) -> None:
    info = replace(SQUARE, outputs=(TensorInfo("y", (-1,)),), max_batch=8)
    bulk = Call("square", Operation.EVALUATE, (np.ones((2, 2)),), rows=2)
    with farm(path, info) as running:
        for _ in range(2):
            await running.asked(bulk)
        assert running.ran == 2
        single: Array = (await running.asked(at(1.0, 1.0))).outputs[0]
        assert single.tolist() == [1.0, 1.0]
        assert running.ran == 2


async def test_keys_are_kept_for_few_calls_only(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farm.record.recorder.MOST_ASKED", 2)
    with farm(path) as running:
        calls = [at(float(k), 1.0) for k in range(5)]
        waiting = [asyncio.create_task(running.dispatcher.submit(call)) for call in calls]
        while not all(task.done() for task in waiting):
            while running.worker.sent:
                worker, task_id, sent = running.worker.sent.pop()
                running.dispatcher.finished(worker, [(task_id, Result((sent.inputs[0] ** 2,)))])
            await asyncio.sleep(0)
        for k, call in enumerate(calls):
            result = await running.asked(at(*call.inputs[0]))
            assert (result.outputs[0][0], result.reused) == (k**2, True)
    assert len(recorded(path)) == 5
