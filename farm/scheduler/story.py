"""The history of a task, in words: for its error and for `farm status`."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from farm.scheduler.phases import LOST, QUEUED
from farm.scheduler.state import Task
from farm.wording import timespan

STEPS_TOLD = 8
"""Maximum number of steps listed; of a longer history, the last ones with a count of the others."""


def story(task: Task, now: float) -> list[str]:
    """Return the steps of an open task, oldest first: its waits and its attempts.

    For example: queued 3 s; lost with w1 after 12 s (signal 9); queued again 0.2 s; sent to w2 5 s
    ago; copied to w3 1 s ago.
    """
    steps = list(_steps(task, now))
    untold = len(steps) - STEPS_TOLD
    return [f"{untold} earlier steps", *steps[untold:]] if untold > 0 else steps


def with_story(text: str, task: Task, now: float) -> str:
    """Return an error's text, followed by the task's history if that adds more than its wait."""
    steps = story(task, now)
    return text if len(steps) == 1 else f"{text}; what happened: {', '.join(steps)}"


def _steps(task: Task, now: float) -> Iterator[str]:
    losses = sum(attempt.phase is LOST for attempt in task.attempts)
    for before in task.past.lost_on[: len(task.past.lost_on) - losses]:
        yield f"lost before with {before}"
    waits_since, queued = task.submitted_at, "queued"
    for attempt in sorted(task.attempts, key=attrgetter("sent_at")):
        copy = "copy " if attempt.is_copy else ""
        if not copy:
            yield f"{queued} {timespan(attempt.sent_at - waits_since)}"
        worker = attempt.worker.id
        if not attempt.phase.is_over:
            how = "copied" if copy else "sent"
            yield f"{how} to {worker} {timespan(now - attempt.sent_at)} ago"
            continue
        how = "lost with" if attempt.phase is LOST else "back from"
        lasted = timespan(attempt.ended_at - attempt.sent_at)
        yield f"{copy}{how} {worker} after {lasted} ({attempt.why})"
        waits_since, queued = max(waits_since, attempt.ended_at), "queued again"
    if task.phase is QUEUED:
        yield f"{queued} {timespan(now - waits_since)}"
