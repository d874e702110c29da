"""Function calls and processor time of a row of a sweep, beside a mapped call, of a trivial model.

    make install && .venv/bin/python benchmarks/sweep_rows.py

A call has 4 numbers in and 1 out. The processor time is that of this process and of farm's two,
with a sweep and a map by turns in one run; a sweep of few points pays more for its file. Then the
profiler counts the function calls of all threads of this process for each of 5,000 rows, and shows
the functions that take most of them.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import statistics
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import farm
from client_map import processor_s, served
from machine import versions

COUNTED = 5000
SHOWN = 40


class Profiles:
    """Profiles of this thread and of those that start meanwhile."""

    def __init__(self) -> None:
        self._profiles: list[cProfile.Profile] = []

    def __enter__(self) -> Profiles:
        gc.disable()
        threading.setprofile(self._begin)
        self._begin()
        return self

    def __exit__(self, *exc: object) -> None:
        self._profiles[0].disable()
        threading.setprofile(None)
        gc.enable()

    def _begin(self, *event: Any) -> None:
        self._profiles.append(cProfile.Profile())
        self._profiles[-1].enable()

    def show(self, what: str, rows: int) -> None:
        """Print the function calls for each row."""
        stats = pstats.Stats(*[p for p in self._profiles if p.getstats()])
        total = stats.total_calls  # type: ignore[attr-defined]  # not in the stubs
        print(f"\n{what}: {total / rows:.1f} function calls for each row")
        found = stats.stats.items()  # type: ignore[attr-defined]  # as above
        for (file, _, name), (_, count, own_s, _, _) in sorted(found, key=lambda r: -r[1][1])[
            :SHOWN
        ]:
            where = f"{Path(file).name}:{name}" if file != "~" else name
            print(f"    {count / rows:7.2f}  {own_s / rows * 1e6:6.2f} us  {where}")


def sweep_of(client: farm.Client, path: Path, rows: int) -> None:
    """Sweep that many points."""
    done = farm.sweep(
        client.model(), {"x": (0.0, 1.0)}, out=path, design="random", n=rows, seed=1, show=False,
        stream=False,
    ).wait()  # fmt: skip
    assert done.done == rows, done


def map_of(client: farm.Client, rows: int) -> None:
    """Map as many points."""
    client.model().map(np.random.default_rng(1).random((rows, 4)))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows = options.points
    print(versions("numpy", "h5py", "pyzmq", "orjson"))
    with tempfile.TemporaryDirectory() as name, served(Path(name)) as (run, server):
        folder = Path(name)
        files = (folder / f"{k}.h5" for k in range(10**6))
        ways: dict[str, Callable[[farm.Client, int], None]] = {
            "sweep": lambda client, rows: sweep_of(client, next(files), rows),
            "map": map_of,
        }
        with farm.connect(run) as client:
            client.model()  # waits for the worker
            processes = {"client": psutil.Process(), "front door": server}
            for worker in client.status()["workers"]:
                processes[f"worker {len(processes) - 1}"] = psutil.Process(worker["pid"])
            spent: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
            for _ in range(1 + options.rounds):
                for way, go in ways.items():
                    before = {role: processor_s(p) for role, p in processes.items()}
                    go(client, rows)
                    spent[way].append({r: processor_s(p) - before[r] for r, p in processes.items()})
        for way, rounds in spent.items():
            of_all = statistics.median(sum(r.values()) for r in rounds[1:]) / rows * 1e6
            roles = [
                f"{k} {statistics.median(r[k] for r in rounds[1:]) / rows * 1e6:.0f}"
                for k in rounds[0]
            ]
            print(f"{way:6} {of_all:6.0f} us of processor time a row: {', '.join(roles)}")
        for way, go in ways.items():
            with Profiles() as profiles, farm.connect(run) as client:
                go(client, COUNTED)
            profiles.show(way, COUNTED)


if __name__ == "__main__":
    main()
