"""The events of a farm and the functions that receive them: joins, losses, failures, answers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from farm.call import WorkerInfo
from farm.dispatcher.ended import EndedCalls
from farm.errors import LossCause
from farm.scheduler.actions import Outcome
from farm.scheduler.state import Task, TaskId, WorkerId
from farm.wire.usage import Used

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


class Listeners:
    """The last events, and lists of functions that the dispatcher calls on some, and for snapshots.

    on_joined: called with a worker that joined, and its earlier start if that has not left;
    on_left: with a worker that left, and how; on_answered: with a task, its last outcome and the
    monotonic time, before the caller gets that outcome; on_used: with a worker and what it uses;
    on_shown: with the rows of a snapshot's workers, to which it adds keys, and the monotonic time.
    beginning: by task, called just before the task is sent to a worker. ended: the stream of ended
    calls, for the windows that count them. events: the last `EVENTS_KEPT`, as JSON data.
    """

    def __init__(self) -> None:
        self.on_joined: list[Callable[[WorkerInfo, WorkerInfo | None], None]] = []
        self.on_left: list[Callable[[WorkerInfo, Departure], None]] = []
        self.on_answered: list[Callable[[Task, Outcome, float], None]] = []
        self.on_used: list[Callable[[WorkerId, Used], None]] = []
        self.on_shown: list[Callable[[list[dict[str, Any]], float], None]] = []
        self.ended = EndedCalls()
        self.beginning: dict[TaskId, Callable[[], object]] = {}
        self.parts: dict[str, Callable[[], object]] = {}
        self.events: deque[dict[str, Any]] = deque(maxlen=EVENTS_KEPT)

    def note(self, event: str, subject: str, text: str) -> None:
        """Record an event for `farm status`. subject: the worker or job; text: the reason."""
        self.events.append({"time": time.time(), "event": event, "worker": subject, "text": text})

    def add_part(self, name: str, give: Callable[[], object]) -> None:
        """Add the JSON data that `give` returns to `snapshot`, under this name."""
        self.parts[name] = give
