"""A program that is 1,000 workers of a running farm, on 50 hosts by their own words.

    python -m tests.support.many_workers farm-run

Each has a line of its own to the farm, as a worker process has, and speaks the same messages. They
compute nothing: an answer comes after a time, three times as long at one of them. An input below 0
is never answered, and one of 1,000 and more fails. It runs until the farm ends.
"""

from __future__ import annotations

import heapq
import select
import sys
import time
from collections.abc import Callable

import numpy as np

from farm.call import Buffer, Call, ModelInfo, Result, TensorInfo, WorkerInfo
from farm.errors import ModelFailed
from farm.machine.resources import allow_many_open_files
from farm.transports.connection import read_connection
from farm.transports.dial import DialedLine, Dialer
from farm.transports.identity import worker_identity
from farm.wire import messages as wire
from farm.wire.messages import Kind, Outcome
from farm.wire.usage import ENDS_RUNS, Used

HOSTS, EACH = 50, 20
RUN_S = 0.1
SLOW, SLOWER = "node17/7", 3.0
"""The worker that is slow, and how much slower it is than the others."""

REPORT_EVERY_S = 5.0
MODEL = ModelInfo("beam", (TensorInfo("x", (1,)),), (TensorInfo("y", (1,)),))


class LightWorker:
    """One worker: what it runs is a time at which it answers."""

    def __init__(self, host: str, number: int, dialed: Callable[[str], DialedLine]) -> None:
        """dialed: returns a line to the farm for a worker's identity."""
        self.name = f"{host}/{number}"
        self.line = dialed(worker_identity(self.name))
        self.run_s = RUN_S * (SLOWER if self.name == SLOW else 1.0)
        labels = {"restarts": "0", ENDS_RUNS: "yes"}
        info = WorkerInfo(self.name, (MODEL,), host=host, pid=1000 + number, labels=labels)
        self.send(wire.encode_join("a", info))
        self.report()

    def send(self, frames: list[Buffer]) -> None:
        self.line.send(frames)
        self.line.flush(1.0)

    def report(self) -> None:
        """Tell the farm what it uses."""
        self.send(wire.encode(Kind.PROBE, Used(250_000_000, 0.5)._asdict()))

    def hear(self) -> list[tuple[int, Call]]:
        """Return the calls that have come; answer what else was asked."""
        calls: list[tuple[int, Call]] = []
        while (frames := self.line.receive()) is not None:
            message = wire.decode(frames)
            if message.kind is Kind.CALLS:
                _, some = wire.decode_calls(message)
                calls += [(task, call) for task, call in some if isinstance(call, Call)]
            elif message.kind is Kind.RECALL:
                self.send(wire.encode(Kind.RECALLED, []))
            elif message.kind is Kind.STOP:
                raise SystemExit
        if self.line.ended():
            raise SystemExit
        return calls

    def answer(self, task: int, call: Call) -> None:
        """Answer a call whose time has come."""
        x = float(call.inputs[0][0])
        outcome: Outcome = Result((np.array([2 * x]),), run_time_s=self.run_s)
        if x >= 1000:
            outcome = ModelFailed(f"no root in [{x}, {x + 1}]")
        self.send(wire.encode_answers([(task, outcome)]))


def main(folder: str) -> None:
    allow_many_open_files()
    poll = select.poll()
    workers = {}
    connection = read_connection(folder)

    def dialed(name: str) -> DialedLine:
        return Dialer(connection, name).dial()

    for host in range(HOSTS):
        for number in range(EACH):
            worker = LightWorker(f"node{host}", number, dialed)
            workers[worker.line.fileno()] = worker
            poll.register(worker.line.fileno(), select.POLLIN)
    order = 0
    runs: list[tuple[float, int, LightWorker, int, Call]] = []
    report_at = time.monotonic() + REPORT_EVERY_S
    while True:
        now = time.monotonic()
        until = min(report_at, runs[0][0] if runs else report_at)
        for fileno, _ in poll.poll(1000 * max(0.0, until - now)):
            worker = workers[fileno]
            for task, call in worker.hear():
                order += 1
                if call.inputs and call.inputs[0][0] >= 0:
                    due = time.monotonic() + worker.run_s
                    heapq.heappush(runs, (due, order, worker, task, call))
        now = time.monotonic()
        while runs and runs[0][0] <= now:
            _, _, worker, task, call = heapq.heappop(runs)
            worker.answer(task, call)
        if now >= report_at:
            report_at = now + REPORT_EVERY_S
            for worker in workers.values():
                worker.report()


if __name__ == "__main__":
    main(sys.argv[1])
