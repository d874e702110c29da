"""Spans of calls: how long each waited, and which workers ran it.

They are made when a call ends, from the record of its task, so they cost a running call nothing.
"""

from __future__ import annotations

import time
from operator import attrgetter
from typing import NamedTuple

from farm.call import Result
from farm.dispatcher.dispatcher import Dispatcher
from farm.errors import FarmError, TimeLimitExceeded, WorkerLost
from farm.monitoring.tracing import Attributes, Tracing
from farm.scheduler.actions import Outcome
from farm.scheduler.phases import ANSWERED, LOST, RETURNED
from farm.scheduler.state import Attempt, Task


class SpanStep(NamedTuple):
    """A wait or a run of a task; times are monotonic. attempt: None for a wait."""

    began: float
    ended: float
    attempt: Attempt | None = None

    @property
    def name(self) -> str:
        """The name of its span."""
        return "queue" if self.attempt is None else "run"


class CallSpans:
    """Makes a span for each wait and each run of a task: of a call, or of a part of a long call.

    They are children of the request's span. A call of a native client has no request: it gets a
    span of its own, which begins a trace.
    """

    def __init__(self, dispatcher: Dispatcher, tracing: Tracing) -> None:
        self._tracing = tracing
        dispatcher.on_answered.append(self.answered)

    def answered(self, task: Task, outcome: Outcome, now: float) -> None:
        """Make the spans of a task. now: monotonic time of its last answer."""
        tracing, call, origin = self._tracing, task.call, task.call.origin
        zero = time.time() - time.monotonic()
        error = outcome.failed if isinstance(outcome, Result) else outcome
        about = {"farm.model": call.model, "farm.operation": call.operation.value}
        whole = None
        if origin is not None and origin.trace_parent:
            context = tracing.within_parent(origin.trace_parent)
        else:
            name = f"{call.operation.value} {call.model}"
            named = {**about, "farm.client": task.account.client.name}
            if origin is not None:
                named["farm.call.id"] = origin.call_id
            whole = tracing.call(name, _ns(zero + task.submitted_at), named)
            context = tracing.within(whole)
        steps = steps_of(task, error, now)
        answered = [s for s in steps if s.attempt is not None and s.attempt.phase is ANSWERED]
        ends = answered[-1] if answered else steps[-1]
        number = len(task.lost_on) - sum(s.attempt.phase is LOST for s in steps if s.attempt)
        for step in steps:
            attributes: Attributes = about
            if step.attempt is not None:
                number += 1
                attributes = {**about, **_of_run(task, step.attempt, number)}
                if step is ends and isinstance(outcome, Result):
                    attributes = {**attributes, **_of_result(outcome)}
            span = tracing.child(step.name, context, _ns(zero + step.began), attributes)
            ended = _ns(zero + step.ended)
            if step is ends and error is not None:
                tracing.fail(span, error, ended)
            elif step.attempt is not None and step.attempt.phase is LOST:
                lost = f"worker {step.attempt.worker.id} was lost: {step.attempt.why}"
                tracing.fail(span, WorkerLost(lost), ended)
            span.end(ended)
        if whole is not None:
            if error is not None:
                tracing.mark(whole, error)
            whole.end(_ns(zero + now))


def steps_of(task: Task, error: FarmError | None, now: float) -> list[SpanStep]:
    """Return the waits and runs of a task that has ended, at least one, oldest first.

    A worker that returned the task without beginning it is left out: the wait goes on. error: the
    task's outcome, if it failed.
    """
    last = getattr(task, "attempt", None)  # not set before the first sending
    attempts = list(task.former)
    attempts += [a for a in (last, task.copy) if a is not None and a not in attempts]
    steps: list[SpanStep] = []
    waits_since = task.submitted_at
    waits = True
    for attempt in sorted(attempts, key=attrgetter("sent_at")):
        if attempt.phase is RETURNED:
            continue
        if not attempt.is_copy:
            steps.append(SpanStep(min(waits_since, attempt.sent_at), attempt.sent_at))
        is_lost = attempt.phase is LOST
        ended = attempt.ended_at if is_lost else now
        steps.append(SpanStep(attempt.sent_at, ended, attempt))
        waits_since = max(waits_since, ended)
        waits = is_lost
    if not steps or (waits and not isinstance(error, WorkerLost | TimeLimitExceeded)):
        steps.append(SpanStep(min(waits_since, now), now))
    return steps


def _of_run(task: Task, attempt: Attempt, number: int) -> Attributes:
    """Return the attributes of a run. number: of this attempt to run the call, from 1."""
    found: dict[str, str | int | float] = {
        "farm.worker": attempt.worker.id,
        "farm.attempt": number,
        "farm.rows": task.rows,
    }
    if attempt.is_copy:
        found["farm.copy"] = True
    return found


def _of_result(result: Result) -> Attributes:
    """Return what a worker reports of a run."""
    return {"farm.run_time_s": result.run_time_s, "farm.batch_rows": result.batch_rows}


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
