"""Cost of one call when its worker is on another node than the server.

    eval "$(DEV_CLUSTER_NET=netns slurm/dev-cluster up)"
    .venv/bin/python benchmarks/cluster_nodes.py

One caller, and then 16 at once, call a model that does nothing, from the server's node. Its one
worker alternates between that node and another one. In this mode of the development
cluster nodes are network namespaces joined by a bridge: calls pass two real network stacks, but no
cable, and all nodes share the cores of this machine. Both workers use encrypted TCP.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np

import farm
from http_load import Load
from machine import versions

ROOT = Path(__file__).resolve().parents[1]
FARM = [sys.executable, "-m", "farm"]
HOSTS = {"the same node": "login", "another node": "cpu1"}
CALLERS = (1, 16)
LIMIT_S = 30.0

MODEL = """
import farm

@farm.model(inputs={"x": 4}, outputs={"y": 1})
def forward(x):
    return x.sum()
"""


@contextlib.contextmanager
def running(host: str, *command: str, cwd: Path) -> Iterator[None]:
    """Run a command on a host of the cluster for the duration of the block."""
    program = str(ROOT / "slurm" / "dev-cluster")
    quiet = subprocess.DEVNULL
    words = [program, "on", host, *command]
    process = subprocess.Popen(words, cwd=cwd, stdout=quiet, stderr=quiet)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def load(client: farm.Client, callers: int, seconds: float) -> Load:
    """Keep `callers` calls in flight for `seconds`."""
    call = farm.Call("forward", farm.Operation.EVALUATE, (np.arange(1.0, 5.0),))
    found = Load()
    start = now = time.perf_counter()
    if callers == 1:
        while now - start < seconds:
            client.submit(call).result()
            before, now = now, time.perf_counter()
            found.latencies_s.append(now - before)
        found.seconds = now - start
        return found
    answers: queue.SimpleQueue[tuple[float, float]] = queue.SimpleQueue()

    def ask() -> None:
        sent_at = time.perf_counter()
        future = client.submit(call)
        future.add_done_callback(lambda _: answers.put((sent_at, time.perf_counter())))

    for _ in range(callers):
        ask()
    while now - start < seconds:
        sent_at, now = answers.get()
        found.latencies_s.append(now - sent_at)
        ask()
    for _ in range(callers):
        answers.get()
    found.seconds = now - start
    return found


def measure(seconds: float) -> None:
    """Run the loads in a process on the server's node; print them as JSON."""
    limit = time.monotonic() + LIMIT_S
    with farm.connect("run") as client:
        while len(client.status()["workers"]) != 1:
            if time.monotonic() > limit:
                raise SystemExit("there is no worker")
            time.sleep(0.1)
        load(client, CALLERS[-1], 0.2 * seconds)
        loads = {callers: load(client, callers, seconds) for callers in CALLERS}
    print(json.dumps({callers: [found.p50_s, found.per_s] for callers, found in loads.items()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each load")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each worker")
    parser.add_argument("--client", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        measure(options.seconds)
        return
    state = os.environ.get("DEV_CLUSTER_STATE")
    if state is None or "NET=netns" not in (Path(state) / "settings").read_text():
        raise SystemExit('needs: eval "$(DEV_CLUSTER_NET=netns slurm/dev-cluster up)"')
    print(versions("numpy", "pyzmq"))
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory(dir=Path(state) / "share") as name:
        folder = Path(name)
        (folder / "model.py").write_text(MODEL)
        serve = ("serve", "--workers", "0", "--host", "0.0.0.0", "--port", "0", "--dir", "run")
        with running("login", *FARM, *serve, cwd=folder):
            while not (folder / "run" / "farm.json").exists():
                time.sleep(0.1)
            for _ in range(options.rounds):
                for title, host in HOSTS.items():
                    worker = ("worker", "model.py", "--to", "run", "-n", "1")
                    with running(host, *FARM, *worker, cwd=folder):
                        program = [str(ROOT / "slurm" / "dev-cluster"), "on", "login"]
                        client = [sys.executable, __file__, "--client"]
                        said = subprocess.run(
                            [*program, *client, "--seconds", str(options.seconds)],
                            cwd=folder,
                            check=True,
                            capture_output=True,
                            text=True,
                        ).stdout
                    for callers, numbers in json.loads(said).items():
                        found.setdefault((callers, title), []).append(numbers)
    print(f"\nmedian (range) of {options.rounds} turns of {options.seconds:g} s each")
    print(f"{'callers':>8}  {'worker on':15}{'p50':>22}{'calls/s':>22}{'p50, rate ratio':>18}")
    for callers in map(str, CALLERS):
        here = found[callers, "the same node"]
        for title in HOSTS:
            rows = found[callers, title]
            p50s, rates = [1e6 * p50 for p50, _ in rows], [rate for _, rate in rows]
            latency = median(p50 for p50, _ in rows) / median(p50 for p50, _ in here)
            rate = median(rates) / median(rate for _, rate in here)
            p50 = f"{median(p50s):.0f} ({min(p50s):.0f}-{max(p50s):.0f}) us"
            per_s = f"{median(rates):.0f} ({min(rates):.0f}-{max(rates):.0f})"
            print(f"{callers:>8}  {title:15}{p50:>22}{per_s:>22}{latency:11.2f}{rate:7.2f}")


if __name__ == "__main__":
    main()
