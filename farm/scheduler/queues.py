"""Queue order and fairness between the clients of one queue.

The order is priority first; then the client that holds the fewest of the model's workers per
caller; among equals, the one that has used the fewest worker-seconds per caller (weighted
start-time fair queueing, Goyal, Vin, Cheng 1996); then the oldest task. Held workers come first
because run times are not known beforehand: shares of workers are right at every moment, whatever
the calls turn out to take, and the seconds distribute what does not divide evenly. Each step costs
a few dictionary operations.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from farm.call import QUESTIONS, ModelInfo, Operation
from farm.policies import USUAL, ModelPolicy
from farm.scheduler.accounts import Account, Accounts, Clients, SharedWorkers
from farm.scheduler.state import RunTimes, Task, TaskId, Worker, needs_no_slot

if TYPE_CHECKING:
    from farm.scheduler.placement import Pool
    from farm.scheduler.sequences import Sequences

COPIED = frozenset(Operation) - QUESTIONS - {Operation.STREAM}
"""Operations of which slow calls are copied."""


class ClientTasks:
    """The waiting tasks of one client at one rank, oldest first.

    config: that of the first call since the line was empty; is_mixed: others have another one.
    Tasks are added and removed by the line's Level.
    """

    __slots__ = ("account", "back", "config", "entry", "index", "is_mixed", "level", "tasks")

    def __init__(self, account: Account, level: Level) -> None:
        self.account = account
        self.level = level
        # In the order of arrival; `back` is a heap of tasks that were requeued, if there are any.
        self.tasks: OrderedDict[TaskId, Task] = OrderedDict()
        self.back: list[TaskId] | None = None
        self.entry: Entry | None = None
        self.config = ""
        self.is_mixed = False
        self.index: dict[str, OrderedDict[TaskId, Task]] | None = None  # see by_config

    def by_config(self) -> Mapping[str, Mapping[TaskId, Task]]:
        """Return the tasks by the config of their call, each oldest first.

        The index is made when it is first asked for, and is kept while the line is mixed.
        """
        if self.index is None:
            self.index = {}
            for task in self.tasks.values():
                self.add_to_index(task)
        return self.index

    def add_to_index(self, task: Task) -> None:
        """Add a task to the index by config, which exists."""
        assert self.index is not None
        tasks = self.index.get(task.call.config)
        if tasks is None:
            tasks = self.index[task.call.config] = OrderedDict()
        tasks[task.id] = task

    def remove_from_index(self, task: Task) -> None:
        """Remove a task from the index by config, which exists."""
        assert self.index is not None
        tasks = self.index[task.call.config]
        del tasks[task.id]
        if not tasks:
            del self.index[task.call.config]

    def first(self) -> Task:
        """Return the oldest task, newly arrived or requeued."""
        first = next(iter(self.tasks.values()))
        while self.back:
            oldest = self.tasks.get(self.back[0])
            if oldest is not None:
                return oldest if oldest.id < first.id else first
            heapq.heappop(self.back)
        return first

    def __lt__(self, other: ClientTasks) -> bool:
        # Only compared if all else is equal; then all but one of the entries are stale.
        return False


Entry = tuple[int, float, int, ClientTasks]
"""Workers held and seconds used per caller, oldest task, line: the sort key of a line when it was
last ordered.
"""


class Level:
    """The lines of one rank in the order of their turns."""

    __slots__ = ("_closed", "_heap", "lines", "rank")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.lines: dict[Account, ClientTasks] = {}
        # Only kept for two or more lines. An entry that its line does not own is stale.
        self._heap: list[Entry] = []
        # The last one that ended, for reuse: a client usually asks again.
        self._closed: ClientTasks | None = None

    def add(self, task: Task) -> None:
        """Add `task` to its client's line; a requeued task goes before younger ones."""
        line = self.lines.get(task.account)
        if line is None:
            line = self._closed
            if line is None or line.account is not task.account:
                line = ClientTasks(task.account, self)
            self._closed = None
            self.lines[task.account] = line
            line.tasks[task.id] = task
            line.config = task.call.config
            line.is_mixed = False
            line.index = None
            if len(self.lines) > 1:
                self._add_rival(line)
        else:
            line.tasks[task.id] = task
            if task.call.config != line.config:
                line.is_mixed = True
            if line.index is not None:
                line.add_to_index(task)
            if task.former or task.sequence is not None:  # it may be older than others here
                line.back = line.back or []
                heapq.heappush(line.back, task.id)
                self.earlier(line)
        task.line = line

    def _add_rival(self, line: ClientTasks) -> None:
        rivals = self.lines.values() if len(self.lines) == 2 else (line,)
        for each in rivals:
            each.account.usage.rivals[each] = None
        self.earlier(line)

    def remove(self, task: Task, line: ClientTasks) -> None:
        """Remove a task from its line, and the line with its last task."""
        del line.tasks[task.id]
        if line.index is not None:
            line.remove_from_index(task)
        task.line = None
        if not line.tasks:
            line.entry = None
            line.back = None
            del self.lines[line.account]
            self._closed = line
            if self.lines:
                self._remove_rival(line)

    def _remove_rival(self, line: ClientTasks) -> None:
        del line.account.usage.rivals[line]
        if len(self.lines) == 1:
            (last,) = self.lines.values()
            del last.account.usage.rivals[last]

    def earlier(self, line: ClientTasks) -> None:
        """Reorder a line that is new, or may come earlier than before."""
        if len(self.lines) < 2:
            return
        if len(self.lines) == 2 or len(self._heap) > 2 * len(self.lines):
            self._heap = [_entry(each) for each in self.lines.values()]
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, _entry(line))

    def head(self) -> Task:
        """Return the task whose turn it is."""
        if len(self.lines) == 1:
            (line,) = self.lines.values()
            return line.first() if line.back else next(iter(line.tasks.values()))
        heap = self._heap
        while True:
            entry = heap[0]
            held, used_s, task_id, line = entry
            if entry is not line.entry:
                heapq.heappop(heap)
                continue
            first = line.first()
            account = line.account
            now_held = account.held // account.usage.fair_slots
            if held == now_held and used_s == account.used_s and task_id == first.id:
                return first
            heapq.heapreplace(heap, _entry(line))


def _entry(line: ClientTasks) -> Entry:
    account = line.account
    held = account.held // account.usage.fair_slots
    line.entry = (held, account.used_s, line.first().id, line)
    return line.entry


class Queue:
    """The waiting tasks of one model and operation, and statistics of their runs."""

    def __init__(self, model: ModelQueues, operation: Operation) -> None:
        self.model = model
        self.operation = operation
        self.needs_no_slot = needs_no_slot(operation)
        self.streams = operation is Operation.STREAM
        self.max_batch = 1
        self.repeatable = True
        self.may_copy = False
        self.run_times = RunTimes()
        self.size = 0
        self.calls = 0  # for which its tasks wait
        self.to_come = 0  # rows of calls split into parts that are not tasks yet
        self.aside = 0  # calls of sequences that wait, but not here
        self.in_flight = 0  # calls, also of one task
        self.done = 0
        self.failed = 0
        self.copies = 0  # sent so far
        self.extra = 0  # of `in_flight`: copies, and calls that were answered elsewhere
        self.turns = 0
        # Until when the next batch waits for more calls, and how many tasks end the wait.
        self.lingers_until = 0.0
        self.company = 0
        self._levels: dict[int, Level] = {}
        self._ranks: list[int] = []  # the last is served first
        self._by_batch_key: dict[object, OrderedDict[TaskId, Task]] = {}

    def add(self, task: Task) -> None:
        """Add a waiting `task`; a lost one goes before others of its priority."""
        rank = 2 * task.priority + (1 if task.lost_on else 0)
        level = self._levels.get(rank)
        if level is None:
            level = self._levels[rank] = Level(rank)
        if not level.lines:
            insort(self._ranks, rank)
        level.add(task)
        if task.batch_key is not None:
            tasks = self._by_batch_key.get(task.batch_key)
            if tasks is None:
                tasks = self._by_batch_key[task.batch_key] = OrderedDict()
            tasks[task.id] = task
        if not self.size:
            self.model.waiting[self] = None
        self.size += 1
        self.calls += task.calls
        account = task.account
        account.client.queued += 1
        account.usage.waiting += 1

    def remove(self, task: Task) -> None:
        """Remove a waiting task."""
        line = task.line
        assert line is not None, "only a waiting task can be taken out"
        level = line.level
        level.remove(task, line)
        if not level.lines:
            del self._ranks[bisect_left(self._ranks, level.rank)]
            if level.rank:  # the level of the usual rank is kept: new calls arrive all the time
                del self._levels[level.rank]
        if task.batch_key is not None:
            tasks = self._by_batch_key[task.batch_key]
            del tasks[task.id]
            if not tasks:
                del self._by_batch_key[task.batch_key]
        account = task.account
        account.client.queued -= 1
        account.usage.waiting -= 1
        self.size -= 1
        self.calls -= task.calls
        if not self.size:
            del self.model.waiting[self]

    def head(self) -> Task:
        """Return the task whose turn it is; the queue must not be empty."""
        return self._levels[self._ranks[-1]].head()

    def rank(self) -> int:
        """Return the rank of the task whose turn it is: twice its priority, and one if lost."""
        return self._ranks[-1]

    def compatible(self, task: Task) -> Iterator[Task]:
        """Yield the waiting tasks that may share a batch with `task`, oldest first."""
        return iter(self._by_batch_key.get(task.batch_key, {}).values())

    def levels(self) -> Iterator[Level]:
        """Yield the levels that have waiting tasks, those served first before others."""
        for rank in reversed(self._ranks):
            yield self._levels[rank]

    def waiting(self) -> Iterator[Task]:
        """Yield all waiting tasks, in no particular order."""
        for level in self._levels.values():
            for line in level.lines.values():
                yield from line.tasks.values()


class ModelQueues:
    """One model's queues, its clients' accounts, and the pools of workers that serve it."""

    def __init__(self, name: str, clients: Clients, policy: ModelPolicy = USUAL) -> None:
        self.name = name
        self.policy = policy
        group = SharedWorkers()
        group.models.append(self)
        self.accounts = Accounts(clients, group)
        self.pools: list[Pool] = []
        self.waiting: dict[Queue, None] = {}
        # The workers that ran a config last, and the one that evaluated a point last.
        self.keeps_point = False
        self.by_config: dict[str, dict[Worker, None]] = {}
        self.by_point: dict[int, Worker] = {}
        self.by_operation = {operation: Queue(self, operation) for operation in Operation}
        self.sequences: Sequences | None = None

    def slots(self) -> int:
        """Return how many calls its workers run at once."""
        return sum([pool.slots for pool in self.pools])

    def learn(self, model: ModelInfo) -> None:
        """Adopt a worker's description of the model; if several differ, what suits all of them."""
        evaluate = self.by_operation[Operation.EVALUATE]
        max_batch, repeatable, copies = model.max_batch, model.repeatable, model.copies
        if self.pools:
            max_batch = min(max_batch, evaluate.max_batch)
            repeatable = repeatable and evaluate.repeatable
            copies = copies and evaluate.may_copy
        evaluate.max_batch = max_batch
        self.keeps_point = model.keeps_point
        for queue in self.by_operation.values():
            queue.repeatable = repeatable or queue.needs_no_slot
            queue.may_copy = copies and repeatable and queue.operation in COPIED
