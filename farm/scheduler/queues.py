"""Order and fairness: who is next among the tasks of one model and operation.

Priority first; then the client that has used the fewest worker-seconds (start-time fair queueing,
Goyal, Vin, Cheng 1996); then the oldest task. Each step costs a few dictionary operations.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator

from farm.call import Operation
from farm.scheduler.state import RunTimes, Task, TaskId

HeadKey = tuple[int, float, int]


class Account:
    """One client's account: worker-seconds used, and how many of its tasks wait or run."""

    __slots__ = ("active", "name", "queued", "used_s")

    def __init__(self, name: str) -> None:
        self.name = name
        self.used_s = 0.0
        self.queued = 0
        self.active = 0


class Accounts:
    """The accounts of all clients. Accounts of clients with nothing to do are dropped in time."""

    KEPT = 1024

    def __init__(self) -> None:
        self._by_name: dict[str, Account] = {}
        self.virtual_s = 0.0

    def __len__(self) -> int:
        return len(self._by_name)

    def entering(self, name: str) -> Account:
        """The account for a task that arrives now.

        A client that was away starts level with the one served last, so that it neither
        owes for what it used alone nor saved up a claim while it asked for nothing.
        """
        client = self._by_name.get(name)
        if client is None:
            if len(self._by_name) >= self.KEPT:
                self._drop_inactive()
            client = self._by_name[name] = Account(name)
        if not client.active and client.used_s < self.virtual_s:
            client.used_s = self.virtual_s
        return client

    def _drop_inactive(self) -> None:
        self._by_name = {name: c for name, c in self._by_name.items() if c.active}

    def __iter__(self) -> Iterator[Account]:
        return iter(self._by_name.values())


class _Level:
    """The waiting tasks of one rank, by client."""

    __slots__ = ("by_client", "heap")

    def __init__(self) -> None:
        self.by_client: dict[Account, OrderedDict[TaskId, Task]] = {}
        # (used_s when pushed, its oldest task then, client); each client is here once.
        self.heap: list[tuple[float, int, Account]] = []

    def add(self, task: Task) -> None:
        tasks = self.by_client.get(task.client)
        if tasks is None:
            tasks = self.by_client[task.client] = OrderedDict()
            heapq.heappush(self.heap, (task.client.used_s, task.id, task.client))
        tasks[task.id] = task

    def head(self) -> Task | None:
        heap = self.heap
        while heap:
            used_s, _, client = heap[0]
            tasks = self.by_client[client]
            if not tasks:
                heapq.heappop(heap)
                del self.by_client[client]
                continue
            if used_s < client.used_s:  # it has used more since: put it where it belongs
                heapq.heapreplace(heap, (client.used_s, next(iter(tasks)), client))
                continue
            return next(iter(tasks.values()))
        return None


class Queue:
    """The waiting tasks of one model and operation, and what is known about running them."""

    def __init__(
        self, model: str, operation: Operation, *, max_batch: int, repeatable: bool
    ) -> None:
        self.model = model
        self.operation = operation
        self.max_batch = max_batch
        self.repeatable = repeatable
        self.run_times = RunTimes()
        self.size = 0
        self.in_flight = 0
        self.done = 0
        self.failed = 0
        self._levels: dict[int, _Level] = {}
        self._ranks: list[int] = []  # descending
        self._by_batch_key: dict[object, OrderedDict[TaskId, Task]] = {}

    def add(self, task: Task, *, again: bool = False) -> None:
        """Let `task` wait; `again`: it had its turn before and goes ahead of its priority."""
        task.rank = 2 * task.priority + again
        level = self._levels.get(task.rank)
        if level is None:
            level = self._levels[task.rank] = _Level()
            self._ranks = sorted(self._levels, reverse=True)
        level.add(task)
        if task.batch_key is not None:
            tasks = self._by_batch_key.setdefault(task.batch_key, OrderedDict())
            tasks[task.id] = task
        self.size += 1
        task.client.queued += 1

    def remove(self, task: Task) -> None:
        """Take a waiting task out."""
        del self._levels[task.rank].by_client[task.client][task.id]
        if task.batch_key is not None:
            tasks = self._by_batch_key[task.batch_key]
            del tasks[task.id]
            if not tasks:
                del self._by_batch_key[task.batch_key]
        self.size -= 1
        task.client.queued -= 1

    def head(self) -> Task | None:
        """The task whose turn it is."""
        while self.size:
            task = self._levels[self._ranks[0]].head()
            if task is not None:
                return task
            del self._levels[self._ranks.pop(0)]
        return None

    def head_key(self) -> HeadKey | None:
        """Sorts the queues that a worker may serve next: smallest first."""
        task = self.head()
        return None if task is None else (-task.rank, task.client.used_s, task.id)

    def compatible(self, task: Task) -> Iterator[Task]:
        """The waiting tasks that may share a batch with `task`, oldest first."""
        if task.batch_key is not None:
            yield from self._by_batch_key.get(task.batch_key, {}).values()

    def waiting(self) -> Iterator[Task]:
        """All waiting tasks, in no particular order."""
        for level in self._levels.values():
            for tasks in level.by_client.values():
                yield from tasks.values()
