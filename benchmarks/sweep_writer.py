"""Rows per second of the sweep writer beside plain h5py, one after the other in one run.

    make install && .venv/bin/python benchmarks/sweep_writer.py

A row is a finished point: its outputs, its status, its times. farm's writer also keeps a journal
that survives any kill; the others keep nothing. By hand a user would write either a file
that grows row by row, or one of full size; "batches" is the best that h5py can do.

`--long 10000000` writes one sweep of that many rows with farm's writer instead, in an order that
64 workers could finish them in, and prints rows/s and the memory of the process in tenths.

`--resume 100000` kills a writer of that many rows, of 28 and of 337 numbers, after 90 % of them in
random order, and prints how long it takes until the sweep goes on, and to finish it at the end.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import psutil

from farm.call import Array, ModelInfo, TensorInfo
from farm.sweep.design.plan import Plan
from farm.sweep.design.points import parse_design
from farm.sweep.design.prepare import SweepRequest, make_plan
from farm.sweep.file.claim import Claim
from farm.sweep.file.journal import PointStatus, Row
from farm.sweep.file.store import COMPLETE, Store
from farm.sweep.space.parameters import Uniform
from machine import versions

BATCH = 256
Writer = Callable[[Path, Array, Array], None]


def plan_of(rows: int, size: int) -> Plan:
    """Return a sweep of one parameter and one output of `size` numbers."""
    info = ModelInfo("m", (TensorInfo("k", (1,)),), (TensorInfo("y", (size,)),))
    request = SweepRequest(parse_design(f"random:{rows}"), 0, {"k": Uniform(0, 1)})
    return make_plan(request, lambda config: info)


def farm_writer(path: Path, order: Array, values: Array, *, close: bool = True) -> None:
    """farm: each row to the journal at once, batches to the file; verified at the end."""
    store = Store.create(path, plan_of(len(order), values.shape[1]))
    worker = store.worker_id("node/1")
    for point in order.tolist():
        store.add(Row(point, PointStatus.DONE, 1, worker, 1.7e9, 0.1, 0.0, 0.1, values[point]))
    if close:
        store.close(COMPLETE, {})
    else:
        store.close("interrupted", {})


def without_verification(path: Path, order: Array, values: Array) -> None:
    """farm, but without reading everything again at the end."""
    farm_writer(path, order, values, close=False)


def growing(path: Path, order: Array, values: Array) -> None:
    """h5py: the file grows by a row, which is written and flushed, as many scripts do."""
    with h5py.File(path, "w") as file:
        y = file.create_dataset("y", (0, values.shape[1]), "f8", maxshape=(None, values.shape[1]))
        status = file.create_dataset("status", (0,), "u1", maxshape=(None,))
        t_run = file.create_dataset("t_run", (0,), "f8", maxshape=(None,))
        for k, point in enumerate(order.tolist()):
            for data, value in ((y, values[point]), (status, 1), (t_run, 0.1)):
                data.resize(k + 1, axis=0)
                data[k] = value
            file.flush()


def row_by_row(path: Path, order: Array, values: Array) -> None:
    """h5py: full size from the start, each row written separately, one flush at the end."""
    with h5py.File(path, "w") as file:
        y = file.create_dataset("y", values.shape, "f8")
        status = file.create_dataset("status", (len(order),), "u1")
        t_run = file.create_dataset("t_run", (len(order),), "f8")
        for point in order.tolist():
            y[point] = values[point]
            status[point] = 1
            t_run[point] = 0.1


def batches(path: Path, order: Array, values: Array) -> None:
    """h5py: full size from the start, sorted batches, a flush for each."""
    with h5py.File(path, "w") as file:
        y = file.create_dataset("y", values.shape, "f8")
        status = file.create_dataset("status", (len(order),), "u1")
        t_run = file.create_dataset("t_run", (len(order),), "f8")
        for start in range(0, len(order), BATCH):
            points = np.sort(order[start : start + BATCH])
            y[points] = values[points]
            status[points] = 1
            t_run[points] = 0.1
            file.flush()


WRITERS: dict[str, Writer] = {
    "farm": farm_writer,
    "farm, not verified": without_verification,
    "h5py, growing row by row": growing,
    "h5py, full size, row by row": row_by_row,
    "h5py, full size, batches": batches,
}


def measure(folder: Path, rows: int, size: int, *, in_order: bool, repeat: int) -> None:
    """Print a table: rows/s of each writer, the median of some runs, and its ratio to farm's."""
    rng = np.random.default_rng(0)
    values = rng.random((rows, size))
    order = np.arange(rows) if in_order else rng.permutation(rows)
    rates: dict[str, list[float]] = {name: [] for name in WRITERS}
    for _ in range(repeat):
        for name, writer in WRITERS.items():
            path = folder / f"{len(list(folder.iterdir()))}.h5"
            began = time.perf_counter()
            writer(path, order, values)
            rates[name].append(rows / (time.perf_counter() - began))
            for left in folder.iterdir():
                left.unlink()
    ours = statistics.median(rates["farm"])
    print(f"\n{rows} rows of {size} numbers, {'in order' if in_order else 'in random order'}")
    for name, found in rates.items():
        rate = statistics.median(found)
        print(f"  {name:28} {rate:10,.0f} rows/s   farm is {ours / rate:5.2f} times as fast")


def long_sweep(path: Path, rows: int) -> None:
    """Write one long sweep of 4 numbers a row, and print rows/s and memory after each tenth.

    A value is a function of its row, so that no array of all values is in memory.
    """
    process = psutil.Process()

    def said(what: str, count: int, began: tuple[float, float]) -> None:
        times = process.cpu_times()
        seconds = time.perf_counter() - began[0]
        processor_us = (times.user + times.system - began[1]) / count * 1e6
        rss = process.memory_info().rss / 1e6
        costs = f"{processor_us:7.1f} us of processor time a row{rss:9,.0f} MB"
        print(f"  {what:22}{count / seconds:9,.0f} rows/s{costs}", flush=True)

    def now() -> tuple[float, float]:
        times = process.cpu_times()
        return time.perf_counter(), times.user + times.system

    print(f"\n{rows} rows of 4 numbers")
    began = now()
    store = Store.create(path, plan_of(rows, 4))
    said("created", rows, began)
    worker = store.worker_id("node/1")
    rng = np.random.default_rng(0)
    tenth = max(1, rows // 10)
    for first in range(0, rows, tenth):
        began = now()
        last = min(rows, first + tenth)
        for start in range(first, last, 64):
            points = start + rng.permutation(min(64, last - start))
            for point in points.tolist():
                values = np.array([point, point + 1.0, point + 2.0, point + 3.0])
                store.add(Row(point, PointStatus.DONE, 1, worker, 1.7e9, 0.1, 0.0, 0.1, values))
        said(f"{last} written", last - first, began)
    began = now()
    store.close(COMPLETE, {})
    said("closed and verified", rows, began)


def resume(path: Path, rows: int, size: int) -> None:
    """Kill a writer after most of its rows; print the seconds to continue and to finish."""
    order = np.random.default_rng(0).permutation(rows)
    most = rows * 9 // 10
    values = np.arange(float(size))

    def add(store: Store, points: Array) -> None:
        worker = store.worker_id("node/1")
        for point in points.tolist():
            row = values + point
            store.add(Row(point, PointStatus.DONE, 1, worker, 1.7e9, 0.1, 0.0, 0.1, row))

    if not (child := os.fork()):
        store = Store.create(path, plan_of(rows, size))
        add(store, order[:most])
        store.commit()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    began = time.perf_counter()
    store = Claim(path).resume()
    continued = time.perf_counter() - began
    add(store, order[most:])
    began = time.perf_counter()
    store.close(COMPLETE, {})
    closed = time.perf_counter() - began
    print(
        f"{rows} rows of {size} numbers, {path.stat().st_size / 1e6:.0f} MB: "
        f"goes on after {continued:.2f} s, finished and verified in {closed:.2f} s"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="folder to write to; default: a temporary one")
    parser.add_argument(
        "--long", type=int, metavar="ROWS", help="write one sweep of this many rows"
    )
    parser.add_argument("--resume", type=int, metavar="ROWS", help="kill and continue a sweep")
    options = parser.parse_args()
    print(versions("h5py", "numpy"))
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        if options.long:
            long_sweep(Path(folder) / "long.h5", options.long)
            return
        if options.resume:
            for size in (28, 337):
                resume(Path(folder) / f"{size}.h5", options.resume, size)
            return
        for size in (4, 200):
            for in_order in (True, False):
                measure(Path(folder), options.rows, size, in_order=in_order, repeat=options.repeat)


if __name__ == "__main__":
    main()
