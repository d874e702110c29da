"""The UM-Bridge door over real connections: answers, refusals, headers, clients that leave."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import urllib3

import farm
from farm.bodies.unpacking import Extra
from farm.call import Call, Hints, ModelInfo, Operation, Result
from farm.encoding.json_numbers import NonFinite
from farm.errors import FarmError, ModelFailed, Overloaded
from farm.http1.request import JSON, Request
from farm.model import Config, Inputs, info_of
from farm.protocols.umbridge.endpoint import PATHS, UmBridgeEndpoint
from farm.scheduler.state import TaskId
from farm.settings import Settings
from tests.protocols.models import Gate, open_calls, posted
from tests.support.front_door import Door, front_door, read_answer, until


@farm.model(inputs={"x": 2}, outputs={"y": 1, "z": (2, 2)})
def forward(x: Any, config: Config) -> Any:
    return [x.sum(), np.full((2, 2), config.get("fill", x[0]))]


class Sized(farm.Model):
    """Its config determines its sizes."""

    def describe(self, config: Config) -> tuple[Any, Any]:
        n = config.get("n", 1)
        return {"x": n}, {"y": (n, n)}

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        if config.get("fail"):
            raise ValueError("no mesh \udcff")
        return np.outer(inputs["x"], inputs["x"])


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with front_door({"forward": forward, "sized": Sized()}) as opened:
        yield opened


def error(response: urllib3.BaseHTTPResponse) -> tuple[int, str, str]:
    assert response.headers["content-type"] == "application/json"
    data = response.json()
    assert list(data) == ["error"]
    assert list(data["error"]) == ["type", "message"]
    return response.status, data["error"]["type"], data["error"]["message"]


FORWARD = {"name": "forward", "input": [[1.0, 2.0]]}


def test_every_question_is_answered(door: Door) -> None:
    info = door.ask("GET", "/Info").data
    assert info == b'{"protocolVersion":1.0,"models":["forward","sized"]}'
    support = {"Evaluate": True, "Gradient": False, "ApplyJacobian": False, "ApplyHessian": False}
    assert door.ask("POST", "/ModelInfo", {"name": "forward"}).json() == {"support": support}
    asked = {"name": "sized", "config": {"n": 3}}
    assert door.ask("POST", "/InputSizes", asked).json() == {"inputSizes": [3]}
    assert door.ask("POST", "/OutputSizes", asked).json() == {"outputSizes": [9]}


def test_evaluate_is_answered_with_times_and_worker_in_headers(door: Door) -> None:
    response = door.ask("POST", "/Evaluate", FORWARD | {"config": {"fill": math.inf}})
    assert response.status == 200
    assert response.data == b'{"output":[[3.0],[Infinity,Infinity,Infinity,Infinity]]}'
    assert response.headers["content-type"] == "application/json"
    assert float(response.headers["Farm-Run-Time"]) > 0
    assert float(response.headers["Farm-Queue-Time"]) >= 0
    assert "thread" in response.headers["Farm-Worker"]


def test_mistakes_are_told_in_the_protocols_form(door: Door) -> None:
    assert error(door.ask("POST", "/Evaluate", {"name": "nope"}))[:2] == (400, "ModelNotFound")
    assert error(door.ask("POST", "/Gradient", {"name": "forward"}))[1] == "UnsupportedFeature"
    assert error(door.ask("POST", "/Evaluate", FORWARD | {"input": [[1]]})) == (
        400,
        "InvalidInput",
        "input 0 ('x') has length 1, model 'forward' expects 2",
    )
    status, kind, message = error(door.ask("POST", "/Evaluate", b"{"))
    assert (status, kind) == (400, "InvalidInput")
    assert message.startswith("the body is not JSON")
    refused = door.ask("POST", "/Evaluate", FORWARD, {"Farm-Priority": "urgent"})
    assert error(refused)[:2] == (400, "InvalidInput")
    failing = {"name": "sized", "input": [[1]], "config": {"fail": True}}
    status, kind, message = error(door.ask("POST", "/Evaluate", failing))
    assert (status, kind, message) == (500, "ModelFailed", "ValueError: no mesh ?")


@pytest.mark.parametrize("path", sorted(PATHS))
def test_the_method_belongs_to_the_path(door: Door, path: str) -> None:
    wrong = "POST" if path == "/Info" or path.endswith("ShMem") else "GET"
    response = door.ask(wrong, path)
    if path.endswith("ShMem"):
        assert error(response)[:2] == (400, "UnsupportedFeature")
        return
    assert error(response)[:2] == (405, "MethodNotAllowed")
    assert response.headers["allow"] == ("GET, HEAD" if path == "/Info" else "POST")
    head = door.ask("HEAD", path)
    assert (head.status, head.data) == (200 if path == "/Info" else 405, b"")


def test_non_finite_numbers_follow_the_settings() -> None:
    body = json.dumps(FORWARD | {"config": {"fill": math.nan}}).encode()
    with front_door({"forward": forward}, settings=Settings(port=0, non_finite="null")) as door:
        assert door.ask("POST", "/Evaluate", body).json()["output"][1] == [None] * 4
    with front_door({"forward": forward}, settings=Settings(port=0, non_finite="error")) as door:
        told = error(door.ask("POST", "/Evaluate", body))
    assert told == (500, "InvalidOutput", "output[1][0] is nan; expected a finite number")


GATE = b'{"name": "gate", "input": [[1]]}'


def test_a_client_that_hangs_up_takes_its_queued_call_along(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate = Gate()
    with front_door({"gate": gate}) as door:
        running = posted(door, "/Evaluate", GATE)
        until(lambda: gate.calls == 1, "the first call runs")
        with posted(door, "/Evaluate", GATE):
            until(lambda: open_calls(door) == 2, "the second call waits")
        until(lambda: open_calls(door) == 1, "the second call is taken back")
        gate.open.set()
        assert read_answer(running)[0] == 200
        running.close()
        assert gate.calls == 1
    assert not caplog.records


def test_a_deadline_that_passes_in_the_queue_is_told() -> None:
    gate = Gate()
    with front_door({"gate": gate}) as door:
        with posted(door, "/Evaluate", GATE) as running:
            until(lambda: gate.calls == 1, "the first call runs")
            late = door.ask("POST", "/Evaluate", GATE, {"Farm-Deadline": "0.1"})
            assert error(late)[:2] == (504, "DeadlineExceeded")
            # Questions are answered while every worker is busy.
            assert door.ask("GET", "/Info").json()["models"] == ["gate"]
            assert door.ask("POST", "/InputSizes", {"name": "gate"}).json() == {"inputSizes": [1]}
            gate.open.set()
            read_answer(running)
        assert gate.calls == 1


class Script:
    """A backend that records its calls and answers with given outcomes.

    It raises Overloaded at once, as the dispatcher does; other errors are outcomes.
    """

    def __init__(self, answer: Result | FarmError) -> None:
        self.answer = answer
        self.asked: list[tuple[Call, Hints]] = []
        self.info = info_of(forward, {}, name="forward")

    def start_call(
        self, call: Call, hints: Hints, on_done: Callable[[Result | FarmError], None]
    ) -> TaskId:
        self.asked.append((call, hints))
        if isinstance(self.answer, Overloaded):
            raise self.answer
        on_done(self.answer)
        return TaskId(1)

    def cancel(self, task_id: TaskId) -> None:
        raise AssertionError("nobody leaves")

    def description(self, model: str, config: str = "{}") -> ModelInfo | None:
        return self.info

    def models(self) -> Mapping[str, ModelInfo]:
        return {"forward": self.info}


def asked(script: Script, user: str = "", **headers: str) -> tuple[int, dict[bytes, bytes], bytes]:
    """Return status, headers and body of a request to /Evaluate without a socket."""
    answers: list[tuple[int, dict[bytes, bytes], bytes]] = []

    def answer(
        status: int, body: bytes | memoryview, headers: Extra = (), content_type: bytes = JSON
    ) -> None:
        answers.append((status, dict(headers), bytes(body)))

    given = {k.replace("_", "-").encode(): v.encode() for k, v in headers.items()}
    body = json.dumps(FORWARD).encode()
    backend: Any = script
    door = UmBridgeEndpoint(backend, non_finite=NonFinite.LITERAL)
    door(Request("POST", "/Evaluate", given, body, "10.0.0.7", user), answer)
    ((status, extra, sent),) = answers
    return status, extra, sent


ANSWER = Result((np.array([3.0]), np.zeros((2, 2))), 0.25, worker="n\u00f6de/1", queue_time_s=1e-7)


def test_the_call_and_its_hints_reach_the_farm() -> None:
    script = Script(ANSWER)
    status, headers, body = asked(
        script, farm_client="chain-3", farm_priority="7", farm_deadline="60"
    )
    assert (status, body) == (200, b'{"output":[[3.0],[0.0,0.0,0.0,0.0]]}')
    ((call, hints),) = script.asked
    assert (call.model, call.operation) == ("forward", Operation.EVALUATE)
    assert hints == Hints(client="chain-3", priority=7, deadline_s=60.0)
    assert headers[b"farm-run-time"] == b"0.250000"
    assert headers[b"farm-queue-time"] == b"0.000000"
    assert headers[b"farm-worker"] == b"n?de/1"
    assert b"farm-copied" not in headers
    assert b"farm-reused" not in headers
    assert asked(Script(replace(ANSWER, copied=True)))[1][b"farm-copied"] == b"true"
    _, headers, _ = asked(Script(replace(ANSWER, reused=True)))
    assert headers[b"farm-reused"] == b"true"
    assert b"farm-copied" not in headers


@pytest.mark.parametrize(
    ("outcome", "expected", "logged"),
    [
        (Overloaded("100000 calls wait already"), (503, "Overloaded"), ""),
        (ModelFailed("no", detail="Traceback: secret"), (500, "ModelFailed"), "Traceback: secret"),
        (Result(("secret",), 0.1), (500, "InternalError"), "Traceback"),  # type: ignore[arg-type]  # a mistake of farm's own
    ],
)
def test_errors_are_told_without_what_belongs_in_the_log(
    outcome: Result | FarmError,
    expected: tuple[int, str],
    logged: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "farm.protocols.umbridge.endpoint")
    status, _, body = asked(Script(outcome))
    assert (status, json.loads(body)["error"]["type"]) == expected
    assert b"secret" not in body
    assert logged in caplog.text
