"""Many points in one request: lines as points finish, a bounded number at work, taken back."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import urllib3

import farm
from farm.call import NO_HINTS, Call, Hints, ModelInfo, Result
from farm.errors import Overloaded
from farm.model import Config, Inputs, info_of
from farm.protocols.points import decode_points
from farm.scheduler.state import TaskId
from farm.server.stream import PointStream
from tests.front_door import WAIT_S, Door, front_door, until


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
        got = lines(stream(door, points))
    assert sorted(line["index"] for line in got) == list(range(500))
    done = {line["index"]: line for line in got if line["status"] == "done"}
    assert len(done) == 498
    assert all(line["outputs"] == [[i + 1.0]] for i, line in done.items())
    assert all("thread" in line["worker"] and line["run_time_s"] > 0 for line in done.values())
    failed = {line["index"]: line["error"] for line in got if line["status"] == "failed"}
    assert failed[3] == {"type": "ModelFailed", "message": "ValueError: negative"}
    assert failed[4]["type"] == "InvalidInput"


def test_no_points_give_no_lines() -> None:
    with front_door({"total": total}) as door:
        assert lines(stream(door, [])) == []


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


def at_work(door: Door) -> int:
    return int(sum(row["in_flight"] + row["queued"] for row in door.snapshot()["queues"]))


def test_lines_come_as_points_finish_and_no_more_than_allowed_are_at_work() -> None:
    gate = Gate()
    with front_door({"gate": gate}, in_flight=5) as door:
        response = stream(door, [[[i]] for i in range(20)], "gate")
        assert response.status == 200  # before any point is done
        until(lambda: at_work(door) == 5, "as many points as allowed are at work")
        gate.let(1)
        line = b""
        while not line.endswith(b"\n"):
            line += response.read1()
        assert json.loads(line)["index"] == 0
        until(lambda: at_work(door) == 5, "the next point has taken its place")
        gate.let(19)
        assert len(lines(response)) == 19


def test_a_client_that_hangs_up_takes_its_points_back() -> None:
    gate = Gate()
    with front_door({"gate": gate}) as door:
        response = stream(door, [[[i]] for i in range(100)], "gate")
        until(lambda: at_work(door) == 100, "all points wait")
        response.close()
        until(lambda: at_work(door) <= 1, "they are taken back, but for the one that runs")
        gate.let(100)
        until(lambda: at_work(door) == 0, "nothing is left")
    assert len(gate.begun) == 1


class Full:
    """A backend that turns every point away some times before it takes it."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.asked: Counter[float] = Counter()
        self.info = info_of(total, {}, name="total")

    async def submit(self, call: Call, hints: Hints = NO_HINTS) -> Result:
        x = float(call.inputs[0][0])
        self.asked[x] += 1
        if self.asked[x] <= self.times:
            raise Overloaded("full")
        return Result((np.array([x]),))

    def start_call(self, call: Call, hints: Hints, on_done: object) -> TaskId:
        raise AssertionError("no stream is asked for")

    def cancel(self, task_id: TaskId) -> None:
        raise AssertionError("no stream is asked for")

    async def describe(self, model: str, config: str = "{}") -> ModelInfo:
        return self.info

    def models(self) -> Mapping[str, ModelInfo]:
        return {"total": self.info}

    def snapshot(self) -> dict[str, Any]:
        return {}


def test_a_full_queue_is_waited_for_and_never_told() -> None:
    backend = Full(times=2)
    points = decode_points(json.dumps({"inputs": [[[i, 0]] for i in range(30)]}).encode())
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        await asyncio.get_running_loop().create_future()
        raise AssertionError("never")

    async def send(message: Any) -> None:
        sent.append(message)

    answer = PointStream(backend, points, backend.info, NO_HINTS, in_flight=10)
    asyncio.run(answer({"type": "http"}, receive, send))
    body = b"".join(message.get("body", b"") for message in sent)
    assert {json.loads(line)["status"] for line in body.splitlines()} == {"done"}
    assert set(backend.asked.values()) == {3}
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


class Words(farm.Model):
    """The words of a text, one by one; endless if it asks for that."""

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
