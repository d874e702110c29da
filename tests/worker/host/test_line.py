"""The lines of workers and supervisors: silences, and reports of use."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from farm.errors import LossCause
from farm.transports.connection import Connection
from farm.wire import messages as wire
from farm.wire.messages import Kind
from farm.worker.host import line as module
from farm.worker.host.line import (
    LONGEST_SILENCE,
    REPORT_EVERY_S,
    REPORT_IDLE_S,
    DispatcherSilence,
    Reporter,
    UseReports,
)
from tests.support.coroutines import wait_until
from tests.support.scripted_peers import Desk

NAME = "node1/1-a"

# Silences of a dispatcher


class Dispatcher:
    """Counts the connections to it, and how long it has said nothing."""

    is_up = True
    dialed = 0

    def lose_after(self, limit_s: float) -> None:
        self.silence = DispatcherSilence(Connection("tcp://made-up:1"), limit_s)

    def accepts(self, connection: Connection) -> bool:
        self.dialed += 1
        return self.is_up

    def lost_after(self, *times_s: float) -> list[bool]:
        """Whether it is lost after each of these silences."""
        found = []
        for silent_s in times_s:
            self.silence.silent_s = silent_s
            found.append(self.silence.is_lost())
        return found


@pytest.fixture
def dispatcher(monkeypatch: pytest.MonkeyPatch) -> Dispatcher:
    """One that is lost after a minute."""
    made = Dispatcher()
    made.lose_after(60.0)
    monkeypatch.setattr(module, "accepts", made.accepts)
    return made


def test_one_that_refuses_connections_is_lost_at_the_limit(dispatcher: Dispatcher) -> None:
    dispatcher.is_up = False
    assert not any(dispatcher.lost_after(*range(60)))
    assert dispatcher.lost_after(60.0) == [True]
    assert dispatcher.dialed == 3


def test_one_that_is_heard_is_not_dialed(dispatcher: Dispatcher) -> None:
    assert not any(dispatcher.lost_after(0.0, 5.0, 19.9, 0.0, 19.9, 1.0))
    assert dispatcher.dialed == 0


def test_one_that_accepts_connections_is_waited_for_and_has_an_heir(dispatcher: Dispatcher) -> None:
    """When it ends after a long silence, another server has time to take over."""
    assert not any(dispatcher.lost_after(*range(3000)))
    assert dispatcher.dialed < 3000 / 60 * 3
    dispatcher.is_up = False
    assert not any(dispatcher.lost_after(*range(3000, 3040)))
    assert any(dispatcher.lost_after(*range(3040, 3061)))


def test_a_connection_that_gets_through_or_a_word_starts_the_count_anew(
    dispatcher: Dispatcher,
) -> None:
    dispatcher.is_up = False
    assert dispatcher.lost_after(20.0, 40.0) == [False, False]
    dispatcher.is_up = True
    assert dispatcher.lost_after(60.0) == [False]
    dispatcher.is_up = False
    assert dispatcher.lost_after(80.0, 100.0, 0.0, 20.0, 40.0, 60.0) == [False] * 5 + [True]


def test_nobody_waits_for_ever_for_whoever_has_the_port_now(dispatcher: Dispatcher) -> None:
    dispatcher.lose_after(1.0)
    assert dispatcher.lost_after(LONGEST_SILENCE - 0.01, LONGEST_SILENCE + 0.01) == [False, True]


def test_without_a_limit_none_is_lost(dispatcher: Dispatcher) -> None:
    dispatcher.lose_after(math.inf)
    dispatcher.is_up = False
    assert not any(dispatcher.lost_after(0.0, 1e9))
    assert dispatcher.dialed == 0


# Reports of use


def intervals(reports: UseReports, count: int, *, busy: bool) -> list[float]:
    """The times between the next reports."""
    found = []
    for _ in range(count):
        now = reports.at
        assert reports.next(now, busy=busy).memory_bytes is not None
        found.append(reports.at - now)
    return found


def test_an_idle_worker_reports_less_and_less_often() -> None:
    reports = UseReports([os.getpid()])
    found = intervals(reports, 8, busy=False)
    assert found[:2] == [REPORT_EVERY_S, 2 * REPORT_EVERY_S]
    assert found == sorted(found)
    assert found[-1] == REPORT_IDLE_S


def test_calls_bring_the_usual_interval_back() -> None:
    reports = UseReports([os.getpid()])
    intervals(reports, 8, busy=False)
    last_at = reports.at - REPORT_IDLE_S
    reports.has_calls()
    assert reports.at == last_at + REPORT_EVERY_S
    assert set(intervals(reports, 3, busy=True)) == {REPORT_EVERY_S}


# A supervisor's line


@pytest.fixture
def reporter(desk: Desk) -> Iterator[Reporter]:
    """One that has introduced itself."""
    made = Reporter(desk.connection, "node1/1")
    assert wire.decode_loss(desk.hear(Kind.LOST)) is None
    yield made
    made.close()


def lose(reporter: Reporter, running: Sequence[int] | None) -> None:
    reporter.lost(wire.Loss(NAME, "signal SIGKILL", running, LossCause.CRASH, 7, "the end"))


def test_reporter_introduces_itself_and_reports(
    desk: Desk, reporter: Reporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert desk.peer == b"supervisor:node1/1"
    lose(reporter, (1, 2))
    assert wire.decode_loss(desk.hear(Kind.LOST)) == (
        NAME,
        "signal SIGKILL",
        [1, 2],
        LossCause.CRASH,
        7,
        "the end",
    )
    lose(reporter, None)
    loss = wire.decode_loss(desk.hear(Kind.LOST))
    assert loss is not None
    assert loss.running is None
    monkeypatch.setattr(module, "INTRODUCE_EVERY_S", 0.0)
    assert not reporter.stop_asked()
    assert wire.decode_loss(desk.hear(Kind.LOST)) is None  # to introduce itself to a new dispatcher


def test_reporter_hears_when_to_stop(desk: Desk, reporter: Reporter) -> None:
    desk.send([b"nonsense"])
    desk.say(Kind.PROBE)
    assert not reporter.stop_asked()
    desk.say(Kind.STOP)
    wait_until(reporter.stop_asked)
    assert reporter.stop_asked()


def test_last_word_of_a_reporter_still_leaves(desk: Desk) -> None:
    reporter = Reporter(desk.connection, "node1/1")
    lose(reporter, [])
    reporter.close()
    desk.hear(Kind.LOST)
    loss = wire.decode_loss(desk.hear(Kind.LOST))
    assert loss is not None
    assert loss.running == []


def test_a_reporter_finds_the_next_dispatcher_in_the_same_place(tmp_path: Path) -> None:
    first = Desk(tmp_path)
    reporter = Reporter(first.connection, "node1/1")
    first.hear(Kind.LOST)
    first.close()
    assert not reporter.stop_asked()
    lose(reporter, [])  # without effect
    second = Desk(tmp_path)
    wait_until(lambda: not reporter.stop_asked() and not second.silent(0.0))
    assert wire.decode_loss(second.hear(Kind.LOST)) is None
    lose(reporter, [])
    assert wire.decode_loss(second.hear(Kind.LOST)) is not None
    reporter.close()
    second.close()


def test_reporter_hears_which_workers_to_restart(desk: Desk, reporter: Reporter) -> None:
    desk.say(Kind.RESTART, "nonsense")
    desk.say(Kind.RESTART, [NAME])
    desk.say(Kind.RESTART, ["another"])
    found: list[str] = []

    def heard() -> bool:
        assert not reporter.stop_asked()
        found.extend(reporter.to_restart())
        return len(found) == 2

    wait_until(heard)
    assert found == [NAME, "another"]
    assert reporter.to_restart() == []
