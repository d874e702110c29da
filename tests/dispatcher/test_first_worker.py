"""Requests and calls that wait for a first worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

import pytest

from farm.call import NO_HINTS, Hints, ModelInfo, WorkerInfo
from farm.dispatcher import first_worker
from farm.dispatcher.first_worker import Expectation, FirstWorker
from farm.errors import FarmError, ModelNotFound, Unavailable
from farm.scheduler.state import TaskId
from tests.support.coroutines import until
from tests.support.expected import Expected

BEAM = ModelInfo("beam", (), ())
WORKER = WorkerInfo("w1", (BEAM,))
LONG_S, SHORT_S = 1e6, 0.01


class Waits:
    """A FirstWorker with its models and calls, and what became of these."""

    def __init__(self, limit_s: float, *models: ModelInfo) -> None:
        self.models = {model.name: model for model in models}
        self.open: dict[TaskId, Callable[[FarmError], None]] = {}
        self.failed: dict[TaskId, FarmError] = {}
        self.expected = Expected()
        self.first = FirstWorker(
            self.models, self.open, self.fail, expected=self.expected, limit_s=limit_s
        )

    def fail(self, task_id: TaskId, error: FarmError) -> None:
        self.open.pop(task_id)(error)

    def join(self, info: WorkerInfo = WORKER) -> None:
        self.models.update((model.name, model) for model in info.models)
        self.first.joined(info)

    def call(
        self,
        number: int,
        model: str = "beam",
        now: float | None = None,
        *,
        hints: Hints = NO_HINTS,
    ) -> None:
        task_id = TaskId(number)
        self.open[task_id] = lambda error: self.failed.update({task_id: error})
        now = time.monotonic() if now is None else now
        self.first.call_begins(task_id, model, hints, now)


async def test_models_that_are_expected_end_the_wait_too() -> None:
    waits = Waits(LONG_S)
    waiting = asyncio.ensure_future(waits.first.known())
    await asyncio.sleep(0)
    assert not waiting.done()
    waits.models["beam"] = BEAM
    waits.first.models_known()
    await waiting
    await waits.first.known()  # at once


async def test_a_request_that_is_cancelled_does_not_go() -> None:
    waits, went = Waits(LONG_S), list[int]()
    cancel = waits.first.when_known(lambda: went.append(1))
    waiting = asyncio.ensure_future(waits.first.known())
    await asyncio.sleep(0)
    assert waits.first.requests == 2
    cancel()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert waits.first.requests == 0
    waits.join()
    assert went == []


async def test_a_request_that_has_waited_too_long_goes_on_without_a_model() -> None:
    waits = Waits(SHORT_S)
    await waits.first.known()
    assert not waits.models
    error = waits.first.no_model()
    assert isinstance(error, Unavailable)
    assert str(error) == "no model is known yet: the farm waits for its first worker"
    waits.expected.reason = "job 7 is PENDING"
    assert str(waits.first.no_model()) == "no model is known yet: job 7 is PENDING"


async def test_requests_continue_in_order_and_many_in_several_iterations_of_the_loop() -> None:
    waits, went = Waits(LONG_S), list[int]()
    count = 3 * first_worker.AT_ONCE
    for number in range(count):
        waits.first.when_known(partial(went.append, number))
    assert (waits.first.requests, went) == (count, [])
    waits.join()
    assert len(went) == first_worker.AT_ONCE
    while waits.first.requests:
        before = len(went)
        await asyncio.sleep(0)
        assert len(went) - before <= first_worker.AT_ONCE
    assert went == list(range(count))


async def test_a_call_without_a_worker_fails_at_its_limit_with_the_reason() -> None:
    waits = Waits(SHORT_S, BEAM)
    waits.expected.whys["beam"] = "job 7 is PENDING (Resources)"
    waits.call(1)
    await until(lambda: bool(waits.failed))
    assert str(waits.failed[TaskId(1)]) == (
        "no worker of model 'beam' has joined within 0.01 s: job 7 is PENDING (Resources)"
    )
    assert isinstance(waits.failed[TaskId(1)], Unavailable)
    assert not waits.open


async def test_a_call_whose_model_has_a_worker_has_no_limit_and_a_patient_caller_has_none() -> None:
    waits = Waits(SHORT_S, BEAM)
    due = time.monotonic() - 1
    waits.call(1, now=due)
    waits.join()
    waits.call(2, now=due)
    waits.call(3, "plate", now=due, hints=Hints(patient=True))
    waits.call(4, "plate")
    await until(lambda: bool(waits.failed))
    assert list(waits.failed) == [4]
    assert set(waits.open) == {1, 2, 3}


async def test_the_limit_holds_again_when_all_workers_have_left() -> None:
    waits = Waits(SHORT_S, BEAM)
    waits.join()
    waits.first.joined(WORKER, before=WORKER)  # it restarted
    assert waits.first.may_have("beam")
    waits.first.left(WORKER)
    assert not waits.first.may_have("beam")
    waits.expected.may_come = True
    assert waits.first.may_have("beam")
    waits.call(1)
    await until(lambda: list(waits.failed) == [1])


async def test_a_call_that_has_waited_longer_elsewhere_fails_first() -> None:
    waits = Waits(LONG_S, BEAM)
    waits.call(1)
    waits.call(2, now=time.monotonic() - LONG_S)
    await until(lambda: bool(waits.failed))
    assert list(waits.failed) == [2]
    waits.first.close()


async def test_calls_that_have_ended_are_forgotten() -> None:
    waits = Waits(LONG_S, BEAM)
    for number in range(5 * first_worker.SLACK):
        waits.call(number)
        waits.open.clear()
    assert len(waits.first._calls._heaps[BEAM.name]) <= 2 * first_worker.SLACK
    waits.first.close()
    waits = Waits(float("inf"), BEAM)
    waits.call(1)
    assert not waits.first._calls.models(), "without a limit"


async def test_nothing_waits_for_a_worker_that_is_expected_after_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(first_worker, "CHECK_S", 0.01)
    waits = Waits(3600.0, BEAM)
    expected = waits.expected
    expected.starts = {"beam": None, "plate": 3000.0, "": 90_000.0}
    expected.whys = {"beam": "beam at eight"}
    waits.call(1)
    waits.call(2, "plate")
    waits.call(3)
    await until(lambda: expected.asked.count("beam") >= 3)
    assert waits.failed == {}
    expected.starts["beam"] = 90_000.0
    await until(lambda: len(waits.failed) == 2)
    assert set(waits.open) == {2}
    assert str(waits.failed[TaskId(1)]) == (
        "no worker of model 'beam' is expected to start within 3600 s: beam at eight"
    )


async def test_no_request_waits_for_models_that_are_expected_after_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(first_worker, "CHECK_S", 0.01)
    waits, went = Waits(3600.0), list[int]()
    waits.expected.starts[""] = 90_000.0
    for number in range(3 * first_worker.AT_ONCE):
        waits.first.when_known(partial(went.append, number))
    await until(lambda: waits.first.requests == 0)
    assert went == list(range(3 * first_worker.AT_ONCE))


async def test_a_request_for_one_name_waits_until_that_is_known_or_all_are() -> None:
    waits, went = Waits(LONG_S, BEAM), list[str]()
    waits.expected.incomplete = True
    for name in ("beam", "plate", "shell"):
        known = partial(waits.models.__contains__, name)
        waits.first.when_known(partial(went.append, name), known)
    waits.first.models_known()
    assert went == ["beam"]
    waits.models["plate"] = BEAM
    waits.first.models_known()
    assert went == ["beam", "plate"]
    coroutine = asyncio.ensure_future(waits.first.known("shell"))
    await waits.first.known("plate")  # at once
    await asyncio.sleep(0)
    assert waits.first.requests == 2
    waits.expected.incomplete = False
    waits.first.models_known()
    await coroutine
    assert went == ["beam", "plate", "shell"]
    await waits.first.known("nothing")  # at once, as no more models are expected


async def test_a_request_for_a_name_goes_on_at_its_limit_with_the_reason() -> None:
    waits = Waits(SHORT_S, BEAM)
    assert isinstance(waits.first.unknown("no shell"), ModelNotFound)
    waits.expected.incomplete, waits.expected.reason = True, "job 7 is PENDING"
    await waits.first.known("shell")
    error = waits.first.unknown("no shell")
    assert (type(error), str(error)) == (Unavailable, "no shell; but job 7 is PENDING")


# Several sources of workers


NOTHING = (False, False, "", "", None)
HERE = Expected(may_come=True, starts={"beam": 90.0})
JOBS = Expected(
    incomplete=True, reason="job 7 is PENDING", whys={"beam": "job 8 waits"}, starts={"beam": 70.0}
)
LOADS = Expected(reason="it loads beam.py", whys={"beam": "beam.py is loaded"})


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ([], NOTHING),
        ([Expectation([Expectation()])], NOTHING),
        ([HERE], (False, True, "", "", 90.0)),
        ([HERE, JOBS], (True, True, "job 7 is PENDING", "job 8 waits", 70.0)),
        ([LOADS, JOBS], (True, False, "it loads beam.py", "beam.py is loaded", 70.0)),
    ],
    ids=["none", "one without sources", "one", "any may bring more", "the first reason"],
)
def test_sources_are_expected_together(sources: list[Expectation], expected: object) -> None:
    farm = Expectation(sources)
    shown = farm.incomplete, farm.may_come, farm.awaited(()), farm.why("beam")
    assert (*shown, farm.starts_in("beam")) == expected
    assert Expectation(sources, forecasts=False).starts_in("beam") is None, "a limit is set"
