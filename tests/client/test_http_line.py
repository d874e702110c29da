"""A line over HTTP to a farm's front door, with models in threads, and to other servers."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import farm
from farm.call import (
    DERIVATIVES,
    EMPTY_CONFIG,
    NO_HINTS,
    Call,
    Derivative,
    Hints,
    Operation,
    Result,
)
from farm.client import http_calls
from farm.client import http_line as http_client
from farm.client.http_line import HttpLine
from farm.client.line import CallFuture, Outcome, as_it_is, submit
from farm.dispatcher.partition import Rows
from farm.errors import (
    Cancelled,
    DeadlineExceeded,
    FarmError,
    InvalidInput,
    InvalidRequest,
    ModelNotFound,
    Unavailable,
    UnsupportedFeature,
)
from farm.scheduler.state import TaskId
from tests.client.test_http_calls import Clock
from tests.support.coroutines import LIMIT_S, wait_until
from tests.support.front_door import Door, front_door
from tests.support.scripted_lines import Inbox


class Gate(farm.Model):
    """Doubles x; a negative x waits until the gate is opened."""

    inputs = {"x": 2}
    outputs = {"y": (1, 2)}

    def __init__(self) -> None:
        self.open = threading.Event()
        self.ran: list[float] = []

    def evaluate(self, inputs: farm.Inputs, config: farm.Config) -> Any:
        x = inputs["x"]
        self.ran.append(float(x[0]))
        if x[0] < 0:
            self.open.wait(LIMIT_S)
        return config.get("factor", 2.0) * x[None]

    def gradient(
        self, out_wrt: int, in_wrt: int, inputs: farm.Inputs, sens: Any, config: farm.Config
    ) -> Any:
        return 2.0 * sens.reshape(-1)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def door(gate: Gate) -> Iterator[Door]:
    with front_door({"gate": gate}, workers=2) as door:
        yield door
        gate.open.set()


@pytest.fixture
def line(door: Door) -> Iterator[HttpLine]:
    line = HttpLine(door.url)
    yield line
    line.close()


def call(x: float, config: str = EMPTY_CONFIG) -> Call:
    return Call("gate", Operation.EVALUATE, (np.array([x, 0.5]),), config)


def first(outcome: Outcome) -> float:
    assert isinstance(outcome, Result), outcome
    return float(outcome.outputs[0].reshape(-1)[0])


def asked(line: HttpLine, call: Call, hints: Hints = NO_HINTS) -> CallFuture[Result]:
    return submit(line, call, hints, as_it_is)


def answered(line: HttpLine, calls: Sequence[tuple[Any, Call]], hints: Hints = NO_HINTS) -> Inbox:
    """Send these calls; wait until each has an outcome."""
    inbox = Inbox()
    ids = line.send(calls, hints, inbox)
    assert len(set(ids)) == len(calls)
    wait_until(lambda: len(inbox.outcomes) == len(calls))
    return inbox


def numbers(inbox: Inbox) -> dict[object, float]:
    return {key: first(outcome) for key, outcome in inbox.outcomes.items()}


@pytest.mark.parametrize(
    ("operation", "outputs"),
    [
        (Operation.EVALUATE, lambda k: [[[2.0 * k, 1.0]]]),
        (Operation.GRADIENT, lambda k: [[2.0, 2.0 * k]]),
        (Operation.VALUE_AND_GRADIENT, lambda k: [[[2.0 * k, 1.0]], [2.0, 2.0 * k]]),
    ],
    ids=["evaluate", "gradient", "value_and_gradient"],
)
def test_many_calls_travel_in_few_requests(
    line: HttpLine, operation: Operation, outputs: Callable[[int], list[Any]]
) -> None:
    calls = []
    for k in range(300):
        of = Derivative(0, 0, sens=np.array([1.0, k])) if operation in DERIVATIVES else None
        calls.append((k, Call("gate", operation, (np.array([k, 0.5]),), derivative=of)))
    inbox = answered(line, calls)
    for k in range(300):
        outcome = inbox.outcomes[k]
        assert isinstance(outcome, Result), outcome
        assert [output.tolist() for output in outcome.outputs] == outputs(k)
    assert inbox.flushes < 300


def test_calls_of_all_kinds_may_be_sent_together(line: HttpLine) -> None:
    wrt = Derivative(0, 0, sens=np.ones(2))
    calls: list[tuple[object, Call]] = [
        ("a", call(1.0)),
        ("b", call(2.0)),
        ("c", call(3.0, '{"factor":10}')),
        ("gradient", Call("gate", Operation.GRADIENT, (np.ones(2),), EMPTY_CONFIG, wrt)),
        ("d", call(4.0)),
        ("other model", Call("nope", Operation.EVALUATE, (np.ones(2),))),
        ("in its request", Call("nope", Operation.EVALUATE, (np.ones(2),))),
        ("wrong size", Call("gate", Operation.EVALUATE, (np.ones(3),))),
        ("e", call(5.0)),
    ]
    inbox = answered(line, calls)
    assert isinstance(inbox.outcomes.pop("other model"), ModelNotFound)
    assert isinstance(inbox.outcomes.pop("in its request"), ModelNotFound)
    assert isinstance(inbox.outcomes.pop("wrong size"), InvalidInput)
    expected = {"a": 2.0, "b": 4.0, "c": 30.0, "gradient": 2.0, "d": 8.0, "e": 10.0}
    assert numbers(inbox) == expected


@pytest.mark.parametrize("count", [1, 5])
def test_what_is_taken_back_is_cancelled_at_the_farm(
    door: Door, line: HttpLine, gate: Gate, count: int
) -> None:
    inbox = Inbox()
    line.send([(k, call(-1.0)) for k in range(2)], NO_HINTS, inbox)  # both workers
    wait_until(lambda: len(gate.ran) == 2)
    ids = line.send([(10 + k, call(10.0 + k)) for k in range(count)], NO_HINTS, inbox)
    wait_until(lambda: queued(door) == count)
    assert line.cancel(ids)
    assert not line.cancel(ids)
    wait_until(lambda: queued(door) == 0)
    gate.open.set()
    wait_until(lambda: len(inbox.outcomes) == 2)
    assert max(gate.ran) < 0
    assert first(asked(line, call(1.0)).result(LIMIT_S)) == 2.0


def queued(door: Door) -> int:
    return sum(queue["queued"] for queue in door.snapshot()["queues"])


def test_the_rest_of_a_request_goes_on(line: HttpLine, gate: Gate) -> None:
    inbox = Inbox()
    ids = line.send([(k, call(-1.0 - k)) for k in range(3)], NO_HINTS, inbox)
    wait_until(lambda: len(gate.ran) == 2)
    assert line.cancel(ids[:1])
    gate.open.set()
    wait_until(lambda: len(inbox.outcomes) == 2)
    assert numbers(inbox) == {1: -4.0, 2: -6.0}


def test_closing_cancels(door: Door, gate: Gate) -> None:
    line = HttpLine(door.url)
    inbox = Inbox()
    line.send([(k, call(-1.0)) for k in range(5)], NO_HINTS, inbox)
    single = asked(line, call(-1.0))
    wait_until(lambda: len(gate.ran) == 2)
    line.close()
    assert {type(y) for y in inbox.outcomes.values()} == {Cancelled}
    assert isinstance(single.exception(0), Cancelled)
    wait_until(lambda: queued(door) == 0)
    with pytest.raises(Unavailable, match="is closed"):
        asked(line, call(1.0))


def test_its_threads_end_with_it(door: Door) -> None:
    before = set(threading.enumerate())  # other lines may still be waiting for other servers

    def mine() -> list[threading.Thread]:
        return [t for t in threading.enumerate() if t.name == "farm client" and t not in before]

    line = HttpLine(door.url)
    assert first(asked(line, call(1.0)).result(LIMIT_S)) == 2.0
    assert mine()
    del line
    wait_until(lambda: not mine())


# Servers other than farms


class Stranger(BaseHTTPRequestHandler):
    """A UM-Bridge server that is not a farm and closes each connection."""

    server: StrangeServer

    def do_GET(self) -> None:
        self.server.authorizations.append(self.headers.get("Authorization"))
        if self.server.is_faulty(self):
            return
        if self.path == "/Info":
            self.answer(200, b'{"protocolVersion": 1.0, "models": ["half"]}')
        else:
            self.answer(404, b"")

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.is_faulty(self):
            return
        with self.server.lock:
            self.server.at_once.append(self.server.now + 1)
            self.server.now += 1
            self.server.ports.add(self.client_address[1])
        answers = {
            "/ModelInfo": {"support": {"Evaluate": True}},
            "/InputSizes": {"inputSizes": [1]},
            "/OutputSizes": {"outputSizes": [1]},
            "/Evaluate": {"output": [[x / 2 for x in asked.get("input", [[]])[0]]]},
        }
        if self.path == "/Evaluate":
            time.sleep(self.server.run_s)
        with self.server.lock:
            self.server.now -= 1
        self.answer(200, json.dumps(answers[self.path]).encode())

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


class StrangeServer(ThreadingHTTPServer):
    """Records concurrent calls, client ports and credentials."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Stranger)
        self.lock = threading.Lock()
        self.now = 0
        self.run_s = 0.01
        self.at_once: list[int] = []
        self.ports: set[int] = set()
        self.authorizations: list[str | None] = []
        self.faults: deque[int] = deque()
        """Statuses of the next answers; 0: the connection is cut instead."""
        self.url = f"http://127.0.0.1:{self.server_port}"

    def is_faulty(self, request: Stranger) -> bool:
        """Answer with the next fault, if there is one."""
        try:
            status = self.faults.popleft()
        except IndexError:
            return False
        if status:
            request.answer(status, b"not now")
        else:
            request.connection.shutdown(socket.SHUT_RDWR)
        return True


@pytest.fixture
def stranger() -> Iterator[StrangeServer]:
    server = StrangeServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def known(stranger: StrangeServer) -> Iterator[HttpLine]:
    """A line whose server has described its model."""
    line = HttpLine(stranger.url, patience_s=60.0)
    line.describe("half", EMPTY_CONFIG)
    yield line
    line.close()


def half(x: float) -> Call:
    return Call("half", Operation.EVALUATE, (np.array([x]),))


def halves(count: int) -> list[tuple[int, Call]]:
    return [(k, half(float(k))) for k in range(count)]


@pytest.mark.parametrize(("connections", "most"), [(None, 8), (3, 3)])
def test_a_stranger_gets_a_connection_a_call_and_few_at_once(
    stranger: StrangeServer, connections: int | None, most: int
) -> None:
    line = HttpLine(stranger.url, connections=connections)
    assert not line.is_farm
    inbox = answered(line, halves(60), Hints("me", 1, 10 * LIMIT_S))
    assert numbers(inbox) == {k: k / 2 for k in range(60)}
    assert len(stranger.ports) == 60
    assert 2 <= max(stranger.at_once) <= most
    line.close()


def test_a_stranger_may_be_silent_while_its_model_runs(stranger: StrangeServer) -> None:
    stranger.run_s = 1.0
    line = HttpLine(stranger.url, patience_s=0.2, first_s=LIMIT_S)
    known = len(stranger.authorizations)
    assert first(asked(line, half(3.0)).result(LIMIT_S)) == 1.5
    assert len(stranger.authorizations) == known, "it was asked whether it is there"
    line.close()


def test_a_stranger_is_described_by_its_sizes(known: HttpLine) -> None:
    info = known.describe("half", EMPTY_CONFIG)
    assert [(t.name, t.shape) for t in info.inputs + info.outputs] == [
        ("in0", (1,)),
        ("out0", (1,)),
    ]
    assert info.operations == {Operation.EVALUATE}
    with pytest.raises(UnsupportedFeature, match="is not a farm; only farms have a status"):
        known.status()


def test_another_kind_of_server_is_named(stranger: StrangeServer) -> None:
    stranger.faults.extend([404, 200])
    with pytest.raises(InvalidRequest, match="neither a farm nor a UM-Bridge server"):
        HttpLine(stranger.url)


def test_credentials_are_shown_and_asked_for(stranger: StrangeServer) -> None:
    stranger.faults.append(401)
    with pytest.raises(FarmError, match="wants credentials"):
        HttpLine(stranger.url)
    line = HttpLine(stranger.url, token="t")
    assert line.names() == ["half"]
    assert set(stranger.authorizations) == {None, "Bearer t"}
    line.close()


def test_a_call_that_the_protocol_cannot_say_fails_alone(known: HttpLine) -> None:
    rows = Call("half", Operation.EVALUATE, (np.ones((2, 1)),), rows=2)
    inbox = answered(known, [("rows", rows), ("one", half(2.0))])
    assert isinstance(inbox.outcomes["rows"], FarmError)
    assert first(inbox.outcomes["one"]) == 1.0


def test_a_request_is_bounded_by_points_and_bytes(
    line: HttpLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "POINTS_A_REQUEST", 3)
    tasks = [(k, call(float(k))) for k in range(7)]
    assert [len(request) for request in line._requests(tasks)] == [3, 3, 1]
    monkeypatch.setattr(http_client, "BYTES_A_REQUEST", 20)
    assert [len(request) for request in line._requests(tasks)] == [2, 2, 2, 1]


# Servers that are away for a while


def test_calls_without_an_answer_are_sent_again(stranger: StrangeServer, known: HttpLine) -> None:
    stranger.faults.extend([0, 503, 0, 502, 404])
    assert numbers(answered(known, halves(10))) == {k: k / 2 for k in range(10)}
    assert not stranger.faults


def test_questions_without_an_answer_are_asked_again(
    stranger: StrangeServer, known: HttpLine
) -> None:
    stranger.faults.extend([0, 503, 0])
    assert known.names() == ["half"]
    stranger.faults.extend([504, 0, 404])
    assert known.describe("half", EMPTY_CONFIG).inputs[0].shape == (1,)
    assert not stranger.faults


def test_the_first_contact_may_wait(stranger: StrangeServer) -> None:
    stranger.faults.extend([0, 503])
    line = HttpLine(stranger.url, first_s=60.0)
    assert line.names() == ["half"]
    line.close()
    stranger.faults.extend([0, 0])
    with pytest.raises(Unavailable, match="does not answer"):
        HttpLine(stranger.url)


def test_patience_ends(stranger: StrangeServer) -> None:
    line = HttpLine(stranger.url, patience_s=0.3)
    line.describe("half", EMPTY_CONFIG)
    stranger.faults.extend([0] * 1000)
    error = asked(line, half(1.0)).exception(LIMIT_S)
    assert isinstance(error, Unavailable)
    with pytest.raises(Unavailable, match="does not answer"):
        line.names()
    assert 1 < len(stranger.faults) < 999
    line.close()


def test_deadlines_hold_while_the_server_is_away(stranger: StrangeServer, known: HttpLine) -> None:
    stranger.faults.extend([503] * 1000)
    error = asked(known, half(1.0), Hints(deadline_s=2.0)).exception(LIMIT_S)
    assert isinstance(error, DeadlineExceeded)
    assert "the server was away" in error.message


def test_a_model_that_must_not_run_twice_is_called_once(
    stranger: StrangeServer, known: HttpLine
) -> None:
    known._repeatable["half"] = False
    stranger.faults.extend([0, 0])
    error = asked(known, half(1.0)).exception(LIMIT_S)
    assert isinstance(error, Unavailable)
    assert len(stranger.faults) == 1


def test_a_model_that_was_never_there_is_not_awaited(stranger: StrangeServer) -> None:
    line = HttpLine(stranger.url)
    stranger.faults.extend([404, 404])
    assert isinstance(asked(line, half(1.0)).exception(LIMIT_S), FarmError)
    assert len(stranger.faults) == 1
    line.close()


def test_wrong_credentials_are_reported_at_once(stranger: StrangeServer, known: HttpLine) -> None:
    stranger.faults.extend([401, 401])
    error = asked(known, half(1.0)).exception(LIMIT_S)
    assert isinstance(error, Unavailable)
    assert "wants credentials" in error.message
    with pytest.raises(Unavailable, match="wants credentials"):
        known.names()


def test_closing_fails_calls_that_wait_for_a_server(
    stranger: StrangeServer, known: HttpLine
) -> None:
    stranger.faults.extend([503] * 1000)
    future = asked(known, half(1.0))
    wait_until(lambda: len(stranger.faults) < 999)
    known.close()
    assert isinstance(future.exception(0), Cancelled)
    with pytest.raises(Unavailable, match="is closed"):
        known.names()


def test_points_that_a_starting_farm_refuses_are_sent_again(
    door: Door, line: HttpLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    line.describe("gate", EMPTY_CONFIG)
    refused: list[str] = []
    start = door.dispatcher.start_rows

    def refuse(rows: Rows, model: str, operation: Operation, hints: Hints) -> TaskId:
        if len(refused) < 3:
            refused.append(model)
            raise Unavailable("the farm is starting")
        return start(rows, model, operation, hints)

    monkeypatch.setattr(door.dispatcher, "start_rows", refuse)
    inbox = answered(line, [(k, call(float(k))) for k in range(5)])
    assert numbers(inbox) == {k: 2.0 * k for k in range(5)}
    assert len(refused) == 3


# Servers that are silent or end early


def test_each_answer_renews_the_patience(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """turns: for each request, the seconds that pass first, and how many answers are read."""
    clock = Clock()
    monkeypatch.setattr(http_calls, "time", clock)
    line = HttpLine(door.url, patience_s=60.0)
    line.describe("gate", EMPTY_CONFIG)
    turns, answer = [(0.0, 0), (120.0, 1), (30.0, 0), (0.0, 3)], line._client.answer

    @contextmanager
    def cut_short(*given: Any, **options: Any) -> Iterator[Any]:
        after_s, most = turns.pop(0)
        clock.now += after_s
        with answer(*given, **options) as whole:
            lines = b"".join(whole.portions()).splitlines(keepends=True)
            yield SimpleNamespace(status=whole.status, portions=lambda: lines[:most])

    monkeypatch.setattr(line._client, "answer", cut_short)
    inbox = answered(line, [(k, call(float(k))) for k in range(4)])
    assert numbers(inbox) == {k: 2.0 * k for k in range(4)}
    assert turns == []
    line.close()


@pytest.mark.parametrize("limits", [{"first_s": 1.0}, {"patience_s": 1.0}])
def test_the_first_contact_with_a_silent_server_has_a_limit(limits: dict[str, Any]) -> None:
    """The system accepts connections for a process that is stopped."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(Unavailable, match=f"no word from the server at {url} for 1 s"):
            HttpLine(url, **limits)
