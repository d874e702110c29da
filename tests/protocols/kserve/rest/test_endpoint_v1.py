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


class Constant(farm.Model):
    inputs: dict[str, Any] = {}
    outputs = {"y": 2}

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        return np.array([1.0, 2.0])


PREDICT = "/v1/models/double:predict"


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    models = {"double": Double(), "constant": Constant(), "a/b": Double()}
    with front_door(models) as opened:
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
    assert told(door.ask("GET", "/v1/models")) == {"models": ["double", "constant", "a/b"]}
    assert told(door.ask("GET", "/v1/models/double")) == {"name": "double", "ready": True}
    assert told(door.ask("GET", "/v1/models/a%2Fb")) == {"name": "a/b", "ready": True}
    assert "no model 'q'" in error(door.ask("GET", "/v1/models/q"), 404)


def test_rows_and_columns(door: Door) -> None:
    rows, doubled = [[1, 2], [3, 4], [5, 6]], [[2, 4], [6, 8], [10, 12]]
    headers = {"Inference-Header-Content-Length": "3"}  # it means nothing here
    answer = door.ask("POST", PREDICT, {"instances": rows}, headers)
    assert told(answer) == {"predictions": doubled}
    assert told(door.ask("POST", PREDICT, {"inputs": rows})) == {"outputs": doubled}
    assert told(door.ask("POST", PREDICT, {"inputs": [1, 2]})) == {"outputs": [2, 4]}
    path = "/v1/models/a/b/versions/1:predict"
    assert told(door.ask("POST", path, {"instances": rows})) == {"predictions": doubled}


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
    assert "no version '2'" in error(
        door.ask("POST", "/v1/models/double/versions/2:predict", {"instances": [[1, 2]]}), 404
    )


def test_requests_are_refused_in_farms_words_in_tritons_dialect() -> None:
    """Triton has no V1."""
    settings = Settings(port=0, options={"kserve_dialect": "triton"})
    with front_door({"double": Double()}, settings=settings) as door:
        assert "nothing is at" in error(door.ask("GET", "/v1/nothing"), 404)
        assert "asked with POST" in error(door.ask("GET", PREDICT), 405)
        wrong = error(door.ask("POST", PREDICT, {"instances": [[1, 2, 3]]}), 400)
        assert wrong.startswith("input 'x' has shape [1, 3]")


def test_an_unloaded_model_is_not_found(door: Door) -> None:
    assert door.ask("POST", "/v2/repository/models/a/b/unload").status == 200
    try:
        assert "unloaded" in error(door.ask("GET", "/v1/models/a/b"), 404)
        assert "a/b" not in told(door.ask("GET", "/v1/models"))["models"]
    finally:
        assert door.ask("POST", "/v2/repository/models/a/b/load").status == 200


def test_long_bodies_and_answers(door: Door) -> None:
    rows = (np.arange(16_000.0) + 1 / 3).reshape(-1, 2).tolist()
    body = json.dumps({"instances": rows}).encode()
    assert len(body) > HEAVY_BYTES
    answer = told(door.ask("POST", PREDICT, body))
    assert answer == {"predictions": (2 * np.asarray(rows)).tolist()}
