"""The action `stop` of a farm, and restarts of its front door in its status and events."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

import farm
from farm.client import connect
from farm.dispatcher.dispatcher import Dispatcher
from farm.errors import UnsupportedFeature
from farm.machine import keeper as parent
from farm.machine.keeper_line import keeper
from farm.server.farm import Farm
from farm.server.in_process import running
from farm.server.lifecycle import offer_stop, show_restarts
from farm.settings import Settings
from tests.support.coroutines import wait_until
from tests.support.dispatcher_farm import BEAM


@pytest.mark.slow
@pytest.mark.parametrize(("now", "grace_s"), [("true", 0.0), ("false", 7.0), ("", 7.0)])
def test_the_answer_says_what_has_to_end(tmp_path: Path, now: str, grace_s: float) -> None:
    (tmp_path / "beam.py").write_text(BEAM)
    settings = Settings(port=0, dir=tmp_path / "run", workers=2, grace_s=7.0)
    served = Farm([str(tmp_path / "beam.py")], settings)
    asked: list[bool] = []
    with running(served), connect(tmp_path / "run") as client:
        offer_stop(served.dispatcher, settings.grace_s, asked.append)
        wait_until(lambda: len(client.status()["workers"]) == 2)
        told = client.ask("stop", now=now)
        assert {k: told[k] for k in ("processes", "running", "queued", "workers", "jobs")} == {
            "processes": [os.getpid()],
            "running": 0,
            "queued": 0,
            "workers": 2,
            "jobs": 0,
        }
        assert told["grace_s"] == grace_s
        wait_until(lambda: bool(asked))
    assert asked == [now == "true"]


def test_a_farm_in_another_program_offers_no_stop(tmp_path: Path) -> None:
    class Half(farm.Model):
        inputs = {"x": 1}
        outputs = {"y": 1}

        def evaluate(self, inputs: Any, config: Any) -> Any:
            return {"y": inputs["x"] / 2}

    settings = Settings(port=0, dir=tmp_path / "run")
    with running(Farm([], settings, objects={"half": Half()}, doors=False)):
        client = connect(tmp_path / "run")
        with client, pytest.raises(UnsupportedFeature, match="no question 'stop'"):
            client.ask("stop")


def test_a_farm_without_a_keeper_shows_none() -> None:
    dispatcher = Dispatcher([])
    show_restarts(dispatcher)
    assert "restarts" not in dispatcher.snapshot()
    assert dispatcher.snapshot()["events"] == []


@pytest.mark.parametrize("count", [0, 2])
def test_restarts_are_shown(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    keeper.cache_clear()
    ours, theirs = socket.socketpair()
    monkeypatch.setenv(parent.LINE, str(theirs.detach()))
    ours.sendall(f"restarts {count} was killed by signal 9 (SIGKILL)\ngo\n".encode())
    dispatcher = Dispatcher([])
    try:
        show_restarts(dispatcher)
        snapshot = dispatcher.snapshot()
        if not count:
            assert "restarts" not in snapshot
            return
        shown = snapshot["restarts"]
        assert (shown["count"], shown["reason"]) == (2, "was killed by signal 9 (SIGKILL)")
        assert abs(shown["time"] - time.time()) < 60.0
        (event,) = snapshot["events"]
        assert event["text"] == "it was killed by signal 9 (SIGKILL); restart 2"
    finally:
        line = keeper()
        assert line is not None
        line._line.close()
        ours.close()
        keeper.cache_clear()
    assert parent.LINE not in os.environ
