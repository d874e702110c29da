"""A supervisor's line, at a scripted dispatcher."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from farm.errors import LossCause
from farm.transports import reporter as module
from farm.transports.reporter import Reporter
from farm.wire import messages as wire
from farm.wire.messages import Kind
from tests.support.coroutines import wait_until
from tests.transports.peers import Desk

NAME = "node1/1-a"


def lose(reporter: Reporter, running: Sequence[int] | None) -> None:
    reporter.lost(
        NAME, "signal SIGKILL", running=running, row=7, cause=LossCause.CRASH, detail="the end"
    )


def test_reporter_introduces_itself_and_reports(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    reporter = Reporter(desk.connection, "node1/1")
    assert wire.decode_loss(desk.hear(Kind.LOST)) is None
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
    reporter.close()


def test_reporter_hears_when_to_stop(desk: Desk) -> None:
    reporter = Reporter(desk.connection, "node1/1")
    desk.hear(Kind.LOST)
    desk.send([b"nonsense"])
    desk.say(Kind.PROBE)
    assert not reporter.stop_asked()
    desk.say(Kind.STOP)
    wait_until(reporter.stop_asked)
    assert reporter.stop_asked()
    reporter.close()


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


def test_reporter_hears_which_workers_to_restart(desk: Desk) -> None:
    reporter = Reporter(desk.connection, "node1/1")
    desk.hear(Kind.LOST)
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
    reporter.close()
