"""The local transport: worker threads in this very program, for tests, examples and notebooks.

Models that hold the GIL gain nothing from several threads; `farm serve` uses processes instead.
"""

from __future__ import annotations

import asyncio
import os
import queue
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from farm.call import Call, WorkerInfo
from farm.model import Model
from farm.scheduler.actions import Outcome
from farm.scheduler.state import TaskId, WorkerId, needs_no_slot
from farm.worker.run import Runner

if TYPE_CHECKING:
    from farm.dispatcher import Dispatcher

_STOP = None


class _Worker:
    """One thread with its own Runner, and the calls that wait for it."""

    def __init__(self, name: WorkerId, models: Mapping[str, Model]) -> None:
        self.name = name
        self.runner = Runner(models)
        self.arrived: queue.SimpleQueue[object] = queue.SimpleQueue()
        # Under the lock: calls that have not begun, which may be taken back.
        self.lock = threading.Lock()
        self.waiting: dict[TaskId, Call] = {}

    def run(
        self, tell: Callable[[list[tuple[TaskId, Outcome]]], None], gone: Callable[[], None]
    ) -> None:
        while self.arrived.get() is not _STOP:
            with self.lock:
                batch = list(self.waiting.items())
            if not batch:
                continue
            ids = [task_id for task_id, _ in batch]
            for outcomes in self.runner.run([c for _, c in batch], claim=self._claimer(ids)):
                tell([(ids[i], outcome) for i, outcome in outcomes])
        gone()

    def _claimer(self, ids: Sequence[TaskId]) -> Callable[[Sequence[int]], list[int]]:
        def claim(positions: Sequence[int]) -> list[int]:
            with self.lock:
                return [i for i in positions if self.waiting.pop(ids[i], None) is not None]

        return claim


class LocalTransport:
    """`workers` threads, each with the same model objects: one slot each."""

    def __init__(self, models: Mapping[str, Model], *, workers: int = 1) -> None:
        host = socket.gethostname()
        self._workers = {
            name: _Worker(name, models)
            for name in (WorkerId(f"{host}/{os.getpid()}-thread{i}") for i in range(workers))
        }
        self._threads: list[threading.Thread] = []

    def start(self, dispatcher: Dispatcher) -> None:
        """Begin, on the running loop."""
        self._dispatcher = dispatcher
        self._loop = asyncio.get_running_loop()
        for name, worker in self._workers.items():
            thread = threading.Thread(
                target=worker.run,
                args=(self._teller(name), self._goodbye(name)),
                name=name,
                daemon=True,
            )
            self._threads.append(thread)
            thread.start()
            info = WorkerInfo(
                name, worker.runner.models(), host=socket.gethostname(), pid=os.getpid()
            )
            dispatcher.worker_joined(info, self)

    def _teller(self, name: WorkerId) -> Callable[[list[tuple[TaskId, Outcome]]], None]:
        def tell(answers: list[tuple[TaskId, Outcome]]) -> None:
            self._soon(lambda: self._dispatcher.finished(name, answers))

        return tell

    def _goodbye(self, name: WorkerId) -> Callable[[], None]:
        return lambda: self._soon(
            lambda: self._dispatcher.worker_left(name, "stopped", drained=True)
        )

    def _soon(self, tell: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(tell)

    def send(self, worker: WorkerId, tasks: Sequence[tuple[TaskId, Call]]) -> None:
        """Give tasks to a worker."""
        to = self._workers[worker]
        described = [
            (task_id, to.runner.execute([call])[0])
            for task_id, call in tasks
            if needs_no_slot(call.operation)
        ]
        if described:
            self._loop.call_soon(self._dispatcher.finished, worker, described)
        with to.lock:
            to.waiting.update((i, call) for i, call in tasks if not needs_no_slot(call.operation))
        to.arrived.put(True)

    def take_back(self, worker: WorkerId, tasks: Sequence[TaskId]) -> None:
        """Take back what has not begun."""
        of = self._workers[worker]
        with of.lock:
            back = [i for i in tasks if of.waiting.pop(i, None) is not None]
        self._loop.call_soon(self._dispatcher.taken_back, worker, back)

    def stop_workers(self) -> None:
        """Ask every thread to end; what it has is finished or handed back."""
        for worker in self._workers.values():
            worker.arrived.put(_STOP)

    async def close(self) -> None:
        """Nothing is held but the threads, which end by themselves."""
