"""The local transport: worker threads in this process, for tests, examples and notebooks.

Models that hold the GIL gain nothing from several threads; `farm serve` uses processes instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from farm.call import Call, Result, WorkerInfo
from farm.model import Model
from farm.scheduler.actions import Outcome
from farm.scheduler.state import TaskId, WorkerId, needs_no_slot
from farm.sequences import SequenceId
from farm.worker.runner import Host, Runner, timed

if TYPE_CHECKING:
    from farm.dispatcher.dispatcher import Dispatcher

Answers = list[tuple[TaskId, Outcome]]


class _Worker(Host):
    """One thread with its own Runner, for whose calls it is the `Host`, and its queue of calls."""

    def __init__(self, name: WorkerId, models: Mapping[str, Model]) -> None:
        self.name = name
        self.runner = Runner(models)
        self.something_new: queue.SimpleQueue[None] = queue.SimpleQueue()
        # Guarded by the lock: calls that have not begun and may be recalled.
        self.lock = threading.Lock()
        self.waiting: dict[TaskId, tuple[Call, float]] = {}  # with their arrival times
        self.unwanted: set[TaskId] = set()  # streams to be ended
        self._batch: list[tuple[TaskId, tuple[Call, float]]] = []  # of which some run
        self._claimed_at = 0.0
        self._stopped = False

    def run(self, transport: LocalTransport) -> None:
        """Run calls as they arrive until stopped; recall those that have not begun by then."""
        while not self._stopped:
            self.something_new.get()
            with self.lock:
                batch = self._batch = list(self.waiting.items())
            for outcomes in self.runner.run([call for _, (call, _) in batch], self):
                answers = [(batch[i][0], self._timed(i, outcome)) for i, outcome in outcomes]
                transport.answered(self, answers)
            with self.lock:
                self.unwanted.difference_update([task_id for task_id, _ in batch])
        transport.ended(self)

    def claim(self, positions: Sequence[int]) -> Sequence[int]:
        """Return those of the batch that have not been recalled; none once stopped."""
        with self.lock:
            if self._stopped:
                return []
            self._claimed_at = time.perf_counter()
            return [i for i in positions if self.waiting.pop(self._batch[i][0], None) is not None]

    def begins(self, position: int, row: int = 0) -> bool:
        """Return whether it goes on: not once it is stopped."""
        return not self._stopped

    def is_wanted(self, position: int) -> bool:
        """Whether the stream goes on."""
        return self._batch[position][0] not in self.unwanted

    def _timed(self, position: int, outcome: Outcome) -> Outcome:
        if not isinstance(outcome, Result):
            return outcome
        return timed(outcome, self._claimed_at - self._batch[position][1][1])

    def stop(self) -> None:
        """End after the model call that is running."""
        with self.lock:
            self._stopped = True
        self.something_new.put(None)


class LocalTransport:
    """`workers` threads with one slot each, all using the same model objects."""

    def __init__(self, models: Mapping[str, Model], *, workers: int = 1) -> None:
        self._host = socket.gethostname()
        incarnation = f"{self._host}/{os.getpid()}-{secrets.token_hex(2)}"
        names = [WorkerId(f"{incarnation}-thread{i}") for i in range(workers)]
        self._workers = {name: _Worker(name, models) for name in names}

    def start(self, dispatcher: Dispatcher) -> None:
        """Start on the running loop."""
        self._dispatcher = dispatcher
        self._loop = asyncio.get_running_loop()
        for name, worker in self._workers.items():
            models = worker.runner.models()
            threading.Thread(target=worker.run, args=(self,), name=name, daemon=True).start()
            info = WorkerInfo(name, models, host=self._host, pid=os.getpid())
            dispatcher.worker_joined(info, self)

    def answered(self, worker: _Worker, answers: Answers) -> None:
        """Report answers; called by any thread."""
        self._soon(lambda: self._dispatcher.finished(worker.name, answers))

    def ended(self, worker: _Worker) -> None:
        """Report that a thread has ended; called by it."""
        self._soon(lambda: self._dispatcher.worker_left(worker.name, "stopped", drained=True))

    def _soon(self, tell: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(tell)

    def send(self, worker: WorkerId, tasks: Sequence[tuple[TaskId, Call]]) -> None:
        """Send tasks to a worker."""
        to = self._workers[worker]
        questions = [task for task in tasks if needs_no_slot(task[1].operation)]
        if questions:
            self._loop.run_in_executor(None, self._describe, to, questions)
        now = time.perf_counter()
        with to.lock:
            to.waiting.update(
                (i, (call, now)) for i, call in tasks if not needs_no_slot(call.operation)
            )
        to.something_new.put(None)

    def _describe(self, worker: _Worker, questions: Sequence[tuple[TaskId, Call]]) -> None:
        # On a separate thread: the worker's own may be busy for hours.
        for task_id, call in questions:
            self.answered(worker, [(task_id, worker.runner.execute([call])[0])])

    def recall(self, worker: WorkerId, tasks: Sequence[TaskId]) -> None:
        """Recall the tasks that have not begun."""
        of = self._workers[worker]
        with of.lock:
            back = [i for i in tasks if of.waiting.pop(i, None) is not None]
        self._loop.call_soon(self._dispatcher.recalled, worker, back)

    def end_stream(self, worker: WorkerId, task: TaskId) -> None:
        """Take a call back that has not begun; a running stream ends early."""
        of = self._workers[worker]
        with of.lock:
            waited = of.waiting.pop(task, None) is not None
            if not waited:
                of.unwanted.add(task)
        if waited:
            self._loop.call_soon(self._dispatcher.recalled, worker, [task])

    def end_sequence(self, worker: WorkerId, model: str, sequence: SequenceId) -> None:
        """Drop the state of a sequence that has ended."""
        self._workers[worker].runner.end_sequence(model, sequence)

    def stop_workers(self) -> None:
        """Ask every thread to end; running calls finish, the others are recalled."""
        for name, worker in self._workers.items():
            self._dispatcher.worker_resized(name, 0)
            worker.stop()

    async def close(self) -> None:
        """End the threads; one that is inside a model ends when the model returns."""
        self.stop_workers()
