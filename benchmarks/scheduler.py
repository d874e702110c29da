"""Microseconds of scheduler time per call: accept, place, send, answer, and free the slot.

There is no transport, and the only clock is the benchmark's: it times every call of
`Scheduler.submit`, `finished` and `actions` that one evaluation costs, as the dispatcher makes them
for each message. `median` is over chunks of calls, `best` is the fastest chunk: the cost of the
code if nothing else runs on the machine. The budget is 10 microseconds with 1,000 workers.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))

from farm.call import Call, ModelInfo, Operation, Result, TensorInfo
from farm.scheduler.actions import Reply, Send
from farm.scheduler.core import Scheduler
from farm.scheduler.state import TaskId, WorkerId
from machine import versions
from tests.support.scheduler_invariants import check

CALLS = 40_000
CHUNK = 2_000


def model(name: str, max_batch: int) -> ModelInfo:
    return ModelInfo(name, (TensorInfo("x", (4,)),), (TensorInfo("y", (1,)),), max_batch=max_batch)


@dataclass
class Case:
    """`waiting`: calls in the farm per worker; above 1 every worker is busy and some calls wait.

    models: the models that worker i serves. run_time_s: tiny models get many calls per message.
    """

    title: str
    workers: int
    waiting: float
    clients: int = 1
    max_batch: int = 1
    run_time_s: float = 1.0
    models: Callable[[int], Sequence[str]] = field(default=lambda i: ("m",))
    ends_at: Callable[[int], float | None] = field(default=lambda i: None)
    deadline_s: float | None = None


CASES = [
    Case("1 worker, idle", 1, 0.5),
    Case("1 worker, calls wait", 1, 50.0),
    Case("100 workers, half idle", 100, 0.5),
    Case("100 workers, calls wait", 100, 2.0),
    Case("1,000 workers, half idle", 1000, 0.5),
    Case("1,000 workers, calls wait", 1000, 2.0),
    Case("... that all end at other times", 1000, 2.0, ends_at=lambda i: 1e6 + 100.0 * i),
    Case("... with deadlines", 1000, 2.0, deadline_s=1e4),
    Case(
        "... in 50 pools of 2 of 50 models each",
        1000,
        2.0,
        models=lambda i: (f"m{i % 50}", f"m{(i + 1) % 50}"),
    ),
    Case("... for 10 clients", 1000, 2.0, clients=10),
    Case("... for 10,000 clients", 1000, 12.0, clients=10_000),
    Case("... in batches of 64", 1000, 200.0, max_batch=64),
    Case("... of 50 us, many to a message", 1000, 200.0, run_time_s=5e-5),
]


def measure(case: Case) -> list[float]:
    """Return seconds per call, one number for each chunk of calls."""
    scheduler = Scheduler(max_queued=10**9, max_queued_per_client=10**9)
    names = sorted({name for i in range(case.workers) for name in case.models(i)})
    infos = {name: model(name, case.max_batch) for name in names}
    calls = [Call(name, Operation.EVALUATE, (np.zeros(4),)) for name in names]
    answer = Result((np.zeros(1),), case.run_time_s)
    now = 0.0
    for i in range(case.workers):
        offered = [infos[name] for name in case.models(i)]
        scheduler.worker_joined(WorkerId(f"n/{i}"), offered, ends_at=case.ends_at(i), now=now)
    running: deque[tuple[WorkerId, list[TaskId]]] = deque()
    spent = 0.0
    submitted = 0

    def act() -> None:
        nonlocal spent
        begin = perf_counter()
        actions = scheduler.actions(now)
        spent += perf_counter() - begin
        for action in actions:
            if isinstance(action, Send):
                running.append((action.worker, [task.id for task in action.tasks]))
            else:
                assert isinstance(action, Reply)

    def submit() -> None:
        nonlocal spent, submitted
        submitted += 1
        call = calls[submitted % len(calls)]
        client = f"client {submitted % case.clients}"
        deadline = None if case.deadline_s is None else now + case.deadline_s
        begin = perf_counter()
        scheduler.submit(call, client=client, deadline=deadline, now=now)
        spent += perf_counter() - begin

    def answer_next() -> int:
        nonlocal spent
        worker, tasks = running.popleft()
        begin = perf_counter()
        for task in tasks:
            scheduler.finished(worker, task, answer, now=now)
        spent += perf_counter() - begin
        return len(tasks)

    for _ in range(int(case.workers * case.waiting) or 1):
        submit()
    act()
    chunks = []
    done = 0
    spent = 0.0
    for _ in range(CALLS + 2 * CHUNK):
        now += case.run_time_s / case.workers
        submit()
        act()
        done += 1
        while len(scheduler) > case.workers * case.waiting and running:
            answer_next()
            act()
        if done == CHUNK:
            chunks.append(spent / done)
            spent, done = 0.0, 0
    check(scheduler)
    return chunks[2:]  # the first ones fill idle workers at the start


def main() -> None:
    """Print the table."""
    print(versions("numpy"))
    print()
    print(f"{'':42} {'median':>9} {'best':>9}")
    for case in CASES:
        seconds = sorted(measure(case))
        median, best = seconds[len(seconds) // 2], seconds[0]
        print(f"{case.title:42} {median * 1e6:6.1f} us {best * 1e6:6.1f} us")


if __name__ == "__main__":
    main()
