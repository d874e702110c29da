"""How much an evaluator runs, one that takes calls one by one, and models on threads."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import pytest

import farm
from farm.call import NO_HINTS, Call, Operation, Result
from farm.errors import FarmError, InvalidInput, ModelFailed, ModelNotFound, Overloaded
from farm.sweep.file.progress import Progress
from farm.sweep.run.evaluator import FarmUse, Outcome, Threads, line_of, report, use_of
from tests.support.coroutines import LIMIT_S
from tests.sweep.samples import Open


class Inbox:
    """Keeps the outcomes of calls by key."""

    def __init__(self) -> None:
        self.outcomes: dict[int, Outcome] = {}
        self.flushed = 0

    def put(self, key: int, outcome: Outcome) -> None:
        self.outcomes[key] = outcome

    def flush(self) -> None:
        self.flushed += 1


CALLS = [(k, Call("beam", Operation.EVALUATE, (np.full(1, k),))) for k in range(3)]


def test_calls_that_are_taken_one_by_one_are_answered_by_key_or_all_cancelled() -> None:
    farm, inbox = Open(), Inbox()
    line = line_of(farm)
    ids = line.send(CALLS, NO_HINTS, inbox)
    assert ids == farm.futures
    farm.futures[1].set_result(result := Result(()))
    assert (inbox.outcomes, inbox.flushed) == ({1: result}, 1)
    farm.futures[0].set_exception(error := ModelFailed("x"))
    assert inbox.outcomes[0] is error
    assert line.cancel(ids)
    assert isinstance(inbox.outcomes[2], CancelledError)
    assert not line.cancel(ids[:2])
    farm, inbox = Open(room=2), Inbox()
    with pytest.raises(Overloaded):
        line_of(farm).send(CALLS, NO_HINTS, inbox)
    assert [future.cancelled() for future in farm.futures] == [True, True]
    assert not inbox.outcomes


class Reporting(Open):
    """A farm that reports these rows of its queues."""

    def __init__(self, status: dict[str, Any] | FarmError) -> None:
        super().__init__()
        self._status = status

    def status(self) -> dict[str, Any]:
        if isinstance(self._status, FarmError):
            raise self._status
        return self._status


def test_the_use_of_a_farm_is_running_calls_and_slots_or_unknown() -> None:
    rows = [{"model": m, "in_flight": n} for m, n in (("beam", 3), ("beam", 1), ("plate", 9))]
    workers = [{"slots": 1}, {"slots": 16}]
    assert use_of(Reporting({"queues": rows, "workers": workers}), "beam") == FarmUse(4, 17)
    assert use_of(Reporting({"queues": []}), "beam") == FarmUse(0, 0)
    for unknown in (Open(), Reporting({}), Reporting(Overloaded("x"))):
        assert use_of(unknown, "beam") == FarmUse(None, 0)
    for odd in ("many", None, math.inf, math.nan):
        status = {"queues": [], "workers": [{"slots": odd}]}
        assert use_of(Reporting(status), "beam") == FarmUse(None, 0)
    assert use_of(Reporting({"queues": [], "workers": [{}]}), "beam") == FarmUse(0, 0)


class Listening(Open):
    """An evaluator that takes reports."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[dict[str, Any]] = []

    def report_progress(self, kind: str, name: str, **values: Any) -> None:
        self.reports.append({"kind": kind, "name": name, **values})


def test_an_evaluator_that_can_show_progress_is_told_of_it() -> None:
    progress = Progress(
        "running", "beam lhs", 10, done=3, failed=1, timeout=1, rate_per_s=0.5, run_id="r"
    )
    listening = Listening()
    report(listening, progress, "sweep-r")
    report(Open(), progress, "sweep-r")
    assert listening.reports == [
        {
            "kind": "sweep",
            "name": "beam lhs",
            "done": 3,
            "failed": 2,
            "total": 10,
            "per_s": 0.5,
            "ends_in_s": None,
            "state": "running",
            "identity": "r",
            "client": "sweep-r",
        }
    ]


class Square(farm.Model):
    inputs = {"x": 2}
    outputs = {"y": 2}
    meeting: threading.Barrier | None = None

    def describe(self, config: farm.Config) -> tuple[dict[str, int], dict[str, int]]:
        return {"x": config.get("n", 2)}, {"y": config.get("n", 2)}

    def evaluate(self, inputs: farm.Inputs, config: farm.Config) -> np.ndarray:
        if self.meeting is not None:
            self.meeting.wait(LIMIT_S)
        if inputs["x"][0] < 0:
            raise ValueError("negative")
        return np.asarray(inputs["x"] ** 2)


def call(x: list[float]) -> Call:
    return Call("Square", Operation.EVALUATE, (np.array(x),))


@pytest.fixture
def threads() -> Iterator[Threads]:
    made = Threads({"Square": Square()}, workers=3)
    yield made
    made.close()


def test_threads_answer_and_report_as_a_farm_does(threads: Threads) -> None:
    result = threads.submit(call([2, 3])).result(LIMIT_S)
    assert result.outputs[0].tolist() == [4, 9]
    assert "/" in result.worker
    assert result.run_time_s > 0
    assert result.queue_time_s >= 0
    assert threads.models() == ["Square"]
    assert threads.describe("Square").inputs[0].size == 2
    assert threads.describe("Square", {"n": 5}).inputs[0].size == 5
    with pytest.raises(ModelFailed, match="negative"):
        threads.submit(call([-1, 0])).result(LIMIT_S)
    with pytest.raises(InvalidInput):
        threads.submit(call([1, 2, 3])).result(LIMIT_S)
    with pytest.raises(ModelNotFound):
        threads.describe("Cube")
    assert use_of(threads, "Square") == FarmUse(3)
    assert use_of(threads, "Cube") == FarmUse(0)


def test_several_run_at_once() -> None:
    model = Square()
    model.meeting = threading.Barrier(3)
    threads = Threads({"Square": model}, workers=3)
    futures = [threads.submit(call([1, 1])) for _ in range(3)]
    assert len({future.result(LIMIT_S).worker for future in futures}) == 3
    threads.close()


def test_a_model_s_cost(threads: Threads) -> None:
    class Costly(Square):
        cost_h = 3.0

        def cost(self, inputs: farm.Inputs, config: farm.Config) -> float:
            return self.cost_h

    assert threads.cost_of("Square") is None
    made = Threads({"Costly": Costly()})
    cost = made.cost_of("Costly")
    assert cost is not None
    assert cost(farm.Inputs(), {}) == 3.0
    made.close()
