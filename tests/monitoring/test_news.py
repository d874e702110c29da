"""News: what is logged at once, what is counted for the next line, and that lines are few."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import farm
from farm.call import ModelInfo, WorkerInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.events import Departure
from farm.machine.json_log import JsonFormatter
from farm.model import Config, Inputs
from farm.monitoring import news
from farm.monitoring.news import News, log_call
from farm.monitoring.repetitions import EVERY_S, MOST_KINDS
from tests.monitoring.test_failures import failure
from tests.support.front_door import Door, front_door

BEAM = ModelInfo("beam", (), ())


class Quiet(News):
    """News whose next lines come when a test lets their time come."""

    def __init__(self, dispatcher: Dispatcher, due: list[Callable[[], None]]) -> None:
        self._due = due
        super().__init__(dispatcher)

    def report_later(self, seconds: float) -> None:
        assert seconds == EVERY_S
        self._due.append(self.report)


class Log:
    """The lines that were logged; `pass_time` lets the time of the next line come."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        self.due: list[Callable[[], None]] = []
        self.news = Quiet(Dispatcher([]), self.due)

    def pass_time(self) -> None:
        self.due.pop()()
        assert len(self.due) <= 1

    def lines(self) -> list[str]:
        """Return the lines since the last look, with their levels."""
        lines = [f"{each.levelname}: {each.getMessage()}" for each in self._caplog.records]
        self._caplog.clear()
        return lines


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[Log]:
    with caplog.at_level(logging.INFO, news.log.name):
        yield Log(caplog)


def worker(number: int) -> WorkerInfo:
    return WorkerInfo(f"n/{number}", (BEAM,))


def test_the_first_of_a_kind_is_logged_at_once_and_others_are_counted(log: Log) -> None:
    for number in range(4):
        log.news.joined(worker(number), None)
    assert log.lines() == ["INFO: worker n/0 joined: beam; the farm has 1 worker"]
    log.pass_time()
    assert log.lines() == ["INFO: 3 workers joined, the last is n/3; the farm has 4 workers"]


def test_what_did_not_happen_again_is_news_the_next_time(log: Log) -> None:
    log.news.joined(worker(0), None)
    log.pass_time()
    assert log.due == []
    log.news.joined(worker(1), None)
    assert log.lines()[1:] == ["INFO: worker n/1 joined: beam; the farm has 2 workers"]


def test_losses_are_warnings_by_reason(log: Log) -> None:
    for number in range(3):
        log.news.left(worker(number), Departure("exit code 3"))
    log.news.left(worker(7), Departure("signal SIGKILL"))
    log.news.left(worker(8), Departure("stopped", drained=True))
    assert log.lines() == [
        "WARNING: worker n/0 lost: exit code 3",
        "WARNING: worker n/7 lost: signal SIGKILL",
    ]
    log.pass_time()
    assert log.lines() == ["WARNING: 2 workers lost: exit code 3; the last is n/2"]
    log.news.left(worker(4), Departure("exit code 3"))
    assert log.lines() == []
    log.pass_time()
    assert log.lines() == ["WARNING: worker n/4 lost: exit code 3"]


def test_failures_are_lines_by_reason(log: Log) -> None:
    for number in range(5):
        log.news.failed(failure(f"no root in {number}\nand more", worker="n/1", calls=2))
    log.news.failed(failure("late", worker=""))
    assert log.lines() == [
        "INFO: 2 calls of model 'beam' failed, the last one on worker n/1: "
        "ModelFailed: no root in 0",
        "INFO: a call of model 'beam' failed: ModelFailed: late",
    ]
    log.pass_time()
    (line,) = log.lines()
    assert line.startswith("INFO: 8 calls of model 'beam' failed, ")
    assert line.endswith(": ModelFailed: no root in 4")


def test_what_happened_to_a_lost_call_is_no_other_reason(log: Log) -> None:
    for story in ("queued 0.1 s", "queued 3 s, lost with n/1"):
        log.news.failed(failure(f"lost 2 times; what happened: {story}", worker="n/1"))
    assert log.lines() == [
        "INFO: a call of model 'beam' failed on worker n/1: ModelFailed: lost 2 times"
    ]


def test_lines_are_few_however_much_happens(log: Log) -> None:
    letters = "abcdefghij"
    for text in (a + b for a in letters for b in letters):
        log.news.failed(failure(text))
    assert len(log.lines()) == MOST_KINDS
    log.pass_time()
    others = 100 - MOST_KINDS
    assert log.lines() == [
        f"INFO: {others} more losses and failures for other reasons: farm failures"
    ]


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


INFER = "/v2/models/root/infer"
TENSOR = {"name": "x", "shape": [3, 1], "datatype": "FP64", "data": [1, 4, 9]}


@pytest.mark.parametrize(
    ("path", "body", "headers", "message"),
    [
        ("/Evaluate", QUESTION, {}, "call a-1: evaluate of model 'root' answered after "),
        ("/Evaluate", {**QUESTION, "input": [[-4]]}, {}, "ModelFailed: ValueError: negative"),
        (INFER, {"inputs": [TENSOR]}, {}, "call a-1: evaluate of model 'root' answered after "),
        ("/Evaluate", QUESTION, {"X-Request-ID": ""}, ""),
    ],
    ids=["a call", "a failed call", "every part of a long call", "a call without an id"],
)
def test_calls_with_an_id_have_lines(
    door: Door,
    caplog: pytest.LogCaptureFixture,
    path: str,
    body: dict[str, Any],
    headers: dict[str, str],
    message: str,
) -> None:
    headers = {"X-Request-ID": "a-1", "Farm-Client": "anna", **headers}
    answered = door.ask("POST", path, body, headers)
    logged = lines(caplog)
    assert bool(logged) == bool(message)
    for line in logged:
        fields = ("level", "call", "client", "model", "operation")
        about = "INFO", "a-1", "anna", "root", "evaluate"
        assert tuple(line[name] for name in fields) == about
        assert line.get("worker") == answered.headers.get("farm-worker")
        assert message in line["message"]


def test_a_log_without_such_lines_costs_nothing() -> None:
    logging.getLogger("farm.calls").setLevel(logging.WARNING)
    try:
        with front_door({"root": Root()}) as door:
            assert log_call not in door.dispatcher.on_answered
    finally:
        logging.getLogger("farm.calls").setLevel(logging.NOTSET)
