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
from farm.worker.runner import Runner, timed

if TYPE_CHECKING:
    from farm.dispatcher.dispatcher import Dispatcher

Answers = list[tuple[TaskId, Outcome]]


class _Worker:
    """One thread with its own Runner, and its queue of calls."""

    def __init__(self, name: WorkerId, models: Mapping[str, Model]) -> None:
        self.name = name
        self.runner = Runner(models)
        self.something_new: queue.SimpleQueue[None] = queue.SimpleQueue()
        # Guarded by the lock: calls that have not begun and may be recalled.
        self.lock = threading.Lock()
        self.waiting: dict[TaskId, tuple[Call, float]] = {}  # with their arrival times
        self.unwanted: set[TaskId] = set()  # streams to be ended
        self.claimed_at = 0.0
        self.stopped = False

    def run(self, tell: Callable[[Answers], None], gone: Callable[[], None]) -> None:
        """Run calls as they arrive until stopped; hand back those that have not begun by then."""
        while not self.stopped:
            self.something_new.get()
            with self.lock:
                batch = list(self.waiting.items())
            ids = [task_id for task_id, _ in batch]
            calls = [call for _, (call, _) in batch]
            cancelled = self._is_unwanted(ids)
            for outcomes in self.runner.run(
                calls, None, self._claimer(ids), cancelled, lambda _: self.stopped
            ):
                tell([(ids[i], self._timed(outcome, batch[i][1][1])) for i, outcome in outcomes])
            with self.lock:
                self.unwanted.difference_update(ids)
        gone()

    def _claimer(self, ids: Sequence[TaskId]) -> Callable[[Sequence[int]], list[int]]:
        def claim(positions: Sequence[int]) -> list[int]:
            with self.lock:
                if self.stopped:
                    return []
                self.claimed_at = time.perf_counter()
                return [i for i in positions if self.waiting.pop(ids[i], None) is not None]

        return claim

    def _is_unwanted(self, ids: Sequence[TaskId]) -> Callable[[int], bool]:
        return lambda position: ids[position] in self.unwanted

    def _timed(self, outcome: Outcome, came_at: float) -> Outcome:
        return timed(outcome, self.claimed_at - came_at) if isinstance(outcome, Result) else outcome

    def stop(self) -> None:
        """End after the model call that is running."""
        with self.lock:
            self.stopped = True
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
            threading.Thread(
                target=worker.run,
                args=(self._teller(name), self._goodbye(name)),
                name=name,
                daemon=True,
            ).start()
            info = WorkerInfo(name, models, host=self._host, pid=os.getpid())
            dispatcher.worker_joined(info, self)

    def _teller(self, name: WorkerId) -> Callable[[Answers], None]:
        return lambda answers: self._soon(lambda: self._dispatcher.finished(name, answers))

    def _goodbye(self, name: WorkerId) -> Callable[[], None]:
        return lambda: self._soon(
            lambda: self._dispatcher.worker_left(name, "stopped", drained=True)
        )

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
            answers: Answers = [(task_id, worker.runner.execute([call])[0])]
            self._teller(worker.name)(answers)

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
        """Ask every thread to end; running calls finish, the others are handed back."""
        for name, worker in self._workers.items():
            self._dispatcher.worker_resized(name, 0)
            worker.stop()

    async def close(self) -> None:
        """End the threads; one that is inside a model ends when the model returns."""
        self.stop_workers()
