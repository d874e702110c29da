"""Puts all parts together that watch one farm."""

from __future__ import annotations

import logging

from farm.dispatcher.dispatcher import Dispatcher
from farm.monitoring.counters import Counters
from farm.monitoring.failures import Failures
from farm.monitoring.history import History
from farm.monitoring.news import News, calls_log, log_call
from farm.monitoring.progress import ProgressBoard
from farm.monitoring.tracing import Tracing
from farm.monitoring.why import Why
from farm.monitoring.workers import WorkerFacts


def watch(dispatcher: Dispatcher, tracing: Tracing | None = None) -> History:
    """Watch the farm of a dispatcher, until the part that is returned is closed: it has a timer.

    Each part adds itself to the dispatcher in its constructor: functions that hear of events, data
    for the snapshot, answers to questions. Call it on the farm's event loop.
    tracing: sends spans of calls, if given.
    """
    for part in (Failures, News, Counters, Why, ProgressBoard, WorkerFacts):
        part(dispatcher)
    if calls_log.isEnabledFor(logging.INFO):  # most logs leave calls out
        dispatcher.on_answered.append(log_call)
    if tracing is not None:
        dispatcher.on_answered.append(tracing.answered)
    return History(dispatcher)
