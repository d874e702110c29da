"""The KServe door over real connections: answers, errors, headers, clients that leave."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import urllib3

import farm
from farm.model import Config
from farm.settings import Settings
from tests.protocols.models import Gate, Sized, open_calls, posted
from tests.support.front_door import WAIT_S, Door, front_door, read_answer, until


@farm.model(inputs={"x": 2}, outputs={"y": 2, "total": 1})
def double(x: Any, config: Config) -> Any:
    if config.get("fail"):
        raise ValueError("no mesh \udcff")
    return [config.get("factor", 2) * x, [x.sum()]]


MODELS = {"double": double, "sized": Sized(), "a b/c%": double}


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with front_door(MODELS) as opened:
        yield opened


def error(response: urllib3.BaseHTTPResponse) -> tuple[int, str]:
    """Return status and text after checking that the error is an object with that one member."""
    assert response.headers["content-type"] == "application/json"
    data = response.json()
    assert list(data) == ["error"]
    assert isinstance(data["error"], str)
    return response.status, data["error"]


def x(values: Any, **more: Any) -> dict[str, Any]:
    shape = list(np.shape(values))
    data = np.ravel(values).tolist()
    return {"inputs": [{"name": "x", "shape": shape, "datatype": "FP64", "data": data}], **more}


def outputs(response: urllib3.BaseHTTPResponse) -> dict[str, Any]:
    assert (response.status, response.headers["content-type"]) == (200, "application/json")
    assert "inference-header-content-length" not in response.headers
    told = response.json()["outputs"]
    return {o["name"]: np.reshape(o["data"], o["shape"]).tolist() for o in told}


INFER = "/v2/models/double/infer"


def test_health_and_metadata(door: Door) -> None:
    answers = {
        "/v2/models": {"models": list(MODELS)},
        "/v2/models/a%20b%2Fc%25/ready": {"name": "a b/c%", "ready": True},
        "/v2/models/a%20b/c%25/ready": {"name": "a b/c%", "ready": True},
    }
    for path, expected in answers.items():
        response = door.ask("GET", path)
        assert (response.status, response.json()) == (200, expected)
        assert response.headers["content-type"] == "application/json"
    assert door.ask("GET", "/v2").json() == door.ask("GET", "//v2/").json()
    assert door.ask("HEAD", "/v2/health/ready").status == 200


@pytest.mark.parametrize(
    "content_type", ["application/json; charset=utf-8", "application/octet-stream", "text/html", ""]
)
def test_the_content_type_does_not_matter(door: Door, content_type: str) -> None:
    body = json.dumps(x([1, 2])).encode()
    response = door.ask("POST", INFER, body, {"Content-Type": content_type})
    assert outputs(response)["total"] == [3]
    assert float(response.headers["farm-run-time"]) >= 0
    assert response.headers["farm-worker"]


def test_settings_of_the_farm() -> None:
    settings = Settings(port=0, non_finite="null")
    with front_door({"double": double}, token="t0ken", settings=settings) as door:
        body = json.dumps(x([math.nan, 1.0])).encode()
        assert b'"data":[null,2.0]' in door.ask("POST", INFER, body).data
        proxied = {"X-Forwarded-For": "203.0.113.9"}
        response = door.ask("POST", INFER, x([1, 2]), proxied)
        assert response.headers["www-authenticate"]
        assert error(response)[0] == 401
        proxied["Authorization"] = "Bearer t0ken"
        assert door.ask("POST", INFER, x([1, 2]), proxied).status == 200


def test_generate(door: Door) -> None:
    response = door.ask("POST", "/v2/models/double/generate", {"x": [1, 2], "stop": False})
    named = {"model_name": "double", "model_version": "1"}
    assert response.json() == named | {"y": [2.0, 4.0], "total": 3.0}
    wrong = error(door.ask("POST", "/v2/models/double/generate", {"x": "a"}))
    assert (wrong[0], "data of input 'x'" in wrong[1]) == (400, True)


def test_long_answers_are_compressed_for_who_asks(door: Door) -> None:
    many = x(np.ones((2000, 2)), outputs=[{"name": "y"}])
    plain = door.ask("POST", INFER, many)
    assert "content-encoding" not in plain.headers
    for encoding in ("gzip", "deflate"):
        packed = door.ask("POST", INFER, many, {"Accept-Encoding": encoding})
        assert packed.headers["content-encoding"] == encoding
        assert int(packed.headers["content-length"]) < len(plain.data) / 10
        assert packed.data == plain.data
    small = door.ask("POST", INFER, x([1, 2]), {"Accept-Encoding": "gzip"})
    assert "content-encoding" not in small.headers


def test_the_model_sees_the_config_that_a_parameter_holds(door: Door) -> None:
    asked = x([1, 2], parameters={"farm_config": '{"factor": 10}', "other": 3})
    assert outputs(door.ask("POST", INFER, asked))["y"] == [10, 20]
    for _ in range(2):  # described during the request, then known
        asked = x([[1, 2, 3]], parameters={"farm_config": '{"n": 3}'})
        assert outputs(door.ask("POST", "/v2/models/sized/infer", asked)) == {"y": [[6]]}
    status, text = error(door.ask("POST", "/v2/models/sized/infer", x([1, 2])))
    assert (status, "has shape [2]; model 'sized' expects [1]" in text) == (400, True)
    asked = x([1], parameters={"farm_config": '{"n": "bad"}'})
    assert "n is bad" in error(door.ask("POST", "/v2/models/sized/infer", asked))[1]
    asked = x([1, 2], parameters={"farm_config": '{"n": 4}'})
    status, text = error(door.ask("POST", "/v2/models/sized/infer", asked))
    assert (status, "has shape [2]" in text) == (400, True)


ERRORS: list[tuple[str, str, Any, int, str]] = [
    ("GET", "/v2/nope", None, 404, "nothing is at /v2/nope"),
    ("GET", "/v2/models/nope", None, 404, "no model 'nope' is served here; the models are"),
    ("GET", "/v2/models/double/versions/2", None, 404, "model 'double' has no version '2'"),
    ("POST", "/v2/models/nope/infer", x([1]), 404, "no model 'nope'"),
    ("GET", INFER, None, 405, "is asked with POST, not GET"),
    ("POST", "/v2", {}, 405, "is asked with GET, not POST"),
    ("POST", INFER, b"{", 400, "the body is not JSON"),
    ("POST", INFER, x([1, 2, 3]), 400, "has shape [3]; model 'double' expects [2], or [-1, 2]"),
    ("POST", INFER, x([1, 2], outputs=[{"name": "q"}]), 400, "there is no output 'q'"),
    ("POST", INFER, x([1, 2], parameters={"priority": "1"}), 400, "parameter priority is '1'"),
    ("POST", INFER, x([1, 2], parameters={"farm_config": '{"fail":1}'}), 500, "no mesh ?"),
    ("POST", "/v2/repository/index", b"[", 400, "the body is not JSON"),
    ("POST", "/v2/repository/models/double/load", {"parameters": {"config": "{}"}}, 501, "config"),
    ("GET", "/v2/logging", None, 501, "not offered here"),
    ("POST", "/v2/models/double/%67enerate_stream", {"x": [1, 2]}, 404, "without %"),
]


OF_HEADERS: list[tuple[Any, dict[str, str], int, str]] = [
    ({}, {"Farm-Priority": "x"}, 400, "inputs is missing"),
    (x([1, 2]), {"Farm-Priority": "x"}, 400, "Farm-Priority is 'x'"),
    ({}, {"Inference-Header-Content-Length": "7"}, 400, "Inference-Header-Content-Length"),
]
REFUSED: list[tuple[Any, ...]]
REFUSED = [(method, path, body, {}, status, text) for method, path, body, status, text in ERRORS]
REFUSED += [("POST", INFER, *refused) for refused in OF_HEADERS]


@pytest.mark.parametrize(("method", "path", "body", "headers", "status", "text"), REFUSED)
def test_errors_are_told_in_one_form(
    door: Door, method: str, path: str, body: Any, headers: dict[str, str], status: int, text: str
) -> None:
    got, told = error(door.ask(method, path, body, headers))
    assert (got, text in told) == (status, True), told


ONE = json.dumps(x([1])).encode()
GATE = "/v2/models/gate/infer"


def test_a_full_queue_says_so_at_once_until_a_client_leaves() -> None:
    gate = Gate()
    settings = Settings(port=0, max_queued=1)
    with front_door({"gate": gate}, settings=settings) as door, posted(door, GATE, ONE) as runs:
        until(lambda: gate.calls == 1, "one runs")
        with posted(door, GATE, ONE):
            until(lambda: open_calls(door) == 2, "one waits")
            response = door.ask("POST", GATE, x([1]))
            assert response.headers["retry-after"] == "1"
            assert error(response)[0] == 503
        until(lambda: open_calls(door) == 1, "it is taken back")
        gate.open.set()
        status, answer = read_answer(runs)
    assert (status, json.loads(answer)["outputs"][0]["data"]) == (200, [1.0])
    assert gate.calls == 1


class SizedGate(Gate):
    """Stays in describe, too, for a config."""

    def describe(self, config: Config) -> tuple[Any, Any]:
        if config:
            self.open.wait(WAIT_S)
        return self.inputs, self.outputs


def test_a_deadline_passes_while_the_model_is_to_be_described() -> None:
    gate = SizedGate()
    with front_door({"gate": gate}) as door:
        described, late = (
            x([1], parameters={"farm_config": text}) for text in ('{"a":1}', '{"b":1}')
        )
        with posted(door, GATE, json.dumps(described).encode()):
            until(lambda: open_calls(door) == 1, "the worker is busy")
            response = door.ask("POST", GATE, late, {"Farm-Deadline": "0.1"})
            gate.open.set()
        assert error(response)[0] == 504
