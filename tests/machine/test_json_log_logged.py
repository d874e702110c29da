"""`--log-format json`: one id from a request's header to the logs of front door and worker."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import urllib3

from farm.machine.json_log import LOG_FORMAT, logged
from tests.support.dispatcher_farm import LIMIT_S, Served, serving

MODEL = """
import logging
import farm

class Root(farm.Model):
    name = "root"
    inputs = {"x": 1}
    outputs = {"y": 1}

    def evaluate(self, inputs, config):
        print("iterating", inputs["x"][0])
        logging.getLogger("solver").warning("residual is large")
        if inputs["x"] < 0:
            raise ValueError("negative")
        return inputs["x"] ** 0.5
"""
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def ask(served: Served, x: float, **headers: str) -> urllib3.BaseHTTPResponse:
    return urllib3.request(
        "POST",
        f"{served.connection.url}/Evaluate",
        json={"name": "root", "input": [[x]], "config": {}},
        headers={name.replace("_", "-"): value for name, value in headers.items()},
        timeout=LIMIT_S,
        retries=False,
    )


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def of_worker(served: Served) -> str:
    (log,) = (served.folder / "logs").iterdir()
    return log.read_text()


def test_one_id_from_the_header_to_the_logs(tmp_path: Path) -> None:
    (tmp_path / "root.py").write_text(MODEL)
    with serving(tmp_path, "root.py", "--log-format", "json") as served:
        assert (
            ask(served, 4, X_Request_ID="a-1", Farm_Client="anna").headers["x-request-id"] == "a-1"
        )
        failed = ask(served, -4, traceparent=f"00-{TRACE}-00f067aa0ba902b7-01")
        assert (failed.status, failed.headers["x-request-id"]) == (500, TRACE)
        made = ask(served, 9).headers["x-request-id"]
        status, _, errors = served.stop()
        worker = of_worker(served)
    assert status == 0
    *before, end = objects(errors)  # on a busy machine also that it waits, and for whom
    (failure,) = (line for line in before if "a call of model 'root' failed" in line["message"])
    assert (failure["logger"], end["logger"]) == ("farm.monitoring.news", "farm serve")
    lines = objects(worker)
    assert {line["worker"] for line in lines[1:]}.pop().count("/") == 1
    seen = [(line["logger"], line["call"], line["message"]) for line in lines if "call" in line]
    assert [(logger, call) for logger, call, _ in seen] == [
        ("stdout", "a-1"),
        ("stderr", "a-1"),
        ("stdout", TRACE),
        ("stderr", TRACE),
        ("farm.worker.runner", TRACE),
        ("stdout", made),
        ("stderr", made),
    ]
    assert seen[0][2] == "iterating 4.0"
    assert seen[1][2] == "residual is large"
    assert {line["client"] for line in lines if line.get("call") == "a-1"} == {"anna"}
    assert {line["model"] for line in lines if "call" in line} == {"root"}


@pytest.mark.slow
def test_all_ranks_of_a_group_name_the_call(tmp_path: Path) -> None:
    (tmp_path / "root.py").write_text(MODEL)
    options = ("--log-format", "json", "--mpi", "2")
    with serving(tmp_path, "root.py", *options) as served:
        ask(served, 4, X_Request_ID="a-1", Farm_Client="anna")
        served.stop()
        lines = objects(of_worker(served))
    said = [line for line in lines if line["message"] == "iterating 4.0"]
    about = {(line.get("call"), line.get("client"), line.get("model")) for line in said}
    assert (len(said), about) == (2, {("a-1", "anna", "root")})
    assert len({line["worker"] for line in said}) == 1


@pytest.mark.slow
def test_the_text_log_names_calls_that_came_with_an_id(tmp_path: Path) -> None:
    (tmp_path / "root.py").write_text(MODEL)
    with serving(tmp_path, "root.py") as served:
        assert "x-request-id" not in ask(served, -1).headers
        assert ask(served, -1, X_Request_ID="a-1").headers["x-request-id"] == "a-1"
        served.stop()
        heads = [line for line in of_worker(served).splitlines() if "farm.worker.runner" in line]
    assert [" [a-1]: " in head for head in heads] == [False, True]


def test_the_log_is_as_before_afterwards(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(LOG_FORMAT, raising=False)
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("plain %(message)s"))
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [handler])
    with logged("json", "farm serve"):
        logging.getLogger("farm.x").warning("one")
        print("two", file=sys.stderr)
        print("three", file=sys.stderr, end="")
        assert os.environ[LOG_FORMAT] == "json"
    logging.getLogger("farm.x").warning("four")
    first, last = stream.getvalue().splitlines()
    assert (json.loads(first)["message"], last) == ("one", "plain four")
    assert [line["message"] for line in objects(capsys.readouterr().err)] == ["two", "three"]
    assert LOG_FORMAT not in os.environ


def test_the_format_of_processes_that_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOG_FORMAT, "json")
    with logged("text", "farm worker"):
        assert os.environ[LOG_FORMAT] == "text"
    assert os.environ[LOG_FORMAT] == "json"
