"""Logs the events of a farm: workers that join or are lost, and calls that fail.

Each is logged when it happens; events that repeat get one line every few seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from farm.call import Result, WorkerInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.ended import EndedCall, Failure
from farm.dispatcher.events import Departure
from farm.monitoring.failures import STORY, shape_of_error
from farm.monitoring.repetitions import Repetitions, cut, shape_of
from farm.scheduler.actions import Outcome
from farm.scheduler.state import Task
from farm.wording import counted

log = logging.getLogger(__name__)

LONGEST_TEXT = 200
LONGEST_NAMES = 100


class News(Repetitions):
    """Logs what happens at one farm, at a bounded rate."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        super().__init__(log, "%d more losses and failures for other reasons: farm failures")
        self._workers: set[str] = set()
        dispatcher.on_joined.append(self.joined)
        dispatcher.on_left.append(self.left)
        dispatcher.ended.add_window(self)

    def report_later(self, seconds: float) -> None:
        """Call `report` on the running event loop."""
        asyncio.get_running_loop().call_later(seconds, self.report)

    def joined(self, info: WorkerInfo, before: WorkerInfo | None) -> None:
        """Report that a worker joined."""
        self._workers.add(info.name)
        models = cut(", ".join(model.name for model in info.models), LONGEST_NAMES)

        def line(count: int) -> str:
            there = counted(len(self._workers), "worker")
            if count == 1:
                return f"worker {info.name} joined: {models}; the farm has {there}"
            return f"{count} workers joined, the last is {info.name}; the farm has {there}"

        self.happened("joined", logging.INFO, 1, line)

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
        self.happened(key, logging.WARNING, 1, line)

    def fold(self, records: Sequence[EndedCall]) -> None:
        """Report the calls that failed since the last time."""
        for ended in records:
            if ended.failure is not None:
                self.failed(ended.failure)

    def failed(self, failure: Failure) -> None:
        """Report calls that failed."""
        error, model = failure.error, failure.call.model
        kind = type(error).__name__
        message = error.message.partition("\n")[0].partition(STORY)[0]

        def line(count: int) -> str:
            calls = "a call" if count == 1 else counted(count, "call")
            last = "" if count == 1 else ", the last one"
            where = f"{last} on worker {failure.worker}" if failure.worker else ""
            return f"{calls} of model {model!r} failed{where}: {kind}: {cut(message, LONGEST_TEXT)}"

        key = model, kind, shape_of_error(failure)
        self.happened(key, logging.INFO, failure.calls, line)


calls_log = logging.getLogger("farm.calls")


def log_call(task: Task, outcome: Outcome, now: float) -> None:
    """Log the last answer to a task of a call with an id. now: monotonic time."""
    call = task.call
    origin = call.origin
    if origin is None:
        return
    fields = {
        "call": origin.call_id,
        "client": origin.client,
        "model": call.model,
        "operation": call.operation.value,
    }
    text = f"call {origin.call_id}: {call.operation.value} of model {call.model!r}"
    after = f"after {now - task.submitted_at:.6f} s"
    error = outcome.failed if isinstance(outcome, Result) else outcome
    if isinstance(outcome, Result) and error is None:
        fields["worker"] = outcome.worker
        text += f" answered {after}, of which {outcome.run_time_s:.6f} s in the model"
    else:
        text += f" failed {after}: {type(error).__name__}: {error}"
    calls_log.info("%s", text, extra=fields)
