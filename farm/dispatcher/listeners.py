"""The functions by which other parts of a farm hear from its dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from farm.call import WorkerInfo
from farm.dispatcher.events import Departure
from farm.dispatcher.failing import OnFailed
from farm.scheduler.actions import Outcome
from farm.scheduler.state import Task, WorkerId
from farm.wire.usage import Used

OnJoined = Callable[[WorkerInfo, WorkerInfo | None], None]
OnLeft = Callable[[WorkerInfo, Departure], None]
OnAnswered = Callable[[Task, Outcome, float], None]
OnUsed = Callable[[WorkerId, Used], None]
OnShown = Callable[[list[dict[str, Any]], float], None]


class Listeners:
    """Lists of functions that the dispatcher calls on events and for each snapshot.

    on_joined: called with a worker that joined, and its earlier start if that has not left;
    on_left: with a worker that left, and how; on_answered: with a task, its last outcome and the
    monotonic time, before the caller gets that outcome; on_recorded: the same just after it, for
    numbers that a caller need not wait for; on_failed: like on_answered with calls that failed,
    each once, however many tasks it had; on_used: with a worker and what it uses; on_shown: with
    the rows of a snapshot's workers, to which it adds keys, and the monotonic time.
    """

    def __init__(self) -> None:
        self.on_joined: list[OnJoined] = []
        self.on_left: list[OnLeft] = []
        self.on_answered: list[OnAnswered] = []
        self.on_recorded: list[OnAnswered] = []
        self.on_failed: list[OnFailed] = []
        self.on_used: list[OnUsed] = []
        self.on_shown: list[OnShown] = []
        self.parts: dict[str, Callable[[], object]] = {}
        self._after_acting: list[Callable[[], None]] = []

    def after_acting(self, callback: Callable[[], None]) -> None:
        """Call `callback` each time after actions, which may include outcomes, are carried out."""
        self._after_acting.append(callback)

    def add_part(self, name: str, give: Callable[[], object]) -> None:
        """Add the JSON data that `give` returns to `snapshot`, under this name."""
        self.parts[name] = give
