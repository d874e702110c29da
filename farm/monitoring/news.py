"""Logs the events of a farm: workers that join or are lost, and calls that fail.

Each is logged when it happens; events that repeat get one line every few seconds.
"""

from __future__ import annotations

import asyncio
import logging

from farm.call import WorkerInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.events import Departure
from farm.dispatcher.failing import Failure
from farm.monitoring.failures import STORY, shape_of_error
from farm.monitoring.repetitions import Later, Repetitions
from farm.monitoring.texts import cut, shape_of

log = logging.getLogger(__name__)

LONGEST_TEXT = 200
LONGEST_NAMES = 100

OTHERS = "%d more losses and failures for other reasons: farm failures"


class News:
    """Logs what happens at one farm, at a bounded rate.

    later: calls a function after a number of seconds; None: by the running event loop.
    """

    def __init__(self, dispatcher: Dispatcher, later: Later | None = None) -> None:
        later = later or (lambda s, do: asyncio.get_running_loop().call_later(s, do))
        self._repeats = Repetitions(log, later, OTHERS)
        self._workers: set[str] = set()
        dispatcher.on_joined.append(self.joined)
        dispatcher.on_left.append(self.left)
        dispatcher.on_failed.append(self.failed)

    def joined(self, info: WorkerInfo, before: WorkerInfo | None) -> None:
        """Report that a worker joined."""
        self._workers.add(info.name)
        models = cut(", ".join(model.name for model in info.models), LONGEST_NAMES)

        def line(count: int) -> str:
            number = len(self._workers)
            there = "1 worker" if number == 1 else f"{number} workers"
            if count == 1:
                return f"worker {info.name} joined: {models}; the farm has {there}"
            return f"{count} workers joined, the last is {info.name}; the farm has {there}"

        self._repeats.happened("joined", logging.INFO, 1, line)

    def left(self, info: WorkerInfo, departure: Departure) -> None:
        """Report that a worker left."""
        self._workers.discard(info.name)
        if departure.in_order:
            log.debug("worker %s left: %s", info.name, departure.reason)
            return
        reason = cut(departure.reason, LONGEST_TEXT)

        def line(count: int) -> str:
            if count == 1:
                return f"worker {info.name} lost: {reason}"
            return f"{count} workers lost: {reason}; the last is {info.name}"

        key = departure.cause, shape_of(departure.reason, info.name)
        self._repeats.happened(key, logging.WARNING, 1, line)

    def failed(self, failure: Failure) -> None:
        """Report calls that failed."""
        error, model = failure.error, failure.call.model
        kind = type(error).__name__
        message = error.message.partition("\n")[0].partition(STORY)[0]

        def line(count: int) -> str:
            calls = "a call" if count == 1 else f"{count} calls"
            last = "" if count == 1 else ", the last one"
            where = f"{last} on worker {failure.worker}" if failure.worker else ""
            return f"{calls} of model {model!r} failed{where}: {kind}: {cut(message, LONGEST_TEXT)}"

        key = model, kind, shape_of_error(failure)
        self._repeats.happened(key, logging.INFO, failure.calls, line)
