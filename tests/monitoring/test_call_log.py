"""The log's line for each call that has an id."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

import farm
from farm.machine.json_log import JsonFormatter
from farm.model import Config, Inputs
from farm.monitoring.call_log import CallLog
from tests.support.front_door import Door, front_door

QUESTION = {"name": "root", "input": [[4]], "config": {}}


class Root(farm.Model):
    inputs = {"x": 1}
    outputs = {"y": 1}

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        if inputs["x"] < 0:
            raise ValueError("negative")
        return inputs["x"] ** 0.5


@pytest.fixture
def door(caplog: pytest.LogCaptureFixture) -> Iterator[Door]:
    with caplog.at_level(logging.INFO), front_door({"root": Root()}) as opened:
        yield opened


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    form = JsonFormatter()
    return [json.loads(form.format(r)) for r in caplog.records if r.name == "farm.calls"]


def test_a_line_for_each_call_with_an_id(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    headers = {"X-Request-ID": "a-1", "Farm-Client": "anna"}
    answered = door.ask("POST", "/Evaluate", QUESTION, headers)
    assert (answered.status, answered.headers["x-request-id"]) == (200, "a-1")
    (line,) = lines(caplog)
    fields = ("level", "call", "client", "model", "operation", "worker")
    assert tuple(line[name] for name in fields) == (
        "INFO",
        "a-1",
        "anna",
        "root",
        "evaluate",
        answered.headers["farm-worker"],
    )
    assert line["message"].startswith("call a-1: evaluate of model 'root' answered after ")


def test_a_failed_call_has_its_error(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    asked = {**QUESTION, "input": [[-4]]}
    assert door.ask("POST", "/Evaluate", asked, {"X-Request-ID": "a-2"}).status == 500
    (line,) = lines(caplog)
    assert line["message"].endswith("ModelFailed: ValueError: negative")
    assert line["call"] == "a-2"


def test_calls_without_an_id_have_no_line(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    answered = door.ask("POST", "/Evaluate", QUESTION)
    assert answered.status == 200
    assert "x-request-id" not in answered.headers
    assert lines(caplog) == []


def test_every_part_of_a_long_call_has_its_id(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    tensor = {"name": "x", "shape": [3, 1], "datatype": "FP64", "data": [1, 4, 9]}
    headers = {"X-Request-ID": "a-3"}
    answered = door.ask("POST", "/v2/models/root/infer", {"inputs": [tensor]}, headers)
    assert answered.status == 200
    assert {line["call"] for line in lines(caplog)} == {"a-3"}


def test_a_log_without_such_lines_costs_nothing() -> None:
    logging.getLogger("farm.calls").setLevel(logging.WARNING)
    try:
        with front_door({"root": Root()}) as door:
            told = [getattr(each, "__self__", None) for each in door.dispatcher.on_answered]
            assert not any(isinstance(each, CallLog) for each in told)
    finally:
        logging.getLogger("farm.calls").setLevel(logging.NOTSET)
