"""Share of the workers' time that is spent in the model: sleeping models on 2 and 16 workers.

    make install && .venv/bin/python benchmarks/efficiency.py

Efficiency is work / workers / makespan, with 40 calls for each worker, all submitted at once. A
sleeping model needs no core, so 16 workers fit on any machine; at 1 ms and 16 workers the
dispatcher has to answer 16,000 calls a second, which then limits the result. The idle gap is how
long a worker was idle before a call that was already queued; the farm measures it itself.
ProcessPoolExecutor does the same work in the same run.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

import farm
from machine import versions

CALLS_PER_WORKER = 40
RUN_TIMES_S = (0.001, 0.005, 0.05)
WORKERS = (2, 16)

MODEL = """
import time
import farm

@farm.model(inputs={"seconds": 1}, outputs={"slept": 1})
def sleeper(seconds):
    start = time.perf_counter()
    time.sleep(seconds[0])
    return time.perf_counter() - start
"""


def sleep(seconds: float) -> float:
    """The pool's function: sleep, and return the actual duration."""
    start = time.perf_counter()
    time.sleep(seconds)
    return time.perf_counter() - start


def farm_rows(model: Path, workers: int) -> list[tuple[float, float, float, float]]:
    """Return for each run time: efficiency, and the median and p99 of the idle gap in seconds."""
    rows = []
    with farm.serve(model, workers=workers) as client:
        while len(client.status()["workers"]) < workers:
            time.sleep(0.05)
        for seconds in RUN_TIMES_S:
            points = np.full((workers * CALLS_PER_WORKER, 1), seconds)
            sleeper = client.model("sleeper")
            sleeper.map(points[: 2 * workers])  # lets the farm learn the run time
            start = time.perf_counter()
            slept = sleeper.map(points)
            makespan = time.perf_counter() - start
            gap = client.status()["idle_gap_s"] or {"p50": np.nan, "p99": np.nan}
            rows.append((seconds, slept.sum() / workers / makespan, gap["p50"], gap["p99"]))
    return rows


def pool_efficiency(workers: int, seconds: float) -> float:
    """Return the efficiency of ProcessPoolExecutor for the same calls."""
    with ProcessPoolExecutor(workers) as pool:
        list(pool.map(sleep, [0.01] * 4 * workers))
        start = time.perf_counter()
        slept = sum(pool.map(sleep, [seconds] * workers * CALLS_PER_WORKER))
        return slept / workers / (time.perf_counter() - start)


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    print(versions("numpy", "pyzmq"))
    print(f"\n{'workers':>8}{'run time':>12}{'farm':>8}{'pool':>8}{'gap p50':>12}{'gap p99':>12}")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "sleeper.py"
        model.write_text(MODEL)
        for workers in WORKERS:
            for seconds, efficiency, p50, p99 in farm_rows(model, workers):
                pool = pool_efficiency(workers, seconds)
                print(
                    f"{workers:8}{seconds * 1e3:9.0f} ms{efficiency:8.3f}{pool:8.3f}"
                    f"{p50 * 1e6:9.0f} us{p99 * 1e6:9.0f} us"
                )


if __name__ == "__main__":
    main()
