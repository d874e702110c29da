"""The cost of the record per call, and per point in memory and on disk.

    .venv/bin/python benchmarks/record.py

"dispatcher" is the front door's processor time per call around a worker that answers at once:
without a record, with one, and with one that may answer; then the same calls again, all of them
answered from the record. They run in turns, so that all meet the same moments of a busy machine.
"file" is the record alone: the memory of its index, its size, and the time to open it.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from farm.call import Call, Hints, ModelInfo, Operation, Result, TensorInfo, WorkerInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.record.entry import Entry, encoded
from farm.record.file import RecordFile
from farm.record.key import keys_of
from farm.record.recorder import Recorder
from farm.scheduler.state import TaskId, WorkerId
from farm.sequences import SequenceId
from machine import versions

INFO = ModelInfo("m", (TensorInfo("x", (10,)),), (TensorInfo("y", (1,)),), version="1")
OPEN = 16
"""Calls in flight."""


class Worker:
    """A transport whose one worker answers in the next turn of the event loop."""

    def start(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        dispatcher.worker_joined(WorkerInfo("w/1", (INFO,), slots=OPEN), self)

    def send(self, worker: WorkerId, tasks: Sequence[tuple[TaskId, Call]]) -> None:
        answers = [(task_id, Result((call.inputs[0][:1],), 0.001)) for task_id, call in tasks]
        asyncio.get_running_loop().call_soon(self.dispatcher.finished, worker, answers)

    def recall(self, worker: WorkerId, tasks: Sequence[TaskId]) -> None:
        self.dispatcher.recalled(worker, [])

    def end_stream(self, worker: WorkerId, task: TaskId) -> None:
        """Nothing streams here."""

    def end_sequence(self, worker: WorkerId, model: str, sequence: SequenceId) -> None:
        """Do nothing: none of the calls belongs to a sequence."""

    def stop_workers(self) -> None:
        self.dispatcher.worker_left(WorkerId("w/1"), "stopped", drained=True)

    async def close(self) -> None:
        """Nothing is open."""


async def measured(points: np.ndarray, recorder: Recorder | None) -> float:
    """Return microseconds of processor time per call."""
    dispatcher = Dispatcher([Worker()], memory=recorder)
    if recorder is not None:
        recorder.start(dispatcher.description, dispatcher.note)
    dispatcher.start()
    calls = iter([Call("m", Operation.EVALUATE, (x,)) for x in points])
    left = len(points)
    done = asyncio.Event()

    def next_call(outcome: object = None) -> None:
        nonlocal left
        left -= outcome is not None
        call = next(calls, None)
        if call is not None:
            dispatcher.start_call(call, Hints("c", chain="c"), next_call)
        elif not left:
            done.set()

    began = time.process_time()
    for _ in range(OPEN):
        next_call()
    await done.wait()
    took = time.process_time() - began
    await dispatcher.close()
    return took / len(points) * 1e6


def own_memory() -> int:
    """Return the bytes of memory that this process has for itself, without the pages of files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def calls(folder: Path, count: int, rounds: int) -> None:
    """Print processor time per call with and without a record."""
    times: dict[str, list[float]] = {"no record": [], "--record": [], "--record --reuse": []}
    times["answered from it"] = []
    random = np.random.default_rng(1)
    for number in range(rounds):
        points = random.random((count, 10))
        times["no record"].append(asyncio.run(measured(points, None)))
        for name, reuses in (("--record", False), ("--record --reuse", True)):
            recorder = Recorder(folder / f"{number}{reuses}", reuses=reuses)
            times[name].append(asyncio.run(measured(points, recorder)))
            if reuses:
                times["answered from it"].append(asyncio.run(measured(points, recorder)))
            recorder.close()
    base = times["no record"]
    print(f"\ndispatcher, {OPEN} calls in flight, 10 inputs, 1 output: µs of processor time a call")
    for name, found in times.items():
        more = statistics.median([one - other for one, other in zip(found, base, strict=True)])
        print(f"  {name:18} {statistics.median(found):6.1f}   {more:+6.1f}")


def file(folder: Path, count: int) -> None:
    """Print bytes per point and the time to open a record."""
    path = folder / "large"
    record = RecordFile(path, indexed=False)
    random = np.random.default_rng(2)
    began = time.perf_counter()
    batch = []
    for k in range(count):
        x = random.random(10)
        (key,) = keys_of(Call("m", Operation.EVALUATE, (x,)), INFO, "1")
        entry = Entry(
            key, "m", "1", Operation.EVALUATE, "{}", (x,), (x[:1],), worker="node1/1-ab", time=k
        )
        batch.append(encoded(entry))
        if len(batch) == OPEN:
            record.add(batch)
            batch = []
    record.close()
    wrote = time.perf_counter() - began
    before = own_memory()
    began = time.perf_counter()
    record = RecordFile(path, indexed=True)
    opened = time.perf_counter() - began
    grown = own_memory() - before
    assert record.index is not None
    points = len(record.index)
    print(f"\nfile of {points:,} points, 10 inputs, 1 output")
    print(f"  on disk            {path.stat().st_size / points:6.1f} bytes a point")
    print(f"  index              {record.index.nbytes / points:6.1f} bytes a point")
    print(f"  memory when opened {grown / points:6.1f} bytes a point")
    print(f"  writing            {wrote / points * 1e6:6.1f} µs a point")
    print(f"  opening            {opened / points * 1e6:6.1f} µs a point, {opened:.1f} s")
    record.close()


def main() -> None:
    """Run both measurements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=20_000, help="calls per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--points", type=int, default=300_000, help="points of the file")
    parser.add_argument("--folder", type=Path, help="folder on the disk to measure")
    chosen = parser.parse_args()
    print(versions("numpy"))
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        calls(Path(folder), chosen.calls, chosen.rounds)
        file(Path(folder), chosen.points)


if __name__ == "__main__":
    main()
