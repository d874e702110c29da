"""A run of rows can be split by another thread while a row takes long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from farm.call import Call, Operation, Result
from farm.errors import FarmError, ModelFailed
from farm.model import Config, Inputs, Model, info_of
from farm.worker.row_run import RowRun

LIMIT_S = 30.0


class Steps(Model):
    """Waits in row `at` until it may go on; a row of -1 fails, one of -2 has another shape."""

    inputs = {"x": 1}
    outputs = {"y": (-1,)}

    def __init__(self, at: float) -> None:
        self.at = at
        self.waits, self.go = threading.Event(), threading.Event()
        self.seen: list[float] = []

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        (x,) = inputs["x"]
        self.seen.append(float(x))
        if x == self.at:
            self.waits.set()
            assert self.go.wait(LIMIT_S)
        if x == -1:
            raise ValueError("minus one")
        return np.full(2 if x == -2 else 1, 2 * x)


def row_run(ends_early: Callable[[], bool] = lambda: False) -> RowRun:
    def failure(error: BaseException, call: Call) -> FarmError:
        return ModelFailed(str(error))

    return RowRun(lambda row: None, ends_early, failure)


class Running:
    """A run in a thread of its own, which waits in one row."""

    def __init__(self, values: list[float], at: float) -> None:
        self.model = Steps(at)
        self.run = row_run()
        self.found: list[Result] = []
        call = Call("m", Operation.EVALUATE, (np.array(values)[:, None],), rows=len(values))
        info = info_of(self.model, {}, name="m")
        self.thread = threading.Thread(
            target=lambda: self.found.append(self.run.evaluate(self.model, info, call))
        )
        self.thread.start()
        assert self.model.waits.wait(LIMIT_S)

    def end(self) -> Result:
        self.model.go.set()
        self.thread.join(LIMIT_S)
        (result,) = self.found
        return result


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farm.worker.row_run.RUN_S", 1e9)


@pytest.mark.parametrize("row", [0, 2, 3])
def test_the_rows_before_are_answered_and_none_begins_behind(row: int) -> None:
    running = Running([1.0, 2.0, 3.0, 4.0], at=row + 1.0)
    first = running.run.split()
    assert first is not None
    assert first.more
    assert len(first.row_times_s) == row
    if row:
        assert first.outputs[0].tolist() == [[2.0 * n] for n in range(1, row + 1)]
    assert running.run.split() is None, "it is split once"
    last = running.end()
    assert not last.more
    assert last.outputs[0].tolist() == [[2.0 * n] for n in range(1, row + 2)]
    assert last.row_times_s[:row] == first.row_times_s
    assert running.model.seen == [float(n) for n in range(1, row + 2)]


def test_the_first_answer_does_not_change_when_the_row_ends() -> None:
    running = Running([1.0, 2.0, 3.0], at=2.0)
    first = running.run.split()
    running.end()
    assert first is not None
    assert first.outputs[0].tolist() == [[2.0]]


def test_the_row_may_fail() -> None:
    running = Running([1.0, -1.0, 3.0], at=-1.0)
    assert running.run.split() is not None
    last = running.end()
    assert isinstance(last.failed, ModelFailed)
    assert last.rows_done(3) == 1


def test_a_row_of_another_shape_is_not_in_the_answer() -> None:
    running = Running([1.0, -2.0, 3.0], at=-2.0)
    assert running.run.split() is not None
    last = running.end()
    assert last.failed is None
    assert last.rows_done(3) == 1


def test_before_and_after_a_run_there_is_nothing_to_split() -> None:
    assert row_run().split() is None
    running = Running([1.0, 2.0], at=2.0)
    assert running.end().rows_done(2) == 2
    assert running.run.split() is None
