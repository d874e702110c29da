"""Many points in one request: lines as points finish, a bounded number in flight, cancelling."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import urllib3

import farm
from farm.call import NO_HINTS, Hints, Operation, Result
from farm.dispatcher.partition import Rows
from farm.errors import InvalidInput, ModelFailed, Overloaded
from farm.model import Config, Inputs, info_of
from farm.protocols.points import endpoint
from farm.protocols.points import endpoint_stream as module
from farm.protocols.points.codec import Points, decode_points
from farm.protocols.points.endpoint_stream import (
    LINES_AT_ONCE,
    POINTS_A_RUN,
    PointRows,
    PointStream,
)
from farm.scheduler.state import TaskId
from tests.protocols.models import open_calls
from tests.support.front_door import WAIT_S, Door, front_door, until


@farm.model(inputs={"x": 2}, outputs={"y": 1})
def total(x: Any) -> Any:
    if x[0] < 0:
        raise ValueError("negative")
    return x.sum()


def stream(
    door: Door, points: list[Any], model: str = "total", **more: Any
) -> urllib3.BaseHTTPResponse:
    return door.connections.request(
        "POST",
        f"{door.url}/farm/models/{model}/evaluate",
        json={"inputs": points} | more,
        preload_content=False,
        timeout=WAIT_S,
    )


def lines(response: urllib3.BaseHTTPResponse) -> list[dict[str, Any]]:
    assert response.status == 200
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.read().splitlines()]


def test_every_point_has_one_line_and_bad_ones_fail_alone() -> None:
    points = [[[float(i), 1.0]] for i in range(500)]
    points[3] = [[-1.0, 0.0]]
    points[4] = [[1.0]]
    with front_door({"total": total}, workers=2) as door:
        assert lines(stream(door, [])) == []
        got = lines(stream(door, points))
    assert sorted(line["index"] for line in got) == list(range(500))
    done = {line["index"]: line for line in got if line["status"] == "done"}
    assert len(done) == 498
    assert all(line["outputs"] == [[i + 1.0]] for i, line in done.items())
    assert all("thread" in line["worker"] and line["run_time_s"] > 0 for line in done.values())
    failed = {line["index"]: line["error"] for line in got if line["status"] == "failed"}
    assert failed[3] == {"type": "ModelFailed", "message": "ValueError: negative"}
    assert failed[4]["type"] == "InvalidInput"


def test_points_and_outputs_by_name_and_a_derivative() -> None:
    class Square(farm.Model):
        inputs, outputs = {"x": 2}, {"y": 2}

        def evaluate(self, inputs: Inputs, config: Config) -> Any:
            return config.get("by", 1) * inputs["x"] ** 2

        def gradient(self, out: int, wrt: int, inputs: Inputs, sens: Any, config: Config) -> Any:
            return 2 * inputs["x"] * sens

    with front_door({"square": Square()}) as door:
        (named,) = lines(stream(door, [{"x": [1, 3]}], "square", config={"by": 10}))
        assert named["outputs"] == {"y": [10.0, 90.0]}
        asked = {"operation": "gradient", "outWrt": 0, "inWrt": 0, "sens": [1, 2]}
        (gradient,) = lines(stream(door, [[[1, 3]]], "square", **asked))
        assert gradient["outputs"] == [[2.0, 12.0]]
        asked["operation"] = "value_and_gradient"
        points = [[[1, 3]], [[1]], [[2, 3]]]
        asked["sens"] = [[1, 2], [1, 2], [1]]
        right, wrong, short = sorted(
            lines(stream(door, points, "square", **asked)), key=lambda line: line["index"]
        )
        assert (right["outputs"], right["gradient"]) == ([[1.0, 9.0]], [2.0, 12.0])
        assert wrong["error"]["type"] == short["error"]["type"] == "InvalidInput"
        assert short["error"]["message"].startswith("sens has length 1, expected 2 numbers")
        lost = lines(stream(door, points[:1], "square", operation="value_and_gradient", outWrt=0))
        assert lost[0]["error"]["message"].startswith("inWrt is missing; expected a whole number")


def test_a_pair_that_one_half_fails_is_one_line() -> None:
    class Flat(farm.Model):
        inputs, outputs = {"x": 1}, {"y": 1}

        def evaluate(self, inputs: Inputs, config: Config) -> Any:
            return inputs["x"]

        def gradient(self, out: int, wrt: int, inputs: Inputs, sens: Any, config: Config) -> Any:
            if inputs["x"][0] % 2:
                raise ArithmeticError("odd")
            return sens

    with front_door({"flat": Flat()}, workers=2) as door:
        asked = {"operation": "value_and_gradient", "outWrt": 0, "inWrt": 0, "sens": [1]}
        got = lines(stream(door, [[[i]] for i in range(300)], "flat", **asked))
        assert sorted(line["index"] for line in got) == list(range(300))
        for line in got:
            if line["index"] % 2:
                assert line["error"] == {"type": "ModelFailed", "message": "ArithmeticError: odd"}
            else:
                assert (line["outputs"], line["gradient"]) == ([[line["index"]]], [1.0])
        (row,) = json.loads(door.ask("GET", "/farm/models").data)
        assert row["operations"] == ["evaluate", "gradient"]


class Gate(farm.Model):
    """Lets as many calls end as `let` was called."""

    inputs, outputs = {"x": 1}, {"y": 1}

    def __init__(self) -> None:
        self.begun: list[float] = []
        self._passes = threading.Semaphore(0)

    def let(self, count: int) -> None:
        self._passes.release(count)

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        self.begun.append(float(inputs["x"][0]))
        assert self._passes.acquire(timeout=WAIT_S)
        return inputs["x"]


def test_lines_come_as_points_finish_and_no_more_than_allowed_are_at_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate()
    monkeypatch.setattr(endpoint, "IN_FLIGHT", 5)
    with front_door({"gate": gate}) as door:
        response = stream(door, [[[i]] for i in range(20)], "gate")
        assert response.status == 200  # before any point is done
        until(lambda: gate.begun == [0.0], "the first point is at work")
        gate.let(1)
        line = b""
        while not line.endswith(b"\n"):
            line += response.read1()
        assert json.loads(line)["index"] == 0
        until(lambda: len(gate.begun) == 2, "the next point has taken its place")
        gate.let(19)
        assert len(lines(response)) == 19


def test_a_client_that_hangs_up_takes_its_points_back() -> None:
    gate = Gate()
    with front_door({"gate": gate}) as door:
        response = stream(door, [[[i]] for i in range(100)], "gate")
        until(lambda: open_calls(door) == 100, "all points wait")
        response.close()
        until(lambda: open_calls(door) <= 1, "they are taken back, but for the one that runs")
        gate.let(100)
        until(lambda: open_calls(door) == 0, "nothing is left")
    assert len(gate.begun) == 1


INFO = info_of(total, {}, name="total")


def some_points(count: int, wrong: int = -1) -> Points:
    """Return points of the model `total`; the point with number `wrong` is invalid."""
    inputs: list[Any] = [[[i, 0]] for i in range(count)]
    if wrong >= 0:
        inputs[wrong] = [[1]]
    return decode_points(json.dumps({"inputs": inputs}).encode())


class Full:
    """Refuses points a few times before it accepts and answers all of them."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.asked = 0
        self.cancelled: list[TaskId] = []
        self.feeder = self

    def start_rows(self, rows: Rows, model: str, operation: Operation, hints: Hints) -> TaskId:
        self.asked += 1
        if self.asked <= self.times:
            raise Overloaded("full")
        for row in range(len(rows)):
            rows.done(row, row + 1, Result((np.array([row]),)))
        rows.finished()
        return TaskId(-7)

    def more(self, rows: TaskId) -> None:
        assert rows == -7

    def cancel(self, task_id: TaskId) -> None:
        self.cancelled.append(task_id)


async def never() -> Any:
    await asyncio.get_running_loop().create_future()


def test_a_full_queue_is_waited_for_and_never_told() -> None:
    backend: Any = Full(times=2)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    answer = PointStream(backend, some_points(30), INFO, NO_HINTS, in_flight=10)
    asyncio.run(answer({"type": "http"}, never, send))
    body = b"".join(message.get("body", b"") for message in sent)
    assert {json.loads(line)["status"] for line in body.splitlines()} == {"done"}
    assert backend.asked == 3
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


def test_lines_are_sent_some_at_a_time() -> None:
    sizes: list[int] = []

    async def send(message: Any) -> None:
        sizes.append(message.get("body", b"").count(b"\n"))

    points = some_points(5 * LINES_AT_ONCE)
    backend: Any = Full(times=0)
    answer = PointStream(backend, points, INFO, NO_HINTS, in_flight=10)
    asyncio.run(answer({"type": "http"}, never, send))
    assert max(sizes) == LINES_AT_ONCE
    assert sum(sizes) == 5 * LINES_AT_ONCE


def test_points_that_are_alike_make_a_run_of_rows() -> None:
    rows = PointRows(some_points(1000, wrong=10), INFO, in_flight=4096)
    assert len(rows) == 1000
    run = rows.part(2, 5)
    assert (run.rows, run.inputs[0].tolist()) == (5, [[i, 0] for i in range(2, 7)])
    assert rows.part(2, 1).rows is None
    assert rows.part(8, 100).rows == 2, "it ends before one that is none"
    with pytest.raises(InvalidInput, match="length 1"):
        rows.part(10, 100)
    assert rows.part(11, 10_000).rows == POINTS_A_RUN
    batched = PointRows(some_points(9), replace(INFO, max_batch=4), in_flight=9)
    assert batched.part(0, 4).rows is None, "calls share batches, and fail alone"


def test_each_row_of_a_run_has_its_line() -> None:
    rows = PointRows(some_points(9), INFO, in_flight=9)
    rows.done(2, 5, Result((np.array([[1.0], [2.0], [3.0]]),), 6.0, worker="w"))
    rows.failed(5, 7, ModelFailed("diverged"))
    taken = rows.take(99)
    assert [index for index, _ in taken] == [2, 3, 4, 5, 6]
    results = [outcome for _, outcome in taken if isinstance(outcome, Result)]
    assert [result.outputs[0].tolist() for result in results] == [[1.0], [2.0], [3.0]]
    assert [(result.run_time_s, result.worker) for result in results] == [(2.0, "w")] * 3


def test_outcomes_that_nobody_reads_leave_no_room_for_others() -> None:
    rows = PointRows(some_points(9), INFO, in_flight=3)
    assert rows.most_open() == 3
    rows.done(0, 1, Result((np.ones(1),)))
    rows.done(1, 2, Result((np.ones(1),)))
    assert rows.most_open() == 1
    assert len(rows.take(1)) == 1
    assert rows.most_open() == 2


def test_a_stream_that_nobody_reads_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WAITING_BYTES", 5000)
    rows = PointRows(some_points(9), INFO, in_flight=3)
    answer = Result((np.ones(100),), more=True)
    rows.done(0, 1, answer)
    rows.done(0, 1, answer)
    with pytest.raises(Overloaded, match="faster than the client reads"):
        rows.done(0, 1, answer)
    rows.take(9)
    rows.done(0, 1, answer)


class Words(farm.Model):
    """Streams the words of a text one by one; endless if the text asks for that."""

    inputs = {"text": farm.TensorInfo("text", (1,), "bytes")}
    outputs = {"word": farm.TensorInfo("word", (1,), "bytes")}

    def __init__(self) -> None:
        self.ended = threading.Event()

    def stream(self, inputs: Inputs, config: Config) -> Iterator[Any]:
        try:
            text = inputs["text"][0]
            while True:
                for word in text.split():
                    if word == b"raise":
                        raise ValueError("raised")
                    yield [word]
                if b"endless" not in text:
                    return
        finally:
            self.ended.set()


def test_a_stream_has_a_line_for_each_answer_and_one_at_its_end() -> None:
    points: list[Any] = [[["a b"]], [["ä ?"]], [[""]], [["one raise"]], [[1]]]
    with front_door({"words": Words()}) as door:
        got = lines(stream(door, points, "words", operation="stream"))
        by_point = [[line for line in got if line["index"] == i] for i in range(5)]
        said = [[(line["status"], line.get("outputs")) for line in of] for of in by_point]
        end: tuple[str, list[Any]] = ("done", [])
        assert said[:3] == [
            [("answer", [["a"]]), ("answer", [["b"]]), end],
            [("answer", [["ä"]]), ("answer", [["?"]]), end],
            [end],
        ]
        assert said[3] == [("answer", [["one"]]), ("failed", None)]
        assert by_point[3][1]["error"]["type"] == "ModelFailed"
        assert by_point[4][0]["error"]["message"] == "inputs[4][0] is a list; expected texts"
        evaluated = lines(stream(door, [[["a"]]], "words"))
        assert evaluated[0]["error"]["type"] == "UnsupportedFeature"


def test_a_client_that_hangs_up_ends_its_streams() -> None:
    words = Words()
    with front_door({"words": words}) as door:
        response = stream(door, [[["endless"]]], "words", operation="stream")
        assert json.loads(response.readline())["outputs"] == [["endless"]]
        response.close()
        assert words.ended.wait(WAIT_S)
        until(
            lambda: not any(row["in_flight"] for row in door.snapshot()["workers"]), "an idle farm"
        )
