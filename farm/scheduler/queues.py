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
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, unique
from typing import TYPE_CHECKING

from farm.call import QUESTIONS, ModelInfo, Operation
from farm.policies import USUAL, ModelPolicy
from farm.scheduler.accounts import Account, Accounts, Clients, SharedWorkers
from farm.scheduler.run_times import KindsOfCall, RunTimes
from farm.scheduler.state import Task, TaskId, needs_no_slot
from farm.scheduler.workers import Worker

if TYPE_CHECKING:
    from farm.scheduler.placement import Pool
    from farm.scheduler.sequences import Sequences

COPIED = frozenset(Operation) - QUESTIONS - {Operation.STREAM}
"""Operations of which slow calls are copied."""


@unique
class PassedOver(Enum):
    """Why the last `fill` gave a queue's next call no worker.

    NOT_YET: none has tried. BUSY: no worker has a free slot. RESERVE: those that have one keep it
    for shorter calls; TOO_LONG: or end before the call would. NO_PLACE: for its sequence. BATCH: it
    waits a moment for more calls. POINT: and for the worker that evaluated its point.
    """

    NOT_YET = "not yet"
    BUSY = "busy"
    RESERVE = "reserve"
    TOO_LONG = "too long"
    NO_PLACE = "no place"
    BATCH = "batch"
    POINT = "same point"


NOT_YET, BUSY, RESERVE, TOO_LONG, NO_PLACE, BATCH, POINT = PassedOver


@dataclass(eq=False, repr=False, slots=True)
class ClientTasks:
    """The waiting tasks of one client at one rank, oldest first.

    config: that of the first call since the line was empty; is_mixed: others have another one.
    Tasks are added and removed by the line's Level.
    """

    account: Account
    level: Level
    # In the order of arrival; `back` is a heap of tasks that were requeued, if there are any.
    tasks: OrderedDict[TaskId, Task] = field(default_factory=OrderedDict)
    back: list[TaskId] | None = None
    entry: Entry | None = None
    config: str = ""
    is_mixed: bool = False
    index: dict[str, OrderedDict[TaskId, Task]] | None = None  # see by_config

    def open(self, task: Task) -> None:
        """Begin with the first task."""
        self.tasks[task.id] = task
        self.config = task.call.config
        self.is_mixed = False
        self.index = None
        task.line = self

    def add(self, task: Task) -> bool:
        """Add a task; return whether it may be older than others here."""
        self.tasks[task.id] = task
        if task.call.config != self.config:
            self.is_mixed = True
        if self.index is not None:
            self.add_to_index(task)
        task.line = self
        if not task.past.former and task.sequence is None:
            return False
        self.back = self.back or []
        heapq.heappush(self.back, task.id)
        return True

    def close(self) -> None:
        """End without tasks."""
        self.entry = self.back = None

    def place(self) -> Entry:
        """Return where the line belongs in the order of turns, which is noted."""
        account = self.account
        held = account.held // account.usage.fair_slots
        self.entry = held, account.used_s, self.first().id, self
        return self.entry

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


@dataclass(eq=False, repr=False, slots=True)
class Level:
    """The lines of one rank in the order of their turns."""

    rank: int
    lines: dict[Account, ClientTasks] = field(default_factory=dict)
    # Only kept for two or more lines. An entry that its line does not own is stale.
    _heap: list[Entry] = field(default_factory=list)
    # The last one that ended, for reuse: a client usually asks again.
    _closed: ClientTasks | None = None

    def open(self, task: Task) -> None:
        """Add a line for a client's first task."""
        line = self._closed
        if line is None or line.account is not task.account:
            line = ClientTasks(task.account, self)
        self._closed = None
        has_rivals = bool(self.lines)
        self.lines[task.account] = line
        line.open(task)
        if has_rivals:
            self._add_rival(line)

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
            if line.entry is not None or line.back is not None:
                line.close()
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
            self._heap = [each.place() for each in self.lines.values()]
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, line.place())

    def head(self) -> Task:
        """Return the task whose turn it is."""
        if len(self.lines) == 1:
            for line in self.lines.values():
                if line.back:
                    return line.first()
                for task in line.tasks.values():
                    return task
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
            heapq.heapreplace(heap, line.place())


@dataclass(slots=True)
class CallCounts:
    """The calls of one model and operation that do not wait in its queue.

    to_come: rows of calls split into parts that are not tasks yet. aside: calls of sequences that
    wait elsewhere. in_flight: at workers, also of one task; extra: of these, the copies and the
    calls that were answered elsewhere. copies: sent so far.
    """

    to_come: int = 0
    aside: int = 0
    in_flight: int = 0
    extra: int = 0
    copies: int = 0
    done: int = 0
    failed: int = 0

    def expect(self, rows: int) -> None:
        """Count rows that are to come, or with a negative number rows that have."""
        self.to_come += rows

    def wait_aside(self, calls: int) -> None:
        """Count calls of sequences that wait elsewhere, or with a negative number fewer."""
        self.aside += calls

    def send(self, calls: int) -> None:
        """Count the calls of tasks that are sent."""
        self.in_flight += calls

    def copy(self, calls: int) -> None:
        """Count the calls of a task that is sent to a second worker."""
        self.in_flight += calls
        self.extra += calls
        self.copies += 1

    def leave(self, calls: int) -> None:
        """Count the calls of a task that a worker has no more."""
        self.in_flight -= calls

    def stay_one(self, calls: int) -> None:
        """Note that one of two attempts at these calls is over, or is not the second any more."""
        self.extra -= calls

    def split(self, gone: int, done: int, *, copied: bool) -> None:
        """Count the calls that leave a run which is split, and those that are answered."""
        self.in_flight -= 2 * gone if copied else gone
        self.extra -= gone if copied else 0
        self.done += done

    def reply(self, done: int, failed: bool, left: int = 0) -> None:
        """Count the outcome of a task. left: its calls, if a worker has them no more."""
        self.in_flight -= left
        self.done += done
        self.failed += failed


class Queue:
    """The waiting tasks of one model and operation, and the run times of their kinds."""

    def __init__(self, model: ModelQueues, operation: Operation) -> None:
        self.model = model
        self.operation = operation
        self.needs_no_slot = needs_no_slot(operation)
        self.streams = operation is Operation.STREAM
        self.max_batch = 1
        self.repeatable = True
        self.may_copy = False
        self.kinds = KindsOfCall()
        self.size = 0
        self.calls = 0  # for which its tasks wait
        self.counts = CallCounts()
        self.turns = 0
        self.passed_over = NOT_YET  # set by `fill`, for explanations
        # Until when the next batch waits for more calls, and how many tasks end the wait.
        self.lingers_until = 0.0
        self.company = 0
        self._levels: dict[int, Level] = {}
        self._ranks: list[int] = []  # the last is served first
        self._by_batch_key: dict[object, OrderedDict[TaskId, Task]] = defaultdict(OrderedDict)

    @property
    def run_times(self) -> RunTimes:
        """Return the run times of all kinds together: to show, not to decide by."""
        return self.kinds.whole

    def add(self, task: Task) -> None:
        """Add a waiting `task`; a lost one goes before others of its priority."""
        rank = 2 * task.priority + (1 if task.past.lost_on else 0)
        if rank not in self._levels:
            self._levels[rank] = Level(rank)
        level = self._levels[rank]
        if not self._ranks:
            self._ranks = [rank]
        elif not level.lines:
            insort(self._ranks, rank)
        if task.account not in level.lines:
            level.open(task)
        elif (line := level.lines[task.account]).add(task):
            level.earlier(line)
        if task.batch_key is not None:
            self._by_batch_key[task.batch_key][task.id] = task
        if not self.size:
            self.model.waiting[self] = None
            self.passed_over = NOT_YET
        self.size += 1
        self.calls += task.calls
        task.account.waits(1)

    def remove(self, task: Task) -> None:
        """Remove a waiting task."""
        line = task.line
        assert line is not None, "only a waiting task can be taken out"
        level = line.level
        level.remove(task, line)
        if not level.lines:
            ranks = self._ranks
            del ranks[-1 if ranks[-1] == level.rank else bisect_left(ranks, level.rank)]
            if level.rank:  # the level of the usual rank is kept: new calls arrive all the time
                del self._levels[level.rank]
        if task.batch_key is not None:
            tasks = self._by_batch_key[task.batch_key]
            del tasks[task.id]
            if not tasks:
                del self._by_batch_key[task.batch_key]
        task.account.waits(-1)
        self.size -= 1
        self.calls -= task.calls
        if not self.size:
            del self.model.waiting[self]

    def linger(self, until: float, company: int) -> None:
        """Let the next batch wait until then, or until there are so many tasks."""
        self.lingers_until = until
        self.company = company

    def adopt(self, max_batch: int, *, repeatable: bool, copies: bool) -> None:
        """Adopt what a worker says of its model."""
        if self.operation is Operation.EVALUATE:
            self.max_batch = max_batch
        self.repeatable = repeatable or self.needs_no_slot
        self.may_copy = copies and repeatable and self.operation in COPIED

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

    def lines(self) -> Iterator[ClientTasks]:
        """Yield the waiting tasks of each client at each rank, those served first before others."""
        for level in self.levels():
            yield from level.lines.values()


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
        # The configs and points that workers ran last; and by config, by point these workers.
        self.keeps_point = False
        self.config_at: dict[Worker, str] = {}
        self.by_config: dict[str, dict[Worker, None]] = {}
        self.point_at: dict[Worker, int] = {}
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
        self.keeps_point = model.keeps_point
        for queue in self.by_operation.values():
            queue.adopt(max_batch, repeatable=repeatable, copies=copies)

    def keep(self, sequences: Sequences) -> None:
        """Keep the sequences of the model from now on."""
        self.sequences = sequences
