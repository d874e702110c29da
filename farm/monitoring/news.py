"""What happens at a farm, as lines of its log: workers that join or are lost, calls that fail.

Each is logged when it happens, but of what happens again and again a line every few seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from farm.call import WorkerInfo
from farm.dispatcher.events import Departure
from farm.dispatcher.failing import Failure
from farm.monitoring.failures import STORY, shape_of_error
from farm.monitoring.texts import cut, shape_of

log = logging.getLogger(__name__)

EVERY_S = 5.0
"""Time in seconds between two lines about the same."""

MOST_KINDS = 20
"""Most different things that are logged in that time; a last line has the number of the others."""

LONGEST_TEXT = 200
LONGEST_NAMES = 100

Later = Callable[[float, Callable[[], None]], object]
Line = Callable[[int], str]


@dataclass(slots=True)
class _Unsaid:
    """What happened since the last line about it: how often, and the words for the last time."""

    level: int
    count: int
    line: Line


class News:
    """Logs what happens at one farm, at a bounded rate.

    later: calls a function after so many seconds; None: by the running event loop.
    """

    def __init__(self, later: Later | None = None) -> None:
        self._later = later or (lambda s, do: asyncio.get_running_loop().call_later(s, do))
        self._held: dict[object, _Unsaid] = {}
        self._others = 0
        self._is_waiting = False
        self._workers: set[str] = set()

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

        self._happened("joined", logging.INFO, 1, line)

    def left(self, info: WorkerInfo, departure: Departure) -> None:
        """Report that a worker left."""
        self._workers.discard(info.name)
        if departure.drained:
            log.debug("worker %s left: %s", info.name, departure.reason)
            return
        reason = cut(departure.reason, LONGEST_TEXT)

        def line(count: int) -> str:
            if count == 1:
                return f"worker {info.name} lost: {reason}"
            return f"{count} workers lost: {reason}; the last is {info.name}"

        key = departure.cause, shape_of(departure.reason, info.name)
        self._happened(key, logging.WARNING, 1, line)

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
        self._happened(key, logging.INFO, failure.calls, line)

    def _happened(self, key: object, level: int, count: int, line: Line) -> None:
        """Log a line now, or count for the next one. line: returns it for a number of times."""
        held = self._held.get(key)
        if held is not None:
            held.count, held.line = held.count + count, line
            return
        if not log.isEnabledFor(level):
            return
        if len(self._held) >= MOST_KINDS:
            self._others += count
            return
        log.log(level, "%s", line(count))
        self._held[key] = _Unsaid(level, 0, line)
        self._wait()

    def _wait(self) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            self._later(EVERY_S, self._tell)

    def _tell(self) -> None:
        """Log what happened meanwhile, and forget what did not happen again."""
        self._is_waiting = False
        before, self._held = self._held, {}
        for key, held in before.items():
            if held.count:
                log.log(held.level, "%s", held.line(held.count))
                self._held[key] = _Unsaid(held.level, 0, held.line)
        if self._others:
            log.info("%d more losses and failures for other reasons: farm failures", self._others)
            self._others = 0
        if self._held:
            self._wait()
