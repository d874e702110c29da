"""The last events of a farm, for people: workers and jobs that come and go."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from farm.call import WorkerInfo
from farm.errors import LossCause

EVENTS_KEPT = 100


@dataclass(frozen=True, slots=True)
class Departure:
    """How a worker left.

    reason: in words; cause: the same for programs; detail: more lines about it, such as the end of
    its log; drained: whether it left when it was asked to.
    """

    reason: str
    cause: LossCause = LossCause.UNKNOWN
    detail: str = ""
    drained: bool = False

    @property
    def in_order(self) -> bool:
        """Whether it left because it was asked to; it then does not count as lost."""
        return self.drained or self.cause is LossCause.STOPPED


class Events:
    """The last `EVENTS_KEPT` events."""

    def __init__(self) -> None:
        self._last: deque[dict[str, Any]] = deque(maxlen=EVENTS_KEPT)

    def joined(self, info: WorkerInfo, before: WorkerInfo | None) -> None:
        """Report that a worker joined; `before` is its earlier start, if that has not left."""
        self.note("joined", info.name, ", ".join(model.name for model in info.models))

    def left(self, info: WorkerInfo, departure: Departure) -> None:
        """Report that a worker left."""
        self.note("left" if departure.in_order else "lost", info.name, departure.reason)

    def note(self, event: str, subject: str, text: str) -> None:
        """Record an event for `farm status`. subject: the worker or job; text: the reason."""
        self._last.append({"time": time.time(), "event": event, "worker": subject, "text": text})

    def snapshot(self) -> list[dict[str, Any]]:
        """Return the events as JSON data, the latest last."""
        return list(self._last)
