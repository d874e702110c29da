"""Calls per second of a map over many points of a trivial model, one worker process everywhere.

farm's client, native and over HTTP, beside ProcessPoolExecutor.map and dask.distributed's
Client.map, one after the other in one run:

    make install && .venv/bin/python benchmarks/client_map.py

A call has 4 numbers in and 1 out. The processor time of farm's three processes is printed beside
its rate, because other load on the machine lowers the rate. `--counts` counts instead the function
calls of each process for a mapped call, by the profiler, with the functions that take most of it.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import os
import pstats
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray

import farm
from farm.transports.connection import read_connection
from machine import versions

MODEL = """
import farm

@farm.model(inputs={"x": 4}, outputs={"y": 1})
def forward(x):
    return x.sum()
"""

COUNTING = """
import cProfile, os, signal, sys

def toggle(number, frame, profiles=[]):
    path = os.path.join(os.environ["COUNTED"], str(os.getpid()))
    if not profiles:
        profiles.append(cProfile.Profile())
        profiles[0].enable()
        open(path, "w").close()
        return
    profile = profiles.pop()
    profile.disable()
    profile.dump_stats(path + ".part")
    os.replace(path + ".part", path + ".done")

signal.signal(signal.SIGURG, toggle)
"""
"""Loaded by Python at the start of each process of the farm: SIGURG begins and ends a profile."""

COUNTED = 20_000
"""Mapped calls that are counted."""

Array = NDArray[np.float64]
Map = Callable[[Array], Array]


def trivial(x: Array) -> float:
    """The function that the other contenders run."""
    return float(x.sum())


def in_chunks(pool: ProcessPoolExecutor, size: int) -> Map:
    """Return the pool's map with chunks of `size` calls."""
    return lambda points: np.array(list(pool.map(trivial, points, chunksize=size)))


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[Path, psutil.Process]]:
    """Run `farm serve --workers 1`; yield its run folder and its process."""
    (folder / "model.py").write_text(MODEL)
    run = folder / "run"
    command = [sys.executable, "-m", "farm", "serve", str(folder / "model.py"), "--port", "0"]
    with subprocess.Popen(
        [*command, "--dir", str(run)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            give_up = time.monotonic() + 60
            while time.monotonic() < give_up and process.poll() is None:
                with contextlib.suppress(farm.FarmError):
                    if read_connection(run).url:
                        break
                time.sleep(0.05)
            yield run, psutil.Process(process.pid)
        finally:
            process.terminate()


class Contender:
    """One way to map, and the rates that it reached."""

    def __init__(self, name: str, run: Map, *, share: float = 1.0) -> None:
        self.name = name
        self.run = run
        self.share = share  # of the points: a slow contender gets fewer
        self.processes: dict[str, psutil.Process] = {}
        self.rates: list[float] = []
        self.processor_s: dict[str, float] = {}

    def measure(self, points: Array) -> None:
        """Map once, and check the results."""
        points = points[: int(self.share * len(points))]
        before = {role: processor_s(process) for role, process in self.processes.items()}
        start = time.perf_counter()
        values = self.run(points)
        elapsed = time.perf_counter() - start
        if not np.allclose(values.reshape(-1), points.sum(axis=1)):
            raise RuntimeError(f"{self.name} gave wrong values")
        self.rates.append(len(points) / elapsed)
        for role, process in self.processes.items():
            self.processor_s[role] = (processor_s(process) - before[role]) / len(points)


def processor_s(process: psutil.Process) -> float:
    """Return the processor time that a process has used, in seconds."""
    times = process.cpu_times()
    return float(times.user + times.system)


def contenders(folder: Path) -> Iterator[Contender]:
    """Yield the contenders; each runs alone until the next one is requested."""
    with served(folder) as (run, server):
        with farm.connect(run) as client:
            model = client.model()
            worker = psutil.Process(client.status()["workers"][0]["pid"])
            processes = {"client": psutil.Process(), "farm": server, "worker": worker}
            by_array = Contender("farm, native, map(array)", model.map)
            by_iterator = Contender(
                "farm, native, map(iterator)",
                lambda points: np.array(list(model.map(iter(points)))),
            )
            for contender in (by_array, by_iterator):
                contender.processes = processes
                yield contender
        with farm.connect(read_connection(run).url) as client:
            over_http = Contender("farm, HTTP, map(array)", client.model().map, share=0.5)
            over_http.processes = processes
            yield over_http
    with ProcessPoolExecutor(1) as pool:
        for chunk, share in ((1, 0.2), (256, 1.0)):
            yield Contender(
                f"ProcessPoolExecutor.map, chunksize {chunk}",
                in_chunks(pool, chunk),
                share=share,
            )
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as dask,
    ):
        yield Contender(
            "dask.distributed Client.map",
            lambda points: np.array(dask.gather(dask.map(trivial, list(points), pure=False))),
            share=0.1,
        )


@contextlib.contextmanager
def profiled(folder: Path, pid: int, found: list[pstats.Stats]) -> Iterator[None]:
    """Profile the main thread of a process of the farm; append what was found."""
    path = folder / str(pid)
    os.kill(pid, signal.SIGURG)
    appeared(path)
    yield
    os.kill(pid, signal.SIGURG)
    done = path.with_name(f"{pid}.done")
    appeared(done)
    found.append(pstats.Stats(str(done)))


def appeared(path: Path) -> None:
    """Wait until a file is there."""
    give_up = time.monotonic() + 60
    while not path.exists():
        if time.monotonic() > give_up:
            raise RuntimeError(f"{path} did not appear")
        time.sleep(0.01)


def counts(folder: Path, points: Array) -> None:
    """Print the function calls for each mapped call, and the functions that take most of them."""
    os.environ["COUNTED"] = str(folder)
    os.environ["PYTHONPATH"] = str(folder)
    (folder / "sitecustomize.py").write_text(COUNTING)
    with served(folder) as (run, server), farm.connect(run) as client:
        model = client.model()
        worker = client.status()["workers"][0]["pid"]
        model.map(points[:2000])
        for role, pid in (("front door", server.pid), ("worker", worker)):
            found: list[pstats.Stats] = []
            with profiled(folder, pid, found):
                model.map(points)
            shown(role, found[0], len(points))
        profile = cProfile.Profile()
        profile.runcall(model.map, points)
        shown("client, the calling thread", pstats.Stats(profile), len(points))


def shown(role: str, profile: pstats.Stats, calls: int) -> None:
    """Print one profile."""
    total = profile.total_calls  # type: ignore[attr-defined]  # not in the stubs
    print(f"{role}: {total / calls:.1f} function calls for each mapped call")
    rows = profile.stats.items()  # type: ignore[attr-defined]  # as above
    for (file, _, name), (_, count, own_s, _, _) in sorted(rows, key=lambda row: -row[1][1])[:12]:
        where = f"{Path(file).name}:{name}" if file != "~" else name
        print(f"    {count / calls:7.2f}  {own_s / calls * 1e6:6.2f} us  {where}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--counts", action="store_true", help="count function calls instead")
    options = parser.parse_args()
    print(versions("numpy", "pyzmq", "orjson", "distributed"))
    points = np.random.default_rng(1).random((options.points, 4))
    if options.counts:
        with tempfile.TemporaryDirectory() as folder:
            counts(Path(folder), points[:COUNTED])
        return
    everybody = []
    with tempfile.TemporaryDirectory() as folder:
        for contender in contenders(Path(folder)):
            contender.run(points[:1000])
            for _ in range(options.rounds):
                contender.measure(points)
            everybody.append(contender)
    first = statistics.median(everybody[0].rates)
    print(f"\n{'':36} {'calls/s':>8} {'best':>8} {'farm is':>9}   processor time a call")
    for contender in everybody:
        rate = statistics.median(contender.rates)
        spent = [f"{role} {s * 1e6:.0f} us" for role, s in contender.processor_s.items()]
        print(
            f"{contender.name:36} {rate:8.0f} {max(contender.rates):8.0f} {first / rate:8.2f}x   "
            + ", ".join(spent)
        )


if __name__ == "__main__":
    main()
