"""Models on threads of this process: answers, errors, several calls at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

import farm
from farm.call import Call, Operation
from farm.errors import InvalidInput, ModelFailed, ModelNotFound
from farm.sweep.run.evaluator import FarmUse, use_of
from farm.sweep.run.threads import Threads


class Square(farm.Model):
    inputs = {"x": 2}
    outputs = {"y": 2}
    meeting: threading.Barrier | None = None

    def describe(self, config: farm.Config) -> tuple[dict[str, int], dict[str, int]]:
        return {"x": config.get("n", 2)}, {"y": config.get("n", 2)}

    def evaluate(self, inputs: farm.Inputs, config: farm.Config) -> np.ndarray:
        if self.meeting is not None:
            self.meeting.wait(10)
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


def test_answers_with_its_name_and_times(threads: Threads) -> None:
    result = threads.submit(call([2, 3])).result(10)
    assert result.outputs[0].tolist() == [4, 9]
    assert "/" in result.worker
    assert result.run_time_s > 0
    assert result.queue_time_s >= 0


def test_describes_for_a_config(threads: Threads) -> None:
    assert threads.models() == ["Square"]
    assert threads.describe("Square").inputs[0].size == 2
    assert threads.describe("Square", {"n": 5}).inputs[0].size == 5


def test_errors_are_those_of_the_farm(threads: Threads) -> None:
    with pytest.raises(ModelFailed, match="negative"):
        threads.submit(call([-1, 0])).result(10)
    with pytest.raises(InvalidInput):
        threads.submit(call([1, 2, 3])).result(10)
    with pytest.raises(ModelNotFound):
        threads.describe("Cube")


def test_several_run_at_once() -> None:
    model = Square()
    model.meeting = threading.Barrier(3)
    threads = Threads({"Square": model}, workers=3)
    futures = [threads.submit(call([1, 1])) for _ in range(3)]
    assert len({future.result(10).worker for future in futures}) == 3
    threads.close()


def test_it_reports_a_running_call_for_each_thread(threads: Threads) -> None:
    assert use_of(threads, "Square") == FarmUse(3)
    assert use_of(threads, "Cube") == FarmUse(0)


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
