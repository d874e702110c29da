"""The place of a waiting call: how many others go first, whose they are, and by which rule.

`explanation` says which rules decide; here are the numbers. Turns of clients depend on runs that
have not ended, so a place is an estimate: what goes first if nobody submits more calls.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any, NamedTuple

from farm.scheduler.explanation import LOOK, explain, queues_before, share
from farm.scheduler.phases import FULL, QUEUED, SENT, SHUT, SHUT_AND_FULL
from farm.scheduler.queues import ClientTasks, ModelQueues
from farm.scheduler.state import Task, Worker
from farm.scheduler.view import View, running_s
from farm.transitions import words

SHOWN = 20
"""Most clients, and most workers, that are listed; the others are counted."""


class Before(NamedTuple):
    """Calls of one client that go first."""

    client: str
    calls: int
    reason: str


def place(task: Task) -> tuple[int, list[Before]]:
    """Return the place of a call that waits, counted from 1, and whose calls go before it.

    The place is 0 if the call runs. The clients with most calls come first.
    """
    before = _at_worker(task) if task.phase is SENT else _in_queue(task)
    if task.phase is not QUEUED and not before:
        return 0, []
    before.sort(key=lambda row: -row.calls)
    rest = before[SHOWN:]
    shown = before[:SHOWN]
    if rest:
        count = sum(row.calls for row in rest)
        shown.append(Before(f"({len(rest)} others)", count, "different rules"))
    return 1 + sum(row.calls for row in before), shown


def _at_worker(task: Task) -> list[Before]:
    worker = task.attempt.worker
    first, waiting = worker.held_in_turn(worker.slots)
    if task not in waiting:
        return []
    ahead = Counter(t.account.client.name for t in [*first, *waiting[: waiting.index(task)]])
    reason = f"sent to worker {worker.id} earlier"
    return [Before(client, count, reason) for client, count in ahead.items()]


def _in_queue(task: Task) -> list[Before]:
    line, queue = task.line, task.queue
    if (live := task.sequence) is not None and (line is None or live.worker is not None):
        ahead = sum(other < task.id for other in islice(live.waiting, LOOK)) + (line is None)
        name = task.account.client.name
        return [Before(name, ahead, "earlier calls of its sequence")] if ahead else []
    if line is None:
        return []
    level = line.level
    found = []
    for other in queue.levels():
        if other.rank > level.rank:
            for each in islice(other.lines.values(), LOOK):
                reason = "higher priority, or lost with a worker before"
                found.append(Before(each.account.client.name, len(each.tasks), reason))
    older = sum([other < task.id for other in line.tasks])
    if older:
        found.append(Before(line.account.client.name, older, "earlier calls of the same client"))
    mean_s = queue.run_times.mean
    for each in islice(level.lines.values(), LOOK):
        if each is not line and (before := _of_other(each, line, older, mean_s)) is not None:
            found.append(before)
    for theirs, why in queues_before(queue):
        count = why.calls if why.rule == "priority" else 1
        found.append(Before(theirs.usage.name, count, why.text))
    return found


def _of_other(other: ClientTasks, line: ClientTasks, older: int, mean_s: float) -> Before | None:
    """Return how many calls of another client go before one that has `older` of its own before.

    The other client gets the turns in which it is behind, and its share of those that follow.
    """
    theirs, mine = share(other.account), share(line.account)
    weight = other.account.usage.weight
    if theirs[0] < mine[0]:
        ahead, reason = (mine[0] - theirs[0]) * weight, "it holds fewer workers per caller"
    elif theirs[0] == mine[0] and theirs[1] < mine[1]:
        behind_s = (mine[1] - theirs[1]) * weight
        ahead = max(1, round(behind_s / mean_s)) if mean_s else 1
        reason = "it has used fewer worker-seconds per caller"
    else:
        ahead, reason = 0, "clients take turns"
    count = min(len(other.tasks), ahead + older * weight // line.account.usage.weight)
    return Before(other.account.client.name, count, reason) if count else None


def starts_in_s(task: Task, position: int) -> float | None:
    """Return in how many seconds a waiting call may begin; None if that is not known.

    From the mean run time and the slots of its model's workers, if no other call comes.
    """
    queue = task.queue
    slots, mean_s = queue.model.slots(), queue.run_times.mean
    if not position or not slots or not queue.run_times.count:
        return None
    return mean_s * position / (slots * queue.max_batch)


def workers_of(model: ModelQueues, view: View, now: float) -> dict[str, Any]:
    """Return what the workers of a model do, as JSON data; those that run longest come first.

    shut: they take no calls, because they drain or are unreachable; full: they have not read what
    they were sent. running: how many of their calls each client has.
    """
    workers = [w for pool in model.pools for w in islice(pool.fullest_first(), LOOK)]
    rows: list[tuple[float, Worker, Task | None]] = []
    running: Counter[str] = Counter()
    for worker in workers:
        calls = list(running_s(worker, now))
        running.update(task.account.client.name for task, _ in calls)
        oldest = min((t for t, _ in calls), key=lambda t: t.at(worker).sent_at, default=None)
        rows.append((0.0 if oldest is None else _age_s(oldest, worker, now), worker, oldest))
    rows.sort(key=lambda row: (-row[0], row[1].id))
    return {
        "count": sum(pool.size for pool in model.pools),
        "busy": sum(1 for worker in workers if worker.held),
        "idle": sum(1 for w in workers if not w.held and w.phase not in (SHUT, SHUT_AND_FULL)),
        "shut": sum(1 for w in workers if w.phase in (SHUT, SHUT_AND_FULL)),
        "full": sum(1 for w in workers if w.phase is FULL),
        "running": dict(running.most_common(SHOWN)),
        "rows": [
            {
                "name": worker.id,
                "phase": words(worker.phase),
                "running_s": None if task is None else age_s,
                "running": None if task is None else called(task, view),
            }
            for age_s, worker, task in rows[:SHOWN]
        ],
    }


def _age_s(task: Task, worker: Worker, now: float) -> float:
    began = task.at(worker).sent_at
    return now - (max(began, worker.last_answer_at) if worker.most_slots == 1 else began)


def called(task: Task, view: View) -> dict[str, Any]:
    """Return what identifies a call to people, as JSON data. id: of its request, or empty."""
    return {
        "call": view.number(task.id),
        "id": "" if task.call.origin is None else task.call.origin.call_id,
        "model": task.call.model,
        "operation": task.call.operation.value,
        "client": task.account.client.name,
        "chain": task.chain,
    }


def waits(task: Task, view: View, now: float) -> dict[str, Any]:
    """Return why a call has not begun, with its place and its model's workers, as JSON data."""
    position, before = place(task)
    return {
        **called(task, view),
        "phase": words(task.phase),
        "age_s": now - task.submitted_at,
        "position": position,
        "before": [
            {"client": row.client, "count": row.calls, "reason": row.reason} for row in before
        ],
        "starts_in_s": starts_in_s(task, position),
        "rules": [reason._asdict() for reason in explain(task, now)],
        "workers": workers_of(task.queue.model, view, now),
    }
