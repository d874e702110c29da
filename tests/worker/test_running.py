"""Which calls a thread runs, as far as they have ids."""

from __future__ import annotations

import logging
import threading
from typing import Any

import numpy as np
import pytest

from farm.call import Call, Operation, Origin, Result
from farm.model import Config, Inputs, Model
from farm.worker import running
from farm.worker.runner import Runner
from farm.worker.running import CALLS_NAMED, CallFilter, fields, now_running


def call(number: int, *, named: bool = True, model: str = "watched", x: float = 1.0) -> Call:
    origin = Origin(f"id-{number}", "anna" if number % 2 else "") if named else None
    return Call(model, Operation.EVALUATE, (np.array([x]),), origin=origin)


class Watched(Model):
    inputs = {"x": 1}
    outputs = {"y": 1}

    def __init__(self, max_batch: int = 1) -> None:
        self.max_batch = max_batch
        self.seen: list[str] = []

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        self.seen.append(fields().get("call", ""))
        if (inputs["x"] < 0).any():
            raise ValueError("negative")
        return inputs["x"]

    def stream(self, inputs: Inputs, config: Config) -> Any:
        for _ in range(3):
            yield self.evaluate(inputs, config)


@pytest.fixture(autouse=True)
def _nothing_runs_afterwards() -> Any:
    yield
    now_running(())


def test_each_call_has_its_id_while_it_runs() -> None:
    model = Watched()
    calls = [call(1), call(2), call(3, named=False), call(4, x=-1.0), call(5)]
    outcomes = Runner({"watched": model}).execute(calls)
    assert fields() == {}
    assert model.seen == ["id-1", "id-2", "", "id-4", "id-5"]
    assert [isinstance(each, Result) for each in outcomes] == [True, True, True, False, True]


def test_calls_without_ids_are_not_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def noted(calls: object) -> None:
        raise AssertionError("this costs time")

    monkeypatch.setattr("farm.worker.runner.now_running", noted)
    Runner({"watched": Watched()}).execute([call(1, named=False)])


def test_a_batch_has_the_ids_of_its_calls() -> None:
    model = Watched(max_batch=8)
    Runner({"watched": model}).execute([call(1), call(2, named=False), call(3)])
    assert model.seen == ["id-1, id-3"]
    assert fields() == {}


def test_a_stream_that_ends_early_leaves_no_id() -> None:
    model = Watched()
    asked = Call("watched", Operation.STREAM, (np.array([1.0]),), origin=Origin("id-9"))
    answers = iter(Runner({"watched": model}).run([asked]))
    next(answers)
    assert fields()["call"] == "id-9"
    answers.close()  # type: ignore[attr-defined]  # a generator
    assert fields() == {}


def test_of_a_large_batch_a_few_are_named() -> None:
    now_running([call(number) for number in range(100)])
    named = fields()["call"].split(", ")
    assert named[:2] == ["id-0", "id-1"]
    assert named[CALLS_NAMED:] == [f"and {100 - CALLS_NAMED} more"]
    assert (fields()["client"], fields()["model"]) == ("anna", "watched")


def test_threads_have_their_own() -> None:
    now_running([call(1)])
    seen: list[dict[str, str]] = []
    thread = threading.Thread(target=lambda: seen.append(fields()))
    thread.start()
    thread.join()
    assert seen == [{}]


def test_the_worker_is_part_of_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_process", {})
    running.name_worker("node1/7-a")
    assert running.context() == {"worker": "node1/7-a"}


@pytest.mark.parametrize(("calls", "shown"), [([], "x"), ([call(1)], " [id-1]x")])
def test_records_name_the_call(calls: list[Call], shown: str) -> None:
    now_running(calls)
    record = logging.makeLogRecord({"msg": "x"})
    assert CallFilter().filter(record)
    assert logging.Formatter("%(of_call)s%(message)s").format(record) == shown
