"""The restarts of a front door that crashed, for the status and the events of its farm."""

from __future__ import annotations

import time

from farm.dispatcher.dispatcher import Dispatcher
from farm.machine.keeper_line import keeper


def restarts() -> int:
    """Return how often the keeper of this front door has started one again; 0 without a keeper."""
    line = keeper()
    return 0 if line is None else line.restarts


def show_restarts(dispatcher: Dispatcher) -> None:
    """Show the last restart, if there was one, among the events and in the farm's status."""
    line = keeper()
    if line is None or not line.restarts:
        return
    shown = {"count": line.restarts, "reason": line.reason, "time": time.time()}
    dispatcher.note("started again", "front door", f"it {line.reason}; restart {line.restarts}")
    dispatcher.add_part("restarts", lambda: shown)
