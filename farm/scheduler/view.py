"""What others may read of a scheduler: single calls, and the open calls of clients and workers.

Nothing here changes the scheduler's state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from farm.call import Operation
from farm.scheduler.accounts import Chain, Usage
from farm.scheduler.phases import SENT
from farm.scheduler.queues import ModelQueues
from farm.scheduler.state import Task, TaskId, Worker, WorkerId

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
        tasks: Mapping[TaskId, Task],
        workers: Mapping[WorkerId, Worker],
        models: Mapping[str, ModelQueues],
        first_task: int,
        limits: tuple[int, int],
    ) -> None:
        self._tasks = tasks
        self._workers = workers
        self._models = models
        self._first_task = first_task
        self.limits = limits

    def load(self) -> Load:
        """Return the load now, much faster than a whole snapshot."""
        busy = sum(worker.busy_since is not None for worker in self._workers.values())
        queues = (q for model in self._models.values() for q in model.by_operation.values())
        queued = sum(q.calls + q.aside + q.to_come for q in queues)
        return Load(len(self._workers), busy, queued)

    def queued(self) -> int:
        """Return how many calls wait."""
        queues = (q for model in self._models.values() for q in model.by_operation.values())
        return sum(queue.calls + queue.aside for queue in queues)

    def rows_in(self, model: str, seconds: float, *, more: int = 0) -> int:
        """Return how many rows of a model run one after another in `seconds`, or 1.

        It is 1 while the run time is not known, if rows are not for a worker to run in a row, or if
        `more` rows that wait outside the queue would exceed its limits.
        """
        queues = self._models.get(model)
        if queues is None or queues.keeps_point:
            return 1
        queue = queues.by_operation[Operation.EVALUATE]
        if queue.max_batch > 1 or not queue.repeatable or not queue.run_times.count:
            return 1
        if more and queue.calls + queue.to_come + more > min(self.limits):
            return 1
        return max(1, int(seconds / queue.run_times.of_rows(1)))

    def batch_in(self, model: str, seconds: float, *, more: int = 0) -> int:
        """Return the most rows of a batch if two batches of a model run in `seconds`, or 1.

        It is 1, too, while the run time is not known, if a batch that fails may not be taken apart,
        or if `more` rows that wait outside the queue would exceed its limits.
        """
        queue = self._models[model].by_operation[Operation.EVALUATE]
        times = queue.run_times
        if not queue.repeatable or not times.count or 2 * times.mean > seconds:
            return 1
        if more and queue.calls + queue.to_come + more > min(self.limits):
            return 1
        return queue.max_batch

    def number(self, task_id: TaskId) -> str:
        """Return the short name of a call, for people: its number since the farm started."""
        return str(task_id - self._first_task + 1)

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
        lines = (
            line
            for model in self._models.values()
            for queue in model.waiting
            for level in queue.levels()
            for line in level.lines.values()
            if line.account.client.name == client
        )
        tasks = [task for line in lines for task in line.tasks.values()]
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
            for task, seconds in running_s(worker, now):
                if task.account.client.name in found:
                    found[task.account.client.name].busy_s += seconds
        return found

    def model(self, name: str) -> ModelQueues | None:
        """Return the queues of a model; None if it is unknown."""
        return self._models.get(name)


def running_s(worker: Worker, now: float) -> Iterable[tuple[Task, float]]:
    """Return the calls that a worker runs, each with its part of the worker-seconds so far.

    The calls of a batch share its seconds. A run began when the call was sent, or when the worker's
    only slot was last free.
    """
    running = worker.held_in_turn(worker.most_slots)[0]
    if not running:
        return []
    found = []
    for task in running:
        attempt = task.at(worker)
        began = attempt.sent_at
        if worker.most_slots == 1:
            began = max(began, worker.last_answer_at)
        alike = 1 if attempt.lot is None else attempt.lot.remaining
        found.append((task, (now - began) / max(1, alike)))
    return found
