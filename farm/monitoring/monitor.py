"""Puts all parts together that watch one farm."""

from __future__ import annotations

from farm.dispatcher.dispatcher import Dispatcher
from farm.monitoring.call_log import CallLog
from farm.monitoring.counters import Counters
from farm.monitoring.history import History
from farm.monitoring.news import News
from farm.monitoring.progress import ProgressBoard
from farm.monitoring.spans import CallSpans
from farm.monitoring.tracing import Tracing
from farm.monitoring.what_failed import WhatFailed
from farm.monitoring.why import Why
from farm.monitoring.workers import WorkerFacts


class Monitor:
    """Watches the farm of a dispatcher.

    Each part adds itself to the dispatcher in its constructor: functions that hear of events, data
    for the snapshot, answers to questions. A monitor is made and closed on the farm's event loop.
    tracing: sends spans of calls, if given.
    """

    def __init__(self, dispatcher: Dispatcher, tracing: Tracing | None = None) -> None:
        for part in (WhatFailed, News, Counters, CallLog, Why, ProgressBoard, WorkerFacts):
            part(dispatcher)
        if tracing is not None:
            CallSpans(dispatcher, tracing)
        self._history = History(dispatcher)

    def close(self) -> None:
        """End the part that runs by a timer."""
        self._history.close()
