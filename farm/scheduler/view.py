"""A scheduler as others read it: single calls, open calls of clients and workers, snapshots.

Nothing here changes the scheduler's state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import nlargest, nsmallest
from itertools import islice
from typing import Any, NamedTuple

from farm.call import Call, Operation
from farm.scheduler.accounts import Chain, Usage
from farm.scheduler.completion import OpenTasks
from farm.scheduler.explanation import explain
from farm.scheduler.outcomes import story
from farm.scheduler.phases import OUTRUN, SENT
from farm.scheduler.placement import NO_END
from farm.scheduler.queues import ModelQueues, Queue
from farm.scheduler.state import Task, TaskId, WorkerId
from farm.scheduler.workers import Worker
from farm.transitions import words

CALLS_SHOWN = 5

SHOWN_FROM_S = 1.0
"""Younger calls are not shown: on a busy farm they end before a user could read about them."""

WAITS_SHOWN = 10

MOST_LOOKED_AT = 1000
"""Maximum calls of each kind that a snapshot examines, which bounds its cost with many calls."""

MOST_ACCOUNTS = 10_000
"""Most accounts of clients that are looked at, which bounds the cost of a snapshot."""

MOST_SEARCHED = 100_000
"""Most open calls that are searched for one of a client, or for an id."""


@dataclass(slots=True)
class ClientCalls:
    """The open calls of a client. callers: those that wait for an answer, as for its share.

    busy_s: worker-seconds so far of the calls that run.
    """

    callers: int = 0
    queued: int = 0
    running: int = 0
    busy_s: float = 0.0
    usages: set[Usage] = field(default_factory=set)


class Load(NamedTuple):
    """How much a farm has to do. busy: workers that run calls; queued: calls that wait."""

    workers: int
    busy: int
    queued: int


class View:
    """Reads a scheduler's state.

    first_task: the task id from which calls are numbered. limits: maximum number of waiting calls,
    of all clients and of one.
    """

    def __init__(
        self,
        open_: OpenTasks,
        workers: Mapping[WorkerId, Worker],
        models: Mapping[str, ModelQueues],
        first_task: int,
        limits: tuple[int, int],
    ) -> None:
        self._tasks: Mapping[TaskId, Task] = open_.by_id
        self._suspects: Mapping[TaskId, Task] = open_.suspects
        self._workers = workers
        self._models = models
        self._first_task = first_task
        self.limits = limits

    def load(self) -> Load:
        """Return the load now, much faster than a whole snapshot."""
        busy = sum(worker.busy_since is not None for worker in self._workers.values())
        queues = (q for model in self._models.values() for q in model.by_operation.values())
        queued = sum(q.calls + q.counts.aside + q.counts.to_come for q in queues)
        return Load(len(self._workers), busy, queued)

    def queued(self) -> int:
        """Return how many calls wait."""
        queues = (q for model in self._models.values() for q in model.by_operation.values())
        return sum(queue.calls + queue.counts.aside for queue in queues)

    def rows_in(self, call: Call, seconds: float, *, more: int = 0) -> int:
        """Return how many rows like a call's run one after another in `seconds`, or 1.

        It is 1 while the run time is not known, if rows are not for a worker to run in a row, or if
        `more` rows that wait outside the queue would exceed its limits.
        """
        queues = self._models.get(call.model)
        if queues is None or queues.keeps_point:
            return 1
        queue = queues.by_operation[Operation.EVALUATE]
        times = queue.kinds.of(call.config)
        if queue.max_batch > 1 or not queue.repeatable or not times.count:
            return 1
        if more and queue.calls + queue.counts.to_come + more > min(self.limits):
            return 1
        return max(1, int(seconds / times.of_rows(1)))

    def batch_in(self, call: Call, seconds: float, *, more: int = 0) -> int:
        """Return the most rows of a batch if two like a call's run in `seconds`, or 1.

        It is 1, too, while the run time is not known, if a batch that fails may not be taken apart,
        or if `more` rows that wait outside the queue would exceed its limits.
        """
        queue = self._models[call.model].by_operation[Operation.EVALUATE]
        times = queue.kinds.of(call.config)
        if not queue.repeatable or not times.count or 2 * times.mean > seconds:
            return 1
        if more and queue.calls + queue.counts.to_come + more > min(self.limits):
            return 1
        return queue.max_batch

    def number(self, task_id: TaskId) -> str:
        """Return the short name of a call, for people: its number since the farm started."""
        return str(task_id - self._first_task + 1)

    def called(self, task: Task) -> dict[str, Any]:
        """Return what identifies a call to people, as JSON data. id: of its request, or empty."""
        return {
            "call": self.number(task.id),
            "id": "" if task.call.origin is None else task.call.origin.call_id,
            "model": task.call.model,
            "operation": task.call.operation.value,
            "client": task.account.client.name,
            "chain": task.chain,
        }

    def running(self, worker: Worker, now: float) -> dict[str, Any]:
        """Return the call that a worker runs, the oldest of several, and its age, as JSON data.

        running_p95_s: what 95 % of such calls took at most; None if that is not known.
        """
        if (running := worker.running()) is None:
            return {"running_s": None, "running_p95_s": None, "running": None}
        task, began_at = running
        return {
            "running_s": max(0.0, now - began_at),
            "running_p95_s": task.times.p95() * task.run_length if task.times.count else None,
            "running": self.called(task),
        }

    def call(self, name: str) -> Task | None:
        """Return the open call with this number or task id; None if there is none."""
        if not (name.isascii() and name.isdecimal()) or len(name) > 20:
            return None
        number = int(name)
        short = self._tasks.get(TaskId(self._first_task + number - 1))
        return self._tasks.get(TaskId(number)) if short is None else short

    def with_id(self, call_id: str) -> list[Task]:
        """Return the open calls whose request has this id, the oldest first: mostly one."""
        return [
            task
            for task in islice(self._tasks.values(), MOST_SEARCHED)
            if task.phase.has_caller
            and task.call.origin is not None
            and task.call.origin.call_id == call_id
        ]

    def task(self, task_id: TaskId) -> Task | None:
        """Return an open call; None if it is not open."""
        return self._tasks.get(task_id)

    def sent(self) -> Iterator[TaskId]:
        """Yield the open calls that workers have; one with a copy where its attempt is."""
        for worker in self._workers.values():
            for task in worker.held.values():
                if task.attempt.worker is worker:
                    yield task.id

    def waiting(self, client: str, chain: Chain = None) -> list[Task]:
        """Return a client's queued calls, of one chain or, for None, of all; the oldest first."""
        tasks = [
            task
            for model in self._models.values()
            for queue in model.waiting
            for line in queue.lines()
            if line.account.client.name == client
            for task in line.tasks.values()
        ]
        of_sequences = (m.sequences for m in self._models.values() if m.sequences is not None)
        behind = (task for sequences in of_sequences for task in sequences.behind_others())
        tasks += [task for task in behind if task.account.client.name == client]
        return sorted((t for t in tasks if chain in (None, t.chain)), key=lambda task: task.id)

    def sent_of(self, client: str, chain: Chain = None) -> Task | None:
        """Return the oldest call of a client, or of one of its chains, that a worker has."""
        for task in islice(self._tasks.values(), MOST_SEARCHED):
            is_sent = task.phase is SENT
            if is_sent and task.account.client.name == client and chain in (None, task.chain):
                return task
        return None

    def clients(self, now: float) -> dict[str, ClientCalls]:
        """Return the open calls of each client that has any."""
        found: dict[str, ClientCalls] = {}
        accounts = (a for model in self._models.values() for a in model.accounts)
        for account in islice(accounts, MOST_ACCOUNTS):
            if account.active:
                of_client = found.setdefault(account.client.name, ClientCalls())
                of_client.queued = account.client.queued
                of_client.running += account.active
                of_client.usages.add(account.usage)
        for of_client in found.values():
            of_client.running = max(0, of_client.running - of_client.queued)
            chains = set().union(*(usage.chains for usage in of_client.usages))
            of_client.callers = sum(u.single for u in of_client.usages) + len(chains)
        for worker in self._workers.values():
            for task, seconds in worker.runs(now):
                if task.account.client.name in found:
                    found[task.account.client.name].busy_s += seconds
        return found

    def snapshot(self, now: float) -> dict[str, Any]:
        """Return the state as rows of JSON data.

        workers: one for each; queues: one for each model and operation that was ever used; calls:
        those that stand out, with their history; waits: see `longest_waits`.
        """
        models = list(self._models.values())
        return {
            "waits": longest_waits(models, now),
            "workers": [
                {
                    "name": w.id,
                    "models": [model.name for model in w.pool.queues],
                    "phase": words(w.phase),
                    "slots": w.slots,
                    "in_flight": sum([t.calls for t in w.held.values() if t.phase is not OUTRUN]),
                    **({"sequences": len(w.sequences)} if w.sequences else {}),
                    "busy_s": None if w.busy_since is None else now - w.busy_since,
                    **self.running(w, now),
                    "done": w.answers.done,
                    "failed": w.answers.failed,
                    "ends_in_s": None if w.ends_at == NO_END else w.ends_at - now,
                }
                for w in self._workers.values()
            ],
            "queues": [
                {
                    "model": model.name,
                    "operation": queue.operation.value,
                    "queued": queue.calls + queue.counts.aside + queue.counts.to_come,
                    "oldest_s": oldest_s(queue, now) if queue.size else None,
                    "in_flight": queue.counts.in_flight - queue.counts.extra,
                    "done": queue.counts.done,
                    "failed": queue.counts.failed,
                    "copies": queue.counts.copies,
                    "run_time_mean_s": queue.run_times.mean,
                    "run_time_p50_s": queue.run_times.quantile(0.5),
                    "run_time_p95_s": queue.run_times.quantile(0.95),
                    "round_trip_s": queue.run_times.round_trip_s,
                    "prefetch": queue.run_times.prefetch,
                }
                for model in models
                for queue in model.by_operation.values()
                if queue.size
                or queue.counts.aside
                or queue.counts.to_come
                or queue.counts.in_flight
                or queue.counts.done
                or queue.counts.failed
            ],
            "calls": [
                {
                    **self.called(task),
                    "phase": words(task.phase),
                    "age_s": now - task.submitted_at,
                    "story": story(task, now),
                }
                for task in standing_out(self._tasks.values(), self._suspects.values(), now)
            ],
        }


def standing_out(tasks: Iterable[Task], suspects: Iterable[Task], now: float) -> list[Task]:
    """Return a few notable open tasks: those lost most often, then the oldest.

    tasks: all of them, oldest first; suspects: those that were lost before.
    """
    found = nlargest(
        CALLS_SHOWN, islice(suspects, MOST_LOOKED_AT), key=lambda task: len(task.past.lost_on)
    )
    for task in islice(tasks, MOST_LOOKED_AT):
        if len(found) == CALLS_SHOWN or now - task.submitted_at < SHOWN_FROM_S:
            break
        if task not in found and task.phase.has_caller:
            found.append(task)
    return found


def longest_waits(models: Iterable[ModelQueues], now: float) -> list[dict[str, Any]]:
    """Return why calls wait: a row for the oldest waiting call of each client and queue.

    Those that have waited longest, `WAITS_SHOWN` at most.
    """
    lines = (line for model in models for queue in model.waiting for line in queue.lines())
    oldest = {line.first(): len(line.tasks) for line in islice(lines, MOST_LOOKED_AT)}
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
    lines = islice(queue.lines(), MOST_LOOKED_AT)
    return now - min(line.first().submitted_at for line in lines)
