"""Restarts of a front door in the farm's status and events."""

from __future__ import annotations

import os
import socket
import time

import pytest

from farm.dispatcher.dispatcher import Dispatcher
from farm.machine import keeper as parent
from farm.machine.keeper_line import keeper
from farm.server.restarts import restarts, show_restarts


def test_a_farm_without_a_keeper_shows_none() -> None:
    dispatcher = Dispatcher([])
    show_restarts(dispatcher)
    assert restarts() == 0
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
        assert restarts() == count
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
