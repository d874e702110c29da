"""The native client's thread when the dispatcher is lost: at scripted dispatchers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farm.call import EMPTY_CONFIG, Hints
from farm.client import native_end
from farm.client.native_line import NativeLine
from farm.errors import DeadlineExceeded, Unavailable, WorkerLost
from farm.transports.connection import Connection
from farm.wire import messages as wire
from farm.wire.messages import Kind
from tests.client.test_native_line import double, heard, send
from tests.support.coroutines import LIMIT_S, wait_until
from tests.support.scripted_peers import CUBE, ONCE, Desk, value
from tests.support.time_limits import scaled

PATIENCE_S = scaled(0.6)


class Places:
    """The connection file, and the desks of the front doors that wrote it one after the other."""

    def __init__(self, road: Path | None) -> None:
        self._road = road
        self.desks: list[Desk] = []
        self.restart()

    @property
    def desk(self) -> Desk:
        return self.desks[-1]

    def read(self) -> Connection:
        return self.desk.connection

    def restart(self) -> None:
        """Start another front door, elsewhere."""
        folder = None
        if self._road is not None:
            folder = self._road / str(len(self.desks))
            folder.mkdir()
        self.desks.append(Desk(folder))

    def line(self, patience_s: float = 60.0) -> NativeLine:
        file: Any = self
        return NativeLine(self.desk.connection, file=file, patience_s=patience_s)

    def close(self) -> None:
        for desk in self.desks:
            desk.close()


class Clock:
    """A clock that may jump ahead."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s


@pytest.fixture
def places(road: Path | None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Places]:
    monkeypatch.setattr(native_end, "TICK_S", 0.02)
    places = Places(road)
    yield places
    places.close()


@pytest.fixture
def line(places: Places) -> Iterator[NativeLine]:
    line = places.line()
    yield line
    line.close()


def described(desk: Desk, line: NativeLine) -> None:
    """Let the farm describe its models to the line."""

    def tell() -> None:
        asked = desk.hear(Kind.ASK, skip=True).data
        desk.say(Kind.TELL, {"id": asked["id"], "models": [CUBE.to_json(), ONCE.to_json()]})

    teller = threading.Thread(target=tell)
    teller.start()
    assert line.names() == ["cube", "once"]
    teller.join()


def test_open_calls_and_questions_follow_a_farm_that_listens_elsewhere(
    places: Places, line: NativeLine
) -> None:
    described(places.desk, line)
    future = send(line, 3.0)
    heard(places.desk)
    places.desk.say(Kind.WELCOME, 5)
    lost = places.desk
    places.restart()
    lost.close()
    again = heard(places.desk, kind=Kind.CALLS_AGAIN)
    places.desk.say(Kind.WELCOME, 6)
    assert places.desk.silent(0.2)  # once is enough
    double(places.desk, again)
    assert value(future.result(LIMIT_S)) == 6.0
    described(places.desk, line)


def test_questions_without_an_answer_are_asked_again(places: Places, line: NativeLine) -> None:
    described(places.desk, line)
    names: list[str] = []
    asker = threading.Thread(target=lambda: names.extend(line.names()))
    asker.start()
    places.desk.hear(Kind.ASK)
    lost = places.desk
    places.restart()
    lost.close()
    asked = places.desk.hear(Kind.ASK).data
    places.desk.say(Kind.TELL, {"id": asked["id"], "models": [CUBE.to_json()]})
    asker.join(LIMIT_S)
    assert names == ["cube"]


@pytest.mark.parametrize("road", ["stream"], indirect=True)
def test_calls_that_were_never_sent_are_sent_as_new(places: Places, line: NativeLine) -> None:
    """A call made while there is no farm has not run, whatever the model.

    What the lost farm was sent, the next one is sent as such, and says what has become of it.
    """
    described(places.desk, line)
    sent = send(line, 1.0, "once")
    heard(places.desk)
    places.desk.close()
    wait_until(lambda: line._end is not None and line._end._line.ended())
    once, often = send(line, 2.0, "once"), send(line, 3.0)
    places.restart()
    again = heard(places.desk, kind=Kind.CALLS_AGAIN)
    assert len(again) == 1
    refused = [(i, Unavailable("the farm is starting")) for i in again]
    places.desk.send(wire.encode_answers(refused))
    double(places.desk, heard(places.desk, 2))
    assert heard(places.desk, kind=Kind.CALLS_AGAIN).keys() == again.keys()
    lost = [(i, WorkerLost("it may have run")) for i in again]
    places.desk.send(wire.encode_answers(lost))
    assert isinstance(sent.exception(LIMIT_S), WorkerLost)
    assert value(once.result(LIMIT_S)) == 4.0
    assert value(often.result(LIMIT_S)) == 6.0
    assert places.desk.silent()


def test_a_starting_farm_is_asked_again(places: Places, line: NativeLine) -> None:
    described(places.desk, line)
    for model in ("cube", "once"):
        future = send(line, 3.0, model)
        for _ in range(2):
            (call_id,) = heard(places.desk)
            places.desk.send(wire.encode_answers([(call_id, Unavailable("the farm is starting"))]))
        double(places.desk, heard(places.desk))
        assert value(future.result(LIMIT_S)) == 6.0


def test_deadlines_hold_without_a_farm(places: Places, line: NativeLine) -> None:
    future = send(line, 3.0, hints=Hints(deadline_s=PATIENCE_S))
    heard(places.desk)
    places.desk.close()
    assert isinstance(future.exception(LIMIT_S), DeadlineExceeded)


def test_patience_ends(places: Places) -> None:
    line = places.line(patience_s=PATIENCE_S)
    described(places.desk, line)
    future, once = send(line, 3.0), send(line, 1.0, "once")
    heard(places.desk, 2)
    places.desk.close()
    error = future.exception(LIMIT_S)
    assert isinstance(error, Unavailable)
    assert "no word from the farm" in error.message
    assert isinstance(once.exception(LIMIT_S), WorkerLost)  # it may have run
    with pytest.raises(Unavailable):
        line.describe("cube", EMPTY_CONFIG)
    line.close()


def test_each_caller_has_the_whole_patience(places: Places) -> None:
    """Also one that calls long after the others gave up: the farm may be back."""
    line = places.line(patience_s=PATIENCE_S)
    assert isinstance(send(line, 1.0).exception(LIMIT_S), Unavailable)
    time.sleep(1.2 * PATIENCE_S)
    future = send(line, 2.0)
    calls = heard(places.desk, 2)
    time.sleep(0.4 * PATIENCE_S)
    assert not future.done()
    double(places.desk, calls)
    assert value(future.result(LIMIT_S)) == 4.0
    line.close()


def test_a_short_patience_outlasts_a_long_call(places: Places) -> None:
    """Over the local stream a well farm says nothing of its own during a call."""
    line = places.line(patience_s=PATIENCE_S)
    future = send(line, 3.0)
    calls = heard(places.desk)
    for _ in range(10):  # together more than the patience
        places.desk.hear(Kind.PROBE)
        places.desk.say(Kind.WELCOME, 5)
    double(places.desk, calls)
    assert value(future.result(LIMIT_S)) == 6.0
    line.close()


def test_time_in_which_the_client_was_stopped_is_no_silence(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_end, "ASK_AFTER_SILENCE_S", 0.1)
    line = places.line()
    future = send(line, 3.0)
    calls = heard(places.desk)
    clock = Clock()
    monkeypatch.setattr(native_end, "time", clock)
    clock.ahead_s = 100.0
    places.desk.hear(Kind.PROBE)
    double(places.desk, calls)
    assert value(future.result(LIMIT_S)) == 6.0
    line.close()


def test_a_closed_line_does_not_dial(places: Places, line: NativeLine) -> None:
    described(places.desk, line)
    places.desk.close()
    line.close()
    with pytest.raises(Unavailable, match="is closed"):
        send(line, 1.0)
