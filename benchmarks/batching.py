"""The gain of each way of batching: farm with it, beside farm without it, in turn.

    apt-get install wrk; make install && .venv/bin/python benchmarks/batching.py

A round measures both farms, each with one worker process, or two where a way needs them. The table
has medians over the rounds: calls per second, and processor time of the front door and its workers
for a call, without the way divided by with it. docs/batching.md describes the ways.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson
import psutil

import farm
from client_map import processor_s
from farm.transports.connection import read_connection
from machine import versions

MODELS = """
import time
import farm
import numpy as np

@farm.model(inputs={"x": 4}, outputs={"y": 1})
def fast(x):
    return x.sum()

class Derivatives(farm.Model):
    name = "derivatives"
    inputs = {"x": 4}
    outputs = {"y": 1}

    def evaluate(self, inputs, config):
        return inputs["x"].sum()

    def gradient(self, out_wrt, in_wrt, inputs, sens, config):
        return sens[0] * np.ones(4)

@farm.model(inputs={"x": 4}, outputs={"y": 1})
def tenth(x):
    end = time.perf_counter() + 1e-4
    while time.perf_counter() < end:
        pass
    return x.sum()

@farm.model(inputs={"x": 4}, outputs={"y": 1})
def millisecond(x):
    time.sleep(0.001)
    return x.sum()

@farm.model(inputs={"x": 4}, outputs={"y": 1})
def uneven(x):
    if x[0] == 7.0:
        time.sleep(0.5)
    return x.sum()

class Batches(farm.Model):
    inputs = {"x": 4}
    outputs = {"y": 1}
    max_batch = 64
    sleep_s = 0.0

    def evaluate(self, inputs, config):
        if self.sleep_s:
            time.sleep(self.sleep_s)
        return inputs["x"].sum(axis=1, keepdims=True)

class FastBatches(Batches):
    name = "fast_batches"

class SlowBatches(Batches):
    name = "slow_batches"
    sleep_s = 0.005
"""

PATCHES = """
import importlib.abc, os, sys

class Patched(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name != MODULE:
            return None
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(name, path, target)):
                self.loader, spec.loader = spec.loader, self
                return spec

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.loader.exec_module(module)
        exec(CODE, vars(module))

sys.meta_path.insert(0, Patched())
"""
"""Loaded by Python at the start of each process of the farm: changes one module of farm."""

WITHOUT = {
    "prefetch": ("scheduler.run_times", "RunTimes.prefetch_for = lambda *_: 0"),
    "recall": ("scheduler.recall", "for_idle = lambda *_: None"),
    "batches": (
        "scheduler.batching",
        "def take_batch(queue, head):\n    queue.remove(head)\n    return [head]",
    ),
    "pause": ("scheduler.batching", "LINGER = 0.0"),
    "map runs": (
        "transports.native_clients",
        "NativeClients._start_rows = lambda *_: False",
    ),
    "parts": (
        "dispatcher.feeder",
        "whole = PartitionedRows._next_rows\n"
        "PartitionedRows._next_rows = (\n"
        "    lambda self: 1 if self.rows.is_one_call else whole(self))",
    ),
    "gathering": (
        "dispatcher.gathering",
        "Gathered.start = lambda self, *arguments: self._inner.start(*arguments)",
    ),
    "split runs": ("worker.runner", "RowRun.split = lambda self: None"),
    "held answers": ("worker.host.host", "HOLD_ANSWERS_S = 0.0"),
}
"""For each way, the module of farm that has it, and what switches it off there."""


class Served(NamedTuple):
    """A farm that runs. run: its folder; processes: those that it consists of."""

    run: Path
    processes: list[psutil.Process]
    address: str


Load = Callable[[Served, float], float]
"""Gives a farm calls for `seconds` and returns how many it answered per second."""

SCRIPT = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
local many, rare, calls = [==[MANY]==], [==[RARE]==], 0
function request()
    calls = calls + 1
    return wrk.format(nil, nil, nil, calls % EVERY == 0 and rare or many)
end
function response(status, headers, body)
    if status ~= 200 then os.exit(3) end
end
"""


def calls(path: str, body: bytes, callers: int, rare: bytes = b"", every: int = 1 << 30) -> Load:
    """Return a load of callers over HTTP; one of `every` calls has the body `rare`."""
    text = SCRIPT.replace("MANY", body.decode()).replace("RARE", rare.decode())
    text = text.replace("EVERY", str(every))

    def load(served: Served, seconds: float) -> float:
        with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
            script.write(text)
            script.flush()
            command = ["wrk", "-t1", f"-c{callers}", f"-d{max(1, round(seconds))}s"]
            command += ["-s", script.name, served.address + path]
            shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        if "errors" in shown or "Non-2xx" in shown:
            raise RuntimeError(f"wrk says:\n{shown}")
        return float(shown.split("Requests/sec:")[1].split()[0])

    return load


def evaluate(model: str, callers: int) -> Load:
    """Return a load of UM-Bridge's Evaluate."""
    return calls("/Evaluate", um_bridge(model, 1.0), callers)


def um_bridge(model: str, first: float) -> bytes:
    """Return the body of a call."""
    return orjson.dumps({"name": model, "input": [[first, 2.0, 3.0, 4.0]], "config": {}})


def infer(model: str, callers: int, rows: int = 1) -> Load:
    """Return a load of KServe's inference with numbers in JSON."""
    tensor = {"name": "x", "shape": [rows, 4], "datatype": "FP64", "data": [1.0] * (4 * rows)}
    return calls(f"/v2/models/{model}/infer", orjson.dumps({"inputs": [tensor]}), callers)


def mapped(model: str, points: int) -> Load:
    """Return a load of the native client's map over an array, again and again."""
    array = np.random.default_rng(1).random((points, 4))

    def load(served: Served, seconds: float) -> float:
        with farm.connect(served.run) as client:
            its = client.model(model)
            count, start = 0, time.perf_counter()
            while time.perf_counter() - start < seconds:
                its.map(array)
                count += points
            return count / (time.perf_counter() - start)

    return load


def in_turn(model: str, points: int) -> Load:
    """Return a load of the native client's map over an iterator: calls follow answers."""
    array = np.random.default_rng(1).random((points, 4))

    def load(served: Served, seconds: float) -> float:
        with farm.connect(served.run) as client:
            its = client.model(model)
            count, start = 0, time.perf_counter()
            while time.perf_counter() - start < seconds:
                count += len(list(its.map(iter(array))))
            return count / (time.perf_counter() - start)

    return load


def beside_slow(served: Served, seconds: float) -> float:
    """Answer fast calls of 16 callers while a seventeenth makes slow ones; count the fast ones."""
    stop = threading.Event()

    def slow() -> None:
        with farm.connect(served.address) as client:
            model = client.model("uneven")
            while not stop.is_set():
                model([7.0, 2.0, 3.0, 4.0])

    other = threading.Thread(target=slow)
    other.start()
    try:
        return evaluate("uneven", 16)(served, seconds)
    finally:
        stop.set()
        other.join()


HTTP = {f"Evaluate, {n} callers": evaluate("fast", n) for n in (1, 16, 64)}
KSERVE = {f"KServe, {n} callers": infer("fast", n) for n in (16, 64)}
MAP = {
    "map of 20,000 points": mapped("fast", 20_000),
    "map of an iterator": in_turn("fast", 5_000),
}
GRADIENT = orjson.loads(um_bridge("derivatives", 1.0)) | {"outWrt": 0, "inWrt": 0, "sens": [1.0]}
APART = {
    f"Gradient, {n} callers": calls("/Gradient", orjson.dumps(GRADIENT), n) for n in (16, 64)
} | {f"Evaluate of 0.1 ms, {n} callers": evaluate("tenth", n) for n in (16, 64)}
SLOWER = {"Evaluate of 1 ms, 16 callers": evaluate("millisecond", 16)} | APART
ROWS = {"KServe, 1 caller, 256 rows": infer("fast", 1, 256)}
FAST_BATCHES = {f"KServe, fast batches, {n} callers": infer("fast_batches", n) for n in (16, 64)}
SLOW_BATCHES = {
    f"KServe, batches of 5 ms, {n} callers": infer("slow_batches", n) for n in (4, 16, 64)
}
RARE = {
    "Evaluate, 16 callers, one call of 5,000 slow": calls(
        "/Evaluate", um_bridge("uneven", 1.0), 16, um_bridge("uneven", 7.0), 5_000
    )
}
BESIDE: dict[str, Load] = {"Evaluate beside slow calls, 16 callers": beside_slow}

LOADS: dict[str, dict[str, Load]] = {
    "prefetch": HTTP | SLOWER | MAP | FAST_BATCHES,
    "recall": BESIDE,
    "batches": FAST_BATCHES | SLOW_BATCHES,
    "pause": SLOW_BATCHES,
    "map runs": MAP,
    "parts": ROWS,
    "gathering": HTTP | KSERVE | FAST_BATCHES,
    "split runs": RARE,
    "held answers": HTTP | KSERVE | MAP | SLOWER | FAST_BATCHES,
}
"""The loads that each way is for."""

OF_TWO_WORKERS = ("recall", "split runs")


@contextlib.contextmanager
def served(folder: Path, way: str, workers: int, transport: str) -> Iterator[Served]:
    """Run a farm without a way; "": with all."""
    folder.mkdir(parents=True)
    (folder / "models.py").write_text(MODELS)
    environment = dict(os.environ)
    if way:
        module, code = WITHOUT[way]
        text = PATCHES.replace("MODULE", repr(f"farm.{module}")).replace("CODE", repr(code))
        (folder / "sitecustomize.py").write_text(text)
        paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    names = "fast", "Derivatives", "tenth", "millisecond", "uneven", "FastBatches", "SlowBatches"
    command = [sys.executable, "-m", "farm", "serve", *[f"{folder}/models.py:{n}" for n in names]]
    command += ["--port", "0", "--workers", str(workers), "--dir", str(folder / "run")]
    command += ["--transport", transport]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=quiet, stderr=quiet, env=environment) as process:
        try:
            run, give_up = folder / "run", time.monotonic() + 120
            while True:
                try:
                    with farm.connect(run) as client:
                        rows = client.status()["workers"]
                        if len(rows) >= workers and read_connection(run).url:
                            break
                except farm.FarmError:
                    pass
                if time.monotonic() > give_up or process.poll() is not None:
                    raise RuntimeError(f"the farm without {way!r} did not start")
                time.sleep(0.1)
            pids = [process.pid, *[row["pid"] for row in rows]]
            yield Served(run, [*map(psutil.Process, pids)], read_connection(run).url)
        finally:
            process.terminate()


def measured(it: Served, load: Load, seconds: float) -> tuple[float, float]:
    """Return the calls per second, and the processor time for a call."""
    before = sum(map(processor_s, it.processes))
    start = time.perf_counter()
    rate = load(it, seconds)
    lasted_s = time.perf_counter() - start
    return rate, (sum(map(processor_s, it.processes)) - before) / (rate * lasted_s)


def compare(way: str, folder: Path, options: argparse.Namespace) -> None:
    """Print the ratios of a way for each of its loads."""
    workers = 2 if way in OF_TWO_WORKERS else 1
    with (
        served(folder / "with", "", workers, options.transport) as having,
        served(folder / "without", way, workers, options.transport) as lacking,
    ):
        for name, load in LOADS[way].items():
            if options.loads not in name:
                continue
            rates: list[float] = []
            costs: list[float] = []
            shown: list[tuple[float, float]] = []
            for it in (having, lacking):
                load(it, 1.0)
            for number in range(options.rounds):
                pair = (having, lacking) if number % 2 else (lacking, having)
                found = {id(it): measured(it, load, options.seconds) for it in pair}
                ours, theirs = found[id(having)], found[id(lacking)]
                rates.append(theirs[0] / ours[0])
                costs.append(theirs[1] / ours[1])
                shown.append(ours)
            rate, cost = (statistics.median(column) for column in zip(*shown, strict=True))
            low, high = sorted(costs)[len(costs) // 4], sorted(costs)[-1 - len(costs) // 4]
            print(
                f"{way:14}{name:42}{rate:9.0f}{cost * 1e6:9.1f}"
                f"{statistics.median(rates):9.2f}{statistics.median(costs):9.2f}"
                f"  ({low:.2f} to {high:.2f})",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=1, help="length of each load")
    parser.add_argument("--transport", choices=("auto", "zmq"), default="auto")
    parser.add_argument("--loads", default="", help="only those whose names contain this")
    parser.add_argument("--ways", nargs="+", choices=WITHOUT, default=list(WITHOUT))
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        sys.exit("this needs wrk: apt-get install wrk")
    print(versions("numpy", "orjson"))
    print(f"\n{'':56}{'with it':>18}{'without it / with it':>24}")
    head = ("calls/s", "us/call", "rate", "time")
    print(f"{'':56}" + "".join(f"{name:>9}" for name in head))
    with tempfile.TemporaryDirectory() as folder:
        for way in options.ways:
            compare(way, Path(folder) / way.replace(" ", "-"), options)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
