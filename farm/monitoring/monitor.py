"""All parts that watch one farm, put together."""

from __future__ import annotations

from farm.dispatcher.dispatcher import Dispatcher
from farm.monitoring.call_log import CallLog
from farm.monitoring.counters import Counters
from farm.monitoring.failures import Failures
from farm.monitoring.history import History
from farm.monitoring.losses import Losses
from farm.monitoring.news import News
from farm.monitoring.progress import ProgressBoard
from farm.monitoring.spans import CallSpans
from farm.monitoring.tracing import Tracing
from farm.monitoring.what_failed import WhatFailed
from farm.monitoring.why import Why
from farm.monitoring.workers import WorkerFacts


class Monitor:
    """Watches the farm of a dispatcher; each part adds its data to the farm's snapshot.

    It is made and closed on the farm's event loop. tracing: sends spans of calls, if given.
    """

    def __init__(self, dispatcher: Dispatcher, tracing: Tracing | None = None) -> None:
        failures, losses, news = Failures(dispatcher.models()), Losses(), News()
        dispatcher.on_joined.append(news.joined)
        dispatcher.on_left += [losses.left, news.left]
        dispatcher.on_failed += [failures.failed, news.failed]
        dispatcher.add_part("failures", failures.snapshot)
        dispatcher.add_part("losses", losses.snapshot)
        dispatcher.offer("failures", WhatFailed(failures, losses).answer)
        Counters().watch(dispatcher)
        CallLog().watch(dispatcher)
        if tracing is not None:
            CallSpans(tracing).watch(dispatcher)
        self.why = Why(dispatcher)
        self.progress = ProgressBoard(dispatcher)
        self.workers = WorkerFacts(dispatcher)
        self._history = History(dispatcher)

    def close(self) -> None:
        """End what runs by a timer."""
        self._history.close()
