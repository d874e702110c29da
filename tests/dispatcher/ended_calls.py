"""Tasks and ended calls as tests make them, and what failed of a dispatcher's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farm.call import Operation
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.ended import ANSWERED, EndedCall, EndedCalls, Failure
from farm.scheduler.actions import Outcome, Reply
from farm.scheduler.state import Attempt, Task
from tests.support.scheduler_recorder import Recorder, call, model


def answer(
    done: int, failed: int, at: float, worker_s: float = 0.0, /, *, client: str = "me", **more: Any
) -> EndedCall:
    """Return the record of an answer that counts as some calls."""
    return EndedCall(
        *(ANSWERED, "m", Operation.EVALUATE, client, 0.0, at, done, failed),
        worker_s=worker_s,
        **more,
    )


def task(
    *,
    rows: int | None = None,
    operation: Operation = Operation.EVALUATE,
    max_batch: int = 1,
    began: float = 0.0,
    alone: bool = True,
    refill: bool = False,
) -> Task:
    """Return a task of the client `me`, which worker `w` has had since it was submitted."""
    farm = Recorder()
    farm.now = began
    farm.join("w", model(max_batch=max_batch))
    task = farm.task(farm.submit(call(operation=operation, rows=rows), client="me"))
    task.attempt = Attempt(farm.worker("w"), None, 0, 0.0, began, 1, alone=alone, refill=refill)
    return task


class AtOnce(EndedCalls):
    """A stream that folds each record at once, without an event loop."""

    def add(self, ended: EndedCall) -> None:
        self._new.append(ended)
        self.fold()

    def end(
        self, task: Task, outcome: Outcome, now: float, *, calls: int = 1, fails: int = 0
    ) -> None:
        """Record the outcome of a task."""
        worker = task.attempt.worker.id if hasattr(task, "attempt") else None
        self.answered(Reply(task, outcome, 0.0, worker), outcome, calls, fails, now)


class Failures:
    """The failures of a dispatcher's calls, in their order."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._stream = dispatcher.ended
        self._heard: list[Failure] = []
        self._stream.add_window(self)

    def fold(self, records: Sequence[EndedCall]) -> None:
        self._heard += [each.failure for each in records if each.failure is not None]

    def __call__(self) -> list[Failure]:
        """Return them."""
        self._stream.fold()
        return self._heard
