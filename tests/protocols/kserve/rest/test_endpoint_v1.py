"""KServe's V1 protocol over real connections."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import urllib3

import farm
from farm.bodies.body import HEAVY_BYTES
from farm.model import Config, Inputs
from farm.settings import Settings
from tests.support.front_door import Door, front_door


class Double(farm.Model):
    inputs = {"x": 2}
    outputs = {"y": 2}
    max_batch = 8

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        if (inputs["x"] == 13).any():
            raise ValueError("thirteen")
        return {"y": config.get("factor", 2) * inputs["x"]}


@farm.model(inputs={"x": 2, "n": 1}, outputs={"sum": 1, "first": 1})
def several(x: Any, n: Any, config: Config) -> Any:
    return [[x.sum() + n[0]], [x[0]]]


class Constant(farm.Model):
    inputs: dict[str, Any] = {}
    outputs = {"y": 2}

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        return np.array([1.0, 2.0])


LIMIT = 4 << 20
PREDICT = "/v1/models/double:predict"


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    models = {"double": Double(), "several": several, "constant": Constant(), "a/b": Double()}
    with front_door(models, settings=Settings(port=0, max_body_bytes=LIMIT)) as opened:
        yield opened


def told(response: urllib3.BaseHTTPResponse, status: int = 200) -> Any:
    assert response.status == status
    assert response.headers["content-type"] == "application/json"
    return response.json()


def error(response: urllib3.BaseHTTPResponse, status: int) -> str:
    data = told(response, status)
    assert list(data) == ["error"]
    assert isinstance(data["error"], str)
    return data["error"]


def test_models_and_readiness(door: Door) -> None:
    assert told(door.ask("GET", "/v1/models")) == {
        "models": ["double", "several", "constant", "a/b"]
    }
    assert told(door.ask("GET", "/v1/models/double")) == {"name": "double", "ready": True}
    assert told(door.ask("GET", "/v1/models/a%2Fb")) == {"name": "a/b", "ready": True}
    assert "no model 'q'" in error(door.ask("GET", "/v1/models/q"), 404)


def test_rows_and_columns(door: Door) -> None:
    rows = [[1, 2], [3, 4], [5, 6]]
    doubled = [[2, 4], [6, 8], [10, 12]]
    assert told(door.ask("POST", PREDICT, {"instances": rows})) == {"predictions": doubled}
    assert told(door.ask("POST", PREDICT, {"instances": rows[:1]})) == {"predictions": doubled[:1]}
    assert told(door.ask("POST", PREDICT, {"inputs": rows})) == {"outputs": doubled}
    assert told(door.ask("POST", PREDICT, {"inputs": {"x": rows[:1]}})) == {"outputs": doubled[:1]}
    assert told(door.ask("POST", PREDICT, {"inputs": [1, 2]})) == {"outputs": [2, 4]}
    path = "/v1/models/a/b/versions/1:predict"
    assert told(door.ask("POST", path, {"instances": rows})) == {"predictions": doubled}


def test_several_inputs_and_outputs(door: Door) -> None:
    path = "/v1/models/several:predict"
    body: dict[str, Any] = {"instances": [{"x": [1, 2], "n": 3}, {"x": [4, 5], "n": 6}]}
    answer: dict[str, Any] = {
        "predictions": [{"sum": [6], "first": [1]}, {"sum": [15], "first": [4]}]
    }
    assert told(door.ask("POST", path, body)) == answer
    body = {"inputs": {"x": [[1, 2], [4, 5]], "n": [3, 6]}}
    answer = {"outputs": {"sum": [[6], [15]], "first": [[1], [4]]}}
    assert told(door.ask("POST", path, body)) == answer


def test_a_model_without_inputs(door: Door) -> None:
    path = "/v1/models/constant:predict"
    assert told(door.ask("POST", path, {"instances": [{}]})) == {"predictions": [[1, 2]]}
    assert told(door.ask("POST", path, {"inputs": {}})) == {"outputs": [1, 2]}


def test_parameters_are_those_of_v2(door: Door) -> None:
    body: dict[str, Any] = {"instances": [[1, 2]], "parameters": {"farm_config": '{"factor": 3}'}}
    assert told(door.ask("POST", PREDICT, body)) == {"predictions": [[3, 6]]}
    body["parameters"] = {"priority": "high"}
    assert "priority is 'high'" in error(door.ask("POST", PREDICT, body), 400)


def test_errors_have_the_protocols_form(door: Door) -> None:
    assert "neither instances" in error(door.ask("POST", PREDICT, {}), 400)
    assert "not JSON" in error(door.ask("POST", PREDICT, b"{"), 400)
    assert "thirteen" in error(door.ask("POST", PREDICT, {"instances": [[13, 1]]}), 500)
    explain = door.ask("POST", "/v1/models/double:explain", {"instances": [[1, 2]]})
    assert "explain" in error(explain, 501)
    assert "nothing is at" in error(door.ask("GET", "/v1/nothing"), 404)
    assert "asked with POST" in error(door.ask("GET", PREDICT), 405)
    assert "no version '2'" in error(
        door.ask("POST", "/v1/models/double/versions/2:predict", {"instances": [[1, 2]]}), 404
    )
    assert "longer than" in error(door.ask("POST", PREDICT, b"x" * (LIMIT + 1)), 413)


def test_requests_are_refused_in_farms_words_in_tritons_dialect() -> None:
    """Triton has no V1."""
    settings = Settings(port=0, options={"kserve_dialect": "triton"})
    with front_door({"double": Double()}, settings=settings) as door:
        assert "nothing is at" in error(door.ask("GET", "/v1/nothing"), 404)
        assert "asked with POST" in error(door.ask("GET", PREDICT), 405)
        wrong = error(door.ask("POST", PREDICT, {"instances": [[1, 2, 3]]}), 400)
        assert wrong.startswith("input 'x' has shape [1, 3]")


def test_an_unloaded_model_is_not_found(door: Door) -> None:
    assert door.ask("POST", "/v2/repository/models/several/unload").status == 200
    try:
        assert "unloaded" in error(door.ask("GET", "/v1/models/several"), 404)
        assert "several" not in told(door.ask("GET", "/v1/models"))["models"]
    finally:
        assert door.ask("POST", "/v2/repository/models/several/load").status == 200


def test_long_bodies_and_answers(door: Door) -> None:
    rows = np.arange(100.0, 80_100.0).reshape(-1, 2).tolist()
    body = json.dumps({"instances": rows}).encode()
    assert HEAVY_BYTES < len(body) < LIMIT
    answer = told(door.ask("POST", PREDICT, body))
    assert answer == {"predictions": (2 * np.asarray(rows)).tolist()}


def test_the_header_of_raw_tensors_means_nothing_here(door: Door) -> None:
    headers = {"Inference-Header-Content-Length": "3"}
    response = door.ask("POST", PREDICT, {"instances": [[1, 2]]}, headers)
    assert told(response) == {"predictions": [[2, 4]]}
