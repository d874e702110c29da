"""A client's own record: what was answered once is not asked again."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import farm
from farm.call import NO_HINTS, Call, Hints, Operation, Result
from farm.client import Client
from farm.client.line import CallFuture, as_it_is, submit
from farm.client.recorded_line import RecordedLine
from farm.errors import FarmError, ModelFailed, Unavailable
from farm.model import Config, Inputs
from farm.record.entry import Entry, Status
from farm.record.file import entries_in
from tests.support.scripted_lines import HandLine, Inbox
from tests.support.time_limits import scaled

LIMIT_S = scaled(30.0)


class Square(farm.Model):
    inputs = {"x": 2}
    outputs = {"y": 2}
    version = "1"

    def __init__(self) -> None:
        self.ran: list[list[float]] = []

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        self.ran.append(inputs["x"].tolist())
        return inputs["x"] ** 2

    def gradient(self, out_wrt: int, in_wrt: int, inputs: Inputs, sens: Any, config: Config) -> Any:
        self.ran.append(sens.tolist())
        return 2 * inputs["x"] * sens


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "own.record"


def entries(path: Path) -> list[Entry]:
    return [e for e, _, _ in entries_in(path, lambda place: None) if isinstance(e, Entry)]


@pytest.mark.parametrize("native", [True, False], ids=["native", "http"])
def test_a_client_that_starts_again_asks_nothing_twice(path: Path, native: bool) -> None:
    square = Square()
    points = np.array([[1.0, 1.0], [2.0, 1.0], [3.0, 1.0], [2.0, 1.0]])
    run = path.with_name("run")
    with farm.serve(square, port=0, dir=run):
        target = run if native else json.loads((run / "farm.json").read_text())["url"]
        for _ in range(2):
            with farm.connect(target, record=path, reuse=True, client="me") as client:
                model = client.model()
                assert np.array_equal(model.map(points)[:, 0], [1.0, 4.0, 9.0, 4.0])
                assert [y[0] for y in model.map(list(points))] == [1.0, 4.0, 9.0, 4.0]
                assert dict(model.as_completed(list(points)))[3][0] == 4.0
                assert model([2.0, 1.0])[0] == 4.0
                assert model.submit([3.0, 1.0]).result()[0] == 9.0
                gradient = model.gradient(0, 0, [2.0, 1.0], [1.0, 0.0])
                assert gradient.tolist() == [4.0, 0.0]
                assert client.status()["client_record"]["trouble"] == ""
    assert sorted(square.ran) == [[1.0, 0.0], [1.0, 1.0], [2.0, 1.0], [3.0, 1.0]]
    assert {entry.client for entry in entries(path)} == {"me"}
    assert all(entry.worker and entry.run_time_s > 0 for entry in entries(path))


def test_another_version_is_asked_again(path: Path) -> None:
    square = Square()
    target = path.with_name("run")
    with farm.serve(square, dir=target):
        for version in ("", "7", "7", "8"):
            with farm.connect(target, record=path, reuse=True, version=version) as client:
                client.model()([1.0, 1.0])
    assert len(square.ran) == 3
    assert [entry.version for entry in entries(path)] == ["1", "7", "8"]


def test_two_clients_cannot_share_a_record(path: Path) -> None:
    run = path.with_name("run")
    with farm.serve(Square(), dir=run):
        first = farm.connect(run, record=path)
        with pytest.raises(Unavailable, match="is in use"):
            farm.connect(run, record=path)
        first.close()
        farm.connect(run, record=path).close()
    with pytest.raises(ValueError, match="reuse and version need record"):
        farm.connect("http://127.0.0.1:1", reuse=True)


# Calls for an evaluation that is under way


LIMITED = Hints(deadline_s=9.0)


class Own:
    """A client's record over a line that the test answers."""

    def __init__(self, path: Path, *, version: str = "1", reuse: bool = True) -> None:
        self.line = HandLine()
        self.recorded = RecordedLine(self.line, path, reuse=reuse, version=version)

    def ask(self, *x: float, hints: Hints = NO_HINTS) -> list[CallFuture[Result]]:
        calls = [Call("cube", Operation.EVALUATE, (np.array([v]),)) for v in x]
        return [submit(self.recorded, call, hints, as_it_is) for call in calls]

    def sent(self) -> list[float]:
        """Return the points that are under way."""
        return [float(call.inputs[0][0]) for _, call, _ in self.line.waiting.values()]


@pytest.fixture
def own(path: Path) -> Iterator[Own]:
    made = Own(path)
    yield made
    made.recorded.close()


def outcomes(futures: list[CallFuture[Result]]) -> list[tuple[float, bool]]:
    results = [future.result(LIMIT_S) for future in futures]
    return [(float(result.outputs[0][0]), result.reused) for result in results]


def test_equal_points_are_sent_once(own: Own, path: Path) -> None:
    first = own.ask(2.0, 3.0, 2.0)
    second = own.ask(3.0, 4.0, -0.0, 0.0)
    assert own.sent() == [2.0, 3.0, 4.0, 0.0]
    own.line.answer_all()
    assert outcomes(first) == [(8.0, False), (27.0, False), (8.0, True)]
    assert outcomes(second) == [(27.0, True), (64.0, False), (0.0, False), (0.0, True)]
    assert outcomes(own.ask(2.0, 3.0)) == [(8.0, True), (27.0, True)]
    assert own.sent() == []
    assert len(entries(path)) == 4


def test_nan_and_failures_are_shared_recorded_and_asked_again(own: Own, path: Path) -> None:
    twins = own.ask(1.0, 1.0)
    own.line.answer(*own.line.waiting, outcome=Result((np.array([np.nan]),)))
    assert [np.isnan(value) for value, _ in outcomes(twins)] == [True, True]
    twins = own.ask(1.0, 1.0)
    assert own.sent() == [1.0]
    own.line.answer(*own.line.waiting, outcome=ModelFailed("diverged"))
    assert [str(twin.exception(LIMIT_S)) for twin in twins] == ["diverged"] * 2
    own.ask(1.0)
    assert own.sent() == [1.0]
    assert [e.status for e in entries(path)] == [Status.NOT_FINITE, Status.FAILED]


def test_the_others_get_theirs_if_the_first_one_is_cancelled(own: Own) -> None:
    first, second, third = own.ask(2.0, 2.0, 2.0)
    assert first.cancel()
    assert third.cancel()
    assert (first.cancelled(), own.line.taken) == (True, [])
    own.line.answer_all()
    assert outcomes([second]) == [(8.0, False)]
    assert not second.cancel()


def test_a_call_ends_when_all_who_wait_for_it_cancel(own: Own) -> None:
    for future in own.ask(2.0, 2.0):
        assert future.cancel()
    assert (own.sent(), own.line.taken) == ([], [1])
    (again,) = own.ask(2.0)
    own.line.answer_all()
    assert outcomes([again]) == [(8.0, False)]


@pytest.mark.parametrize(
    ("first", "second"),
    [(NO_HINTS, Hints(priority=1)), (LIMITED, NO_HINTS), (NO_HINTS, LIMITED)],
    ids=["urgent", "limited", "then limited"],
)
def test_an_urgent_call_or_one_with_a_deadline_is_sent(
    own: Own, first: Hints, second: Hints
) -> None:
    futures = own.ask(2.0, hints=first) + own.ask(2.0, hints=second)
    assert own.sent() == [2.0, 2.0]
    own.line.answer_all()
    assert outcomes(futures) == [(8.0, False)] * 2


@pytest.mark.parametrize(("version", "reuse"), [("", True), ("1", False)])
def test_without_a_version_or_reuse_all_are_sent_and_kept(
    path: Path, version: str, reuse: bool, caplog: pytest.LogCaptureFixture
) -> None:
    own = Own(path, version=version, reuse=reuse)
    for _ in range(2):
        own.ask(2.0, 2.0)
        assert own.sent() == [2.0, 2.0]
        own.line.answer_all()
    own.recorded.close()
    assert len(entries(path)) == 4
    advice = 'farm.connect(..., version="1")'
    assert [advice in record.message for record in caplog.records] == [True] * (not version)


def test_who_waits_for_a_call_that_cannot_be_sent_is_told(
    own: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined: list[CallFuture[Result]] = []

    def refuse(*_: object) -> None:
        joined.extend(own.ask(2.0))
        raise Unavailable("the client is closed")

    with monkeypatch.context() as patched:
        patched.setattr(own.line, "send", refuse)
        with pytest.raises(Unavailable):
            own.ask(2.0)
    assert isinstance(joined[0].exception(LIMIT_S), Unavailable)
    own.ask(2.0)
    assert own.sent() == [2.0]


def test_a_call_cancelled_while_it_is_sent_is_cancelled_there(
    own: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = own.line.send

    def cancelled(*given: Any) -> Any:
        ids = send(*given)
        assert own.recorded.cancel([1])
        return ids

    monkeypatch.setattr(own.line, "send", cancelled)
    own.ask(2.0)
    assert (own.sent(), own.line.taken) == ([], [1])


def test_an_unknown_model_leaves_nothing_under_way(own: Own) -> None:
    calls = [Call(name, Operation.EVALUATE, (np.ones(1),)) for name in ("cube", "nobody")]
    with pytest.raises(FarmError, match="no nobody here"):
        own.recorded.send(list(enumerate(calls)), NO_HINTS, Inbox())
    future = submit(own.recorded, calls[0], NO_HINTS, as_it_is)
    own.line.answer_all()
    assert outcomes([future]) == [(1.0, False)]


def test_threads_share_what_is_under_way(path: Path) -> None:
    class Slow(Square):
        def evaluate(self, inputs: Inputs, config: Config) -> Any:
            go.wait(LIMIT_S)
            return super().evaluate(inputs, config)

    go, square = threading.Event(), Slow()
    points = np.array([[float(k % 5), 1.0] for k in range(40)])
    found: list[Any] = []

    def work(client: Client) -> None:
        found.append(client.model().map(points))

    run = path.with_name("run")
    with farm.serve(square, dir=run), farm.connect(run, record=path, reuse=True) as client:
        threads = [threading.Thread(target=work, args=(client,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        go.set()
        for thread in threads:
            thread.join(LIMIT_S)
    assert len(found) == 4
    for values in found:
        assert np.array_equal(values, points**2)
    assert sorted(square.ran) == [[float(k), 1.0] for k in range(5)]


FORKER = """
import os, signal, sys
from pathlib import Path
import farm
from farm.errors import Unavailable

target, record = sys.argv[1:]
client = farm.connect(target, record=record, reuse=True)
model = client.model()
assert model([1.0])[0] == 1.0
open_in_parent = model.submit([50.0])
child = os.fork()
if child == 0:
    signal.alarm(60)
    for x in (1.0, 1.0, 5.0):
        assert model([x])[0] == x**2
    assert [y[0] for y in model.map([[6.0], [6.0], [7.0]])] == [36.0, 36.0, 49.0]
    assert client.status()["client_record"]["trouble"] == "a forked process does not record"
    Path(record).with_name("go").touch()
    assert model([50.0])[0] == 2500.0  # its own, though the parent's is under way at the fork
    client.close()
    os._exit(0)
assert model([2.0])[0] == 4.0
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert open_in_parent.result(60)[0] == 2500.0
for x in (3.0, 2.0):
    assert model([x])[0] == x**2
try:
    farm.connect(target, record=record)
except Unavailable as error:
    assert "is in use" in str(error), error
else:
    raise AssertionError("the child released its parent's lock")
state = client.status()["client_record"]
assert (state["trouble"], state["points"]) == ("", 4), state
client.close()
"""


@pytest.mark.slow
def test_a_forked_process_records_nothing_and_works(
    run_forker: Callable[..., None], path: Path
) -> None:
    run_forker(FORKER, path)
    assert sorted(float(e.inputs[0][0]) for e in entries(path)) == [1.0, 2.0, 3.0, 50.0]
    assert not path.with_name(path.name + ".lock").exists()
