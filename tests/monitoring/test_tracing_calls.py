"""Spans of calls: the waits and runs of a task, and their parents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import farm
from farm.call import NO_HINTS, Call, Hints, Operation
from farm.errors import DeadlineExceeded, FarmError, ModelFailed, WorkerLost
from farm.model import Config, Inputs
from farm.monitoring.tracing import steps_of
from farm.scheduler.state import Task
from tests.scheduler.recorder import Recorder, copied, sent
from tests.support.front_door import Door, front_door
from tests.support.span_collector import Received, SpanCollector, span_collector, tracing_to

Told = list[tuple[str, float, float, str]]


class Root(farm.Model):
    inputs = {"x": 1}
    outputs = {"y": 1}

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        if inputs["x"] < 0:
            raise ValueError("negative")
        return inputs["x"] ** 0.5


class Batched(Root):
    max_batch = 2

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        return inputs["x"] ** 0.5


@pytest.fixture
def collector() -> Iterator[SpanCollector]:
    with span_collector() as running:
        yield running


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def told(recorder: Recorder, task: Task, error: FarmError | None = None) -> Told:
    """The steps of a task that ends now: name, begin and end since its submission, worker."""
    zero = task.submitted_at
    return [
        (
            step.name,
            step.began - zero,
            step.ended - zero,
            "" if step.attempt is None else step.attempt.worker.id,
        )
        for step in steps_of(task, error, recorder.now)
    ]


def test_each_wait_and_each_run_is_a_step(recorder: Recorder) -> None:
    recorder.join("w1")
    recorder.resize("w1", 0)
    task = recorder.submit()
    recorder.after(3.0).resize("w1", 1)
    recorder.expect(sent("w1", task))
    recorder.after(4.0).leave("w1", "signal 9")
    recorder.expect()
    recorder.after(1.0).join("w2")
    recorder.expect(sent("w2", task))
    found = recorder.task(task)
    recorder.after(2.0).finish("w2", task)
    assert told(recorder, found) == [
        ("queue", 0, 3, ""),
        ("run", 3, 7, "w1"),
        ("queue", 7, 8, ""),
        ("run", 8, 10, "w2"),
    ]


def test_a_worker_that_returns_a_task_did_not_run_it(recorder: Recorder) -> None:
    recorder.join("w1")
    task = recorder.submit()
    recorder.expect(sent("w1", task))
    recorder.after(1.0).hand_back("w1", task)
    recorder.expect(sent("w1", task))
    found = recorder.task(task)
    recorder.after(2.0).finish("w1", task)
    assert told(recorder, found) == [("queue", 0, 1, ""), ("run", 1, 3, "w1")]


def test_the_copy_of_a_slow_call_runs_beside_it(recorder: Recorder) -> None:
    task = copied(recorder)
    found = recorder.task(task)
    recorder.finish("w2", task)
    assert told(recorder, found) == [
        ("queue", 0, 0, ""),
        ("run", 0, 4, "w1"),
        ("run", 3, 4, "w2"),
    ]


def test_a_call_that_waits_until_its_deadline_has_no_run(recorder: Recorder) -> None:
    recorder.join("w1")
    recorder.resize("w1", 0)
    found = recorder.task(recorder.submit(deadline=5.0))
    recorder.now = 5.0
    assert told(recorder, found, DeadlineExceeded("late")) == [("queue", 0, 5, "")]


def test_a_call_that_waits_again_until_its_deadline_ends_with_that_wait(
    recorder: Recorder,
) -> None:
    recorder.join("w1")
    task = recorder.submit(deadline=5.0)
    recorder.expect(sent("w1", task))
    found = recorder.task(task)
    recorder.after(2.0).leave("w1", "signal 9")
    recorder.expect()
    recorder.now = 5.0
    assert told(recorder, found, DeadlineExceeded("late")) == [
        ("queue", 0, 0, ""),
        ("run", 0, 2, "w1"),
        ("queue", 2, 5, ""),
    ]


def test_a_call_that_is_lost_for_good_ends_with_its_last_run() -> None:
    recorder = Recorder(retries=0)
    recorder.join("w1")
    task = recorder.submit()
    recorder.expect(sent("w1", task))
    found = recorder.task(task)
    recorder.after(2.0).leave("w1", "signal 9")
    recorder.now += 0.5  # the answer is a little later
    assert told(recorder, found, WorkerLost("lost")) == [
        ("queue", 0, 0, ""),
        ("run", 0, 2, "w1"),
    ]


def submit(door: Door, model: str, x: list[float], *, hints: Hints = NO_HINTS) -> None:
    inputs = np.array(x).reshape(-1, 1)
    call = Call(model, Operation.EVALUATE, (inputs,), rows=len(x))
    door.wait(door.dispatcher.submit(call, hints))


def of_traces(spans: list[Received]) -> list[list[Received]]:
    """The spans by trace, the whole call first, in the order in which the calls ended."""
    traces: dict[str, list[Received]] = {}
    for span in spans:
        traces.setdefault(span.trace, []).insert(0, span)
    return list(traces.values())


def test_a_call_without_a_request_has_a_span_of_its_own(collector: SpanCollector) -> None:
    hints = Hints("anna", call_id="a-1")
    with tracing_to(collector) as tracing, front_door({"root": Root()}, tracing=tracing) as door:
        submit(door, "root", [4.0], hints=hints)
        with pytest.raises(ModelFailed):
            submit(door, "root", [-4.0], hints=hints)
    done, failed = of_traces(collector.spans)
    for whole, run, queue in (done, failed):
        assert (whole.name, whole.kind, whole.parent) == ("evaluate root", "SERVER", "")
        assert (run.name, queue.name) == ("run", "queue")
        assert run.parent == queue.parent == whole.id
        assert whole.attributes["farm.client"] == "anna"
        assert whole.attributes["farm.call.id"] == "a-1"
    assert [span.status for span in done] == ["", "", ""]
    assert [span.status for span in failed] == ["ERROR", "ERROR", ""]
    assert failed[0].text == failed[1].text == "ValueError: negative"
    assert [len(span.events) for span in failed] == [0, 1, 0]


def test_each_part_of_a_long_request_has_its_run(collector: SpanCollector) -> None:
    tensor = {"name": "x", "shape": [4, 1], "datatype": "FP64", "data": [1, 4, 9, 16]}
    models = {"batched": Batched()}
    with tracing_to(collector) as tracing, front_door(models, tracing=tracing) as door:
        path = "/v2/models/batched/infer"
        assert door.ask("POST", path, {"inputs": [tensor]}).status == 200
    (spans,) = of_traces(collector.spans)
    request, *inside = spans
    assert request.name == f"POST {path}"
    assert {span.parent for span in inside} == {request.id}
    runs = [span for span in inside if span.name == "run"]
    assert [run.attributes["farm.rows"] for run in runs] == [2, 2]
    assert [run.attributes["farm.batch_rows"] for run in runs] == [2, 2]
