"""The scheduler's state as JSON data, for `farm status` and the status page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import nlargest, nsmallest
from itertools import islice
from typing import Any

from farm.scheduler.explanation import explain
from farm.scheduler.phases import OUTRUN
from farm.scheduler.placement import NO_END
from farm.scheduler.queues import ModelQueues, Queue
from farm.scheduler.state import Task, TaskId, Worker
from farm.scheduler.story import story
from farm.transitions import words

CALLS_SHOWN = 5

SHOWN_FROM_S = 1.0
"""Younger calls are not shown: on a busy farm they end before a user could read about them."""

WAITS_SHOWN = 10

LOOK = 1000
"""Maximum calls examined of each kind, which bounds the cost with many open calls."""


def standing_out(tasks: Iterable[Task], suspects: Iterable[Task], now: float) -> list[Task]:
    """Return a few notable open tasks: those lost most often, then the oldest.

    tasks: all of them, oldest first; suspects: those that were lost before.
    """
    found = nlargest(CALLS_SHOWN, islice(suspects, LOOK), key=lambda task: len(task.lost_on))
    for task in islice(tasks, LOOK):
        if len(found) == CALLS_SHOWN or now - task.submitted_at < SHOWN_FROM_S:
            break
        if task not in found and task.phase.has_caller:
            found.append(task)
    return found


def longest_waits(models: Iterable[ModelQueues], now: float) -> list[dict[str, Any]]:
    """Return why calls wait: a row for the oldest waiting call of each client and queue.

    Those that have waited longest, `WAITS_SHOWN` at most.
    """
    lines = (
        line
        for model in models
        for queue in model.waiting
        for level in queue.levels()
        for line in level.lines.values()
    )
    oldest = {line.first(): len(line.tasks) for line in islice(lines, LOOK)}
    shown = nsmallest(WAITS_SHOWN, oldest, key=lambda task: task.submitted_at)
    return [
        {
            "client": task.account.client.name,
            "model": task.call.model,
            "operation": task.call.operation.value,
            "calls": oldest[task],
            "age_s": now - task.submitted_at,
            "why": [reason._asdict() for reason in explain(task, now)],
        }
        for task in shown
        if now - task.submitted_at >= SHOWN_FROM_S
    ]


def oldest_s(queue: Queue, now: float) -> float:
    """Return for how many seconds the oldest waiting task of a queue has been open."""
    lines = (line for level in queue.levels() for line in level.lines.values())
    return now - min(line.first().submitted_at for line in islice(lines, LOOK))


def _running(worker: Worker, now: float, number: Callable[[TaskId], str]) -> dict[str, Any]:
    """Return the call that a worker runs, the oldest of several, and its age."""
    if (running := worker.running()) is None:
        return {"running_s": None, "running": None}
    task, began_at = running
    return {
        "running_s": max(0.0, now - began_at),
        "running": {
            "call": number(task.id),
            "model": task.call.model,
            "operation": task.call.operation.value,
            "client": task.account.client.name,
            "chain": task.chain,
        },
    }


def snapshot(
    workers: Iterable[Worker],
    models: Iterable[ModelQueues],
    calls: Iterable[Task],
    now: float,
    number: Callable[[TaskId], str],
) -> dict[str, Any]:
    """Return the state as rows.

    workers: one for each; queues: one for each model and operation that was ever used; calls: one
    for each of the given ones, with its history, and `number` names it; waits: see `longest_waits`.
    """
    models = list(models)
    return {
        "waits": longest_waits(models, now),
        "workers": [
            {
                "name": w.id,
                "models": sorted(w.pool.models),
                "phase": words(w.phase),
                "slots": w.slots,
                "in_flight": sum([t.calls for t in w.held.values() if t.phase is not OUTRUN]),
                **({"sequences": len(w.sequences)} if w.sequences else {}),
                "busy_s": None if w.busy_since is None else now - w.busy_since,
                **_running(w, now, number),
                "done": w.done,
                "failed": w.failed,
                "ends_in_s": None if w.ends_at == NO_END else w.ends_at - now,
            }
            for w in workers
        ],
        "queues": [
            {
                "model": model.name,
                "operation": queue.operation.value,
                "queued": queue.calls + queue.aside + queue.to_come,
                "oldest_s": oldest_s(queue, now) if queue.size else None,
                "in_flight": queue.in_flight - queue.extra,
                "done": queue.done,
                "failed": queue.failed,
                "copies": queue.copies,
                "run_time_mean_s": queue.run_times.mean,
                "run_time_p50_s": queue.run_times.quantile(0.5),
                "run_time_p95_s": queue.run_times.quantile(0.95),
                "round_trip_s": queue.run_times.round_trip_s,
                "prefetch": queue.run_times.prefetch,
            }
            for model in models
            for queue in model.by_operation.values()
            if queue.size
            or queue.aside
            or queue.to_come
            or queue.in_flight
            or queue.done
            or queue.failed
        ],
        "calls": [
            {
                "call": number(task.id),
                "model": task.call.model,
                "operation": task.call.operation.value,
                "client": task.account.client.name,
                "phase": words(task.phase),
                "age_s": now - task.submitted_at,
                "story": story(task, now),
            }
            for task in calls
        ],
    }
