"""Sequences: calls that one worker runs in order, one at a time, because it has their state.

The first call of a sequence waits in its model's queue like any other. The worker that gets it has
the sequence from then on. Each later call waits until those before it are answered, and then in a
queue of its worker, which takes turns with all other queues.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from farm.call import Operation
from farm.errors import Cancelled, FarmError, InvalidInput, WorkerLost
from farm.scheduler.placement import Room
from farm.scheduler.queues import ModelQueues, Queue
from farm.scheduler.state import Task, TaskId
from farm.scheduler.workers import Worker
from farm.sequences import SequenceId, SequenceLimits, SequenceStep, needs_start

LOOK = 16
"""Idle workers with a place for a sequence of which the one with the fewest sequences gets it."""


class BoundQueue(Queue):
    """The calls of a model's sequences that wait for the worker which has them.

    At most one of each sequence. Their runs count for the model's queue. sequences: those that the
    worker has.
    """

    def __init__(self, main: Queue, worker: Worker) -> None:
        super().__init__(main.model, main.operation)
        self.kinds = main.kinds
        self.repeatable = False
        self.worker = worker
        self.sequences = 0
        self._main = main

    def add(self, task: Task) -> None:
        """Add a waiting call."""
        super().add(task)
        self._main.counts.wait_aside(1)

    def remove(self, task: Task) -> None:
        """Remove a waiting call."""
        super().remove(task)
        self._main.counts.wait_aside(-1)

    def hold(self, sequences: int) -> None:
        """Count sequences more that the worker has."""
        self.sequences += sequences


@dataclass(eq=False, repr=False, slots=True)
class LiveSequence:
    """A sequence that waits for its first run, or has begun and not ended.

    current: its call that waits in a queue or is at a worker; None: it is idle. waiting: its later
    calls in the order of arrival; one that starts the sequence again may be among them. closed: the
    last of all these ends it. queue: that of the worker which has its state; None while none has.
    lost_with: the worker that it was lost with, and why.
    """

    id: SequenceId
    of: Sequences
    current: Task | None = None
    waiting: OrderedDict[TaskId, Task] = field(default_factory=OrderedDict)
    closed: bool = False
    queue: BoundQueue | None = None
    lost_with: str = ""

    @property
    def worker(self) -> Worker | None:
        """Return the worker that has its state."""
        return None if self.queue is None else self.queue.worker

    def sent(self, worker: Worker) -> None:
        """Note that its current call was sent to a worker, which has the sequence from now on."""
        if self.queue is not None:
            return
        self.queue = self.of.take_place(worker)
        self.lost_with = ""
        worker.sequences[self] = None

    def leave_worker(self) -> None:
        """Give up its place at its worker, if it has one; nothing of it may wait there."""
        queue = self.queue
        if queue is None:
            return
        self.queue = None
        del queue.worker.sequences[self]
        self.of.free_place(queue)

    def add(self, task: Task, step: SequenceStep) -> bool:
        """Add a call; False: it waits behind others."""
        task.begin(self)
        self.closed = step.end
        if self.current is not None:
            self.hold(task)
            return False
        self.current = task
        return True

    def goes_on(self) -> Task | None:
        """End the current call; return the next one, which is current now, or None."""
        following = next(iter(self.waiting.values()), None)
        if following is not None:
            self.let_go(following)
        self.current = following
        return following

    def lose(self, why: str) -> None:
        """Note that the worker which has its state has left."""
        self.lost_with = why

    def hold(self, task: Task) -> None:
        """Let a call wait behind those before it."""
        self.waiting[task.id] = task
        task.queue.counts.wait_aside(1)
        task.account.waits(1)

    def let_go(self, task: Task) -> None:
        """Remove a call that waits behind others."""
        del self.waiting[task.id]
        task.queue.counts.wait_aside(-1)
        task.account.waits(-1)

    def followers(self, first: Task | None) -> list[Task]:
        """Return the waiting calls that need the state which `first` leaves; None: the current.

        They are those behind it, up to the next start. If no such call is there,
        the sequence is closed: whatever comes next has to start it.
        """
        found: list[Task] = []
        reached = first is None
        for task in self.waiting.values():
            if reached:
                if step_of(task).start:
                    return found
                found.append(task)
            reached = reached or task is first
        self.closed = True
        return found

    def error(self) -> FarmError:
        """Return the error of a call whose sequence has broken off before it."""
        name = f"sequence {self.id} of model {self.of.model.name!r}"
        again = "begin it again with the START flag"
        if self.lost_with:
            return WorkerLost(f"{name} was lost with worker {self.lost_with}; {again}")
        return Cancelled(f"an earlier request of {name} did not run, which ends it; {again}")


class Sequences:
    """The live sequences of one model. limits: see `SequenceLimits`.

    bound: the queue of each worker that has sequences. idle: when each idle sequence ends, the
    first to end first. places_taken: sequences that workers have.
    """

    def __init__(self, model: ModelQueues, limits: SequenceLimits) -> None:
        self.model = model
        self.limits = limits
        self.live: dict[SequenceId, LiveSequence] = {}
        self.bound: dict[Worker, BoundQueue] = {}
        self.idle: OrderedDict[LiveSequence, float] = OrderedDict()
        self.places_taken = 0

    def check(self, step: SequenceStep) -> None:
        """Raise InvalidInput for a call that neither starts a sequence nor belongs to a live one.

        Otherwise the call must be added.
        """
        if not step.start:
            live = self.live.get(step.id)
            if live is None or live.closed:
                raise InvalidInput(needs_start(step.id, self.model.name))

    def add(self, task: Task) -> bool:
        """Add a call to its sequence, a new one or a live one; False: others go before it."""
        step = step_of(task)
        live = self.live.get(step.id)
        if live is None:
            live = self.live[step.id] = LiveSequence(step.id, self)
        self.idle.pop(live, None)
        return live.add(task, step)

    def rest(self, live: LiveSequence, now: float) -> None:
        """Let a sequence end when it has been idle for long."""
        self.idle[live] = now + self.limits.idle_s

    def remove(self, live: LiveSequence) -> None:
        """Forget a sequence without calls; it must have left its worker."""
        del self.live[live.id]
        self.idle.pop(live, None)

    def ends_at(self) -> float:
        """Return when the first idle sequence ends."""
        return next(iter(self.idle.values()), math.inf)

    def end_when_idle(self) -> None:
        """Let each sequence end as soon as it is idle."""
        self.limits = SequenceLimits(self.limits.most, 0.0)

    def take_place(self, worker: Worker) -> BoundQueue:
        """Count one more sequence at a worker; return its queue."""
        queue = self.bound.get(worker)
        if queue is None:
            main = self.model.by_operation[Operation.EVALUATE]
            queue = self.bound[worker] = BoundQueue(main, worker)
        queue.hold(1)
        self.places_taken += 1
        return queue

    def free_place(self, queue: BoundQueue) -> None:
        """Count a sequence less at a worker."""
        queue.hold(-1)
        self.places_taken -= 1
        if not queue.sequences:
            assert not queue.size, "only calls of the worker's sequences wait for it"
            del self.bound[queue.worker]

    def count_at(self, worker: Worker) -> int:
        """Return how many sequences of the model a worker has."""
        queue = self.bound.get(worker)
        return 0 if queue is None else queue.sequences

    def has_place(self) -> bool:
        """Whether some worker, busy or not, may take one more sequence."""
        size = sum([pool.size for pool in self.model.pools])
        return self.places_taken < self.limits.most * size

    def worker_for_start(self, task: Task, room: Room) -> Worker | None:
        """Return an idle worker that may take one more sequence, or None."""
        if not self.has_place():
            return None
        found: list[Worker] = []
        for pool in self.model.pools:
            if pool in room.pools:
                for worker in pool.idle(task, room.now):
                    if self.count_at(worker) < self.limits.most:
                        found.append(worker)
                        if len(found) == LOOK:
                            break
        return min(found, key=self.count_at, default=None)

    def behind_others(self) -> Iterator[Task]:
        """Yield the calls that wait behind others of their sequence."""
        for live in self.live.values():
            yield from live.waiting.values()


def step_of(task: Task) -> SequenceStep:
    """Return the place of a task in its sequence."""
    step = task.call.step
    assert step is not None, "a task of a sequence has a place in it"
    return step


def worker_for_step(task: Task, room: Room) -> Worker | None:
    """Return the worker that may begin a call of a sequence now, or None.

    A worker that drains begins the calls of its sequences until these have ended.
    """
    live = task.sequence
    assert live is not None, "it is the call of a sequence"
    worker = live.worker
    if worker is None:
        return live.of.worker_for_start(task, room)
    if worker.pool not in room.pools or worker.phase.has_unread:
        return None
    return worker if worker.lots < (worker.slots or worker.last_slots) else None


def waits_for_slot(task: Task) -> bool:
    """Whether what a call of a sequence waits for is a free slot, not a place for a sequence."""
    live = task.sequence
    assert live is not None, "it is the call of a sequence"
    return live.queue is not None or live.of.has_place()
