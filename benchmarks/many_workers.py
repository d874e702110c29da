"""The dispatcher with 1,000 workers: calls per second and memory, without sockets or models.

    make install && .venv/bin/python benchmarks/many_workers.py

A transport simulates the workers and answers each call in the next iteration of the event loop, so
the benchmark measures the dispatcher and the scheduler on one core, and how little 1,000 workers
differ from one. Twice as many calls as there are workers are kept in flight.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import time
from collections.abc import Sequence

import numpy as np
import uvloop

from farm.call import NO_HINTS, Call, ModelInfo, Operation, Result, TensorInfo, WorkerInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.scheduler.actions import Outcome
from farm.scheduler.state import TaskId, WorkerId
from farm.sequences import SequenceId
from machine import versions

MODEL = ModelInfo("m", (TensorInfo("x", (4,)),), (TensorInfo("y", (1,)),))
CALL = Call("m", Operation.EVALUATE, (np.zeros(4),))
RESULT = Result((np.zeros(1),), run_time_s=0.1)


class Simulated:
    """A transport whose workers answer at once."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._answers: dict[WorkerId, list[tuple[TaskId, Outcome]]] = {}

    def start(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._loop = asyncio.get_running_loop()
        for i in range(self._workers):
            dispatcher.worker_joined(WorkerInfo(f"host{i // 64}/{i}", (MODEL,)), self)

    def send(self, worker: WorkerId, tasks: Sequence[tuple[TaskId, Call]]) -> None:
        if not self._answers:
            self._loop.call_soon(self._answer)
        self._answers.setdefault(worker, []).extend((task_id, RESULT) for task_id, _ in tasks)

    def _answer(self) -> None:
        answers, self._answers = self._answers, {}
        for worker, of_worker in answers.items():
            self._dispatcher.finished(worker, of_worker)

    def recall(self, worker: WorkerId, tasks: Sequence[TaskId]) -> None:
        self._loop.call_soon(self._dispatcher.recalled, worker, [])

    def end_stream(self, worker: WorkerId, task: TaskId) -> None:
        """Do nothing: there are no streams here."""

    def end_sequence(self, worker: WorkerId, model: str, sequence: SequenceId) -> None:
        """Do nothing: none of the calls belongs to a sequence."""

    def stop_workers(self) -> None:
        pass

    async def close(self) -> None:
        pass


async def run(workers: int, calls: int) -> tuple[float, float]:
    """Return calls per second, and growth of memory in MiB over the second half of the calls."""
    dispatcher = Dispatcher([Simulated(workers)])
    dispatcher.start()
    left = [calls]
    over = asyncio.Event()
    halfway_kib = 0

    def done(outcome: Outcome) -> None:
        nonlocal halfway_kib
        left[0] -= 1
        if left[0] == calls // 2:
            halfway_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if left[0] >= 2 * workers:
            dispatcher.start_call(CALL, NO_HINTS, done)
        elif not left[0]:
            over.set()

    start = time.perf_counter()
    for _ in range(2 * workers):
        dispatcher.start_call(CALL, NO_HINTS, done)
    await over.wait()
    seconds = time.perf_counter() - start
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - halfway_kib
    return calls / seconds, grown_kib / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=200_000)
    calls = parser.parse_args().calls
    print(versions("uvloop", "numpy"))
    print(f"\n{'workers':>8}{'calls/s':>10}{'us a call':>11}{'grown by':>12}")
    for workers in (1, 100, 1000):
        per_s, grown = uvloop.run(run(workers, calls))
        print(f"{workers:8}{per_s:10.0f}{1e6 / per_s:11.1f}{grown:8.1f} MiB")


if __name__ == "__main__":
    main()
