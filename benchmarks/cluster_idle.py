"""Idle share of an elastic farm's workers, while it grows and afterwards.

    eval "$(slurm/dev-cluster up)" && .venv/bin/python benchmarks/cluster_idle.py

A farm without a job gets a steady load: a constant number of calls of a sleeping model is in
flight. It submits jobs up to its maximum, answers for a while, and releases them after the load.
The idle share is the time in which workers that have joined run nothing, divided by their total
time: while the number of workers grows, and from when all have joined to the end of the load.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import farm
from machine import versions

JOBS, WORKERS = 4, 4
IDLE_TIMEOUT_S = 5.0
LIMIT_S = 120.0

MODEL = """
import time
import farm

@farm.model(inputs={"seconds": 1}, outputs={"slept": 1})
def sleeper(seconds):
    time.sleep(seconds[0])
    return seconds
"""

PLAN = f"""
host = "127.0.0.1"
backlog_s = 2
grow_after_s = 0.5
idle_timeout_s = {IDLE_TIMEOUT_S}

[[workers]]
name = "sleepers"
workers = {WORKERS}
max_jobs = {JOBS}
"""


@dataclass
class Run:
    """The record of one load; Unix times.

    runs: worker, begin and end of each model run; joined: when each worker joined.
    """

    begun: float = 0.0
    ended: float = 0.0
    gone: float = 0.0
    runs: list[tuple[str, float, float]] = field(default_factory=list)
    joined: Mapping[str, float] = field(default_factory=dict)

    @property
    def all_there(self) -> float:
        """Return when the last worker joined."""
        return max(self.joined.values())

    def idle_share(self, begin: float, end: float) -> float:
        """Return the idle share of the workers' time after they had joined."""
        there = sum(max(0.0, end - max(begin, at)) for at in self.joined.values())
        busy = sum(max(0.0, min(end, b) - max(begin, a)) for _, a, b in self.runs)
        return 1.0 - busy / there


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition. Raises RuntimeError on timeout."""
    limit = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > limit:
            raise RuntimeError(f"waited {LIMIT_S:g} s for {what}")
        time.sleep(0.1)


def steady_load(client: farm.Client, seconds: float, in_flight: int, length_s: float) -> Run:
    """Keep `in_flight` calls of `seconds` running until `length_s` after the last worker joined."""
    call = farm.Call("sleeper", farm.Operation.EVALUATE, (np.array([seconds]),))
    answers: queue.SimpleQueue[tuple[farm.Result, float]] = queue.SimpleQueue()

    def ask() -> None:
        client.submit(call).add_done_callback(lambda f: answers.put((f.result(), time.time())))

    run = Run(begun=time.time())
    end = float("inf")
    limit = run.begun + LIMIT_S
    for _ in range(in_flight):
        ask()
    waiting = in_flight
    looked_at = 0.0
    while waiting:
        result, at = answers.get(timeout=LIMIT_S)
        run.runs.append((result.worker, at - result.run_time_s, at))
        if at > limit and end == float("inf"):
            raise RuntimeError(f"no {JOBS * WORKERS} workers within {LIMIT_S:g} s")
        if at < end:
            ask()
        else:
            waiting -= 1
        if end == float("inf") and at > looked_at + 0.5:
            looked_at = at
            if len(client.status()["workers"]) == JOBS * WORKERS:
                end = at + length_s
    run.ended = end
    run.joined = {
        event["worker"]: event["time"]
        for event in client.status()["events"]
        if event["event"] == "joined" and event["time"] > run.begun
    }
    return run


def report(run: Run) -> None:
    """Print one line of the table."""
    first = min(at for _, _, at in run.runs) - run.begun
    work = sum(end - begin for _, begin, end in run.runs)
    paid = sum(run.gone - at for at in run.joined.values())
    fixed = JOBS * WORKERS * (run.gone - run.begun)
    shares = [
        run.idle_share(min(run.joined.values()), run.all_there),
        run.idle_share(run.all_there, run.ended),
    ]
    print(f"{first:12.1f} s{run.all_there - run.begun:12.1f} s", end="")
    print(f"{shares[0]:14.1%}{shares[1]:14.2%}{work / paid:14.2f}{work / fixed:14.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.25, help="run time of the model")
    parser.add_argument("--in-flight", type=int, default=200, help="calls in flight")
    parser.add_argument(
        "--length", type=float, default=15.0, help="length with all workers, in seconds"
    )
    parser.add_argument("--rounds", type=int, default=3, help="number of loads")
    options = parser.parse_args()
    if shutil.which("sbatch") is None or "SLURM_CONF" not in os.environ:
        raise SystemExit('needs a SLURM cluster: eval "$(slurm/dev-cluster up)"')
    print(versions("numpy", "pyzmq"))
    print(
        f"\n{options.in_flight} calls of {options.seconds:g} s in flight, up to {JOBS} jobs of ",
        end="",
    )
    print(f"{WORKERS} workers; let go after {IDLE_TIMEOUT_S:g} s\n")
    for words in (
        ("first", "all workers", "idle while", "idle", "work / time", "the same if"),
        ("answer", "there", "it grows", "after", "of workers", "always there"),
    ):
        print("".join(f"{word:>14}" for word in words))
    with tempfile.TemporaryDirectory(dir=Path.home()) as name:
        folder = Path(name)
        (folder / "model.py").write_text(MODEL)
        (folder / "farm.toml").write_text(PLAN)
        command = ["serve", "model.py", "--slurm", "farm.toml", "--dir", "run", "--port", "0"]
        with (folder / "serve.log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "farm", *command], cwd=folder, stdout=log
            )
        try:
            wait_until((folder / "run" / "farm.json").exists, "the farm")
            with farm.connect(folder / "run") as client:
                wait_until(lambda: bool(client.status()["models"]), "the first job")

                def no_jobs() -> bool:
                    return not client.status()["workers"] and not client.status()["cluster"]["jobs"]

                for _ in range(options.rounds):
                    wait_until(no_jobs, "the jobs to be let go")
                    run = steady_load(client, options.seconds, options.in_flight, options.length)
                    wait_until(lambda: not client.status()["workers"], "the workers to go")
                    run.gone = time.time()
                    report(run)
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
