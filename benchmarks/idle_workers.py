"""400 worker processes on this machine: how long they take to join, and what they use idle.

    make install && .venv/bin/python benchmarks/idle_workers.py

A real `farm serve` starts the processes, each with a trivial model. Prints the time until all have
joined beside the processor time of as many imports of numpy, the memory of each with its share of
common pages, and the processor time of all processes over a minute without calls.
With --no-fork each imports numpy itself and has 19 MiB of its own: 400 need 8 GiB.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import tempfile
import time
from pathlib import Path

import farm
from machine import versions
from starting import MODEL, PYTHON, of_code


def threads_of(pid: int) -> list[Path]:
    """Return the folders of a process's threads."""
    with contextlib.suppress(OSError):
        return list(Path(f"/proc/{pid}/task").iterdir())
    return []


def used_s(pid: int) -> float:
    """Return the processor time that a process has used, to the microsecond (proc(5))."""
    total = 0
    for thread in threads_of(pid):
        with contextlib.suppress(OSError):
            total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


def switches(pid: int) -> int:
    """Return how often a process has given up a processor: once for each wake-up."""
    total = 0
    for thread in threads_of(pid):
        with contextlib.suppress(OSError):
            for line in (thread / "status").read_text().splitlines():
                if line.startswith("voluntary_ctxt_switches"):
                    total += int(line.split()[1])
    return total


def memory_mib(pid: int) -> tuple[float, float]:
    """Return the proportional and the private memory of a process, in MiB (proc(5))."""
    kib = {"Pss:": 0, "Private_Clean:": 0, "Private_Dirty:": 0}
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
            name, number, _ = line.split()
            if name in kib:
                kib[name] = int(number)
    return kib["Pss:"] / 1024, (kib["Private_Clean:"] + kib["Private_Dirty:"]) / 1024


def children(pid: int) -> list[int]:
    """Return the processes that a process has started, or has adopted."""
    found: list[int] = []
    for thread in threads_of(pid):
        with contextlib.suppress(OSError):
            found += map(int, (thread / "children").read_text().split())
    return found


def measured(pids: list[int], seconds: float) -> tuple[float, float]:
    """Return percent of a core, and wake-ups per second, of processes over some time."""
    before_s, before = sum(map(used_s, pids)), sum(map(switches, pids))
    began = time.monotonic()
    time.sleep(seconds)
    spent_s, woken = sum(map(used_s, pids)) - before_s, sum(map(switches, pids)) - before
    length_s = time.monotonic() - began
    return 100 * spent_s / length_s, woken / length_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--no-fork", action="store_true")
    options = parser.parse_args()
    print(versions("numpy"))
    numpy_s = sorted(of_code("import numpy") for _ in range(9))[4] / 1000
    with tempfile.TemporaryDirectory() as folder:
        model, run = Path(folder, "model.py"), Path(folder, "run")
        model.write_text(MODEL)
        words = ["serve", str(model), "--workers", str(options.workers), "--port", "0"]
        words += ["--no-fork"] * options.no_fork
        log = open(Path(folder, "log"), "wb")  # noqa: SIM115  # as long as the process
        began = time.monotonic()
        server = subprocess.Popen(
            [*PYTHON, "-m", "farm", *words, "--dir", str(run)], stdout=log, stderr=log
        )
        try:
            while not (run / "farm.json").exists():
                if server.poll() is not None:
                    raise SystemExit(Path(folder, "log").read_text())
                time.sleep(0.1)
            with farm.connect(run) as client:
                while len(client.status()["workers"]) < options.workers:
                    time.sleep(0.5)
                joined_s = time.monotonic() - began
                workers = [row["pid"] for row in client.status()["workers"]]
            used = sum(map(used_s, workers))
            print(f"\n{options.workers} workers joined after {joined_s:.1f} s; they used")
            print(f"{used:.1f} s of {os.cpu_count()} processors, {used / len(workers):.3f} s each;")
            print(f"numpy's import alone uses {numpy_s:.3f} s")
            others = [pid for pid in children(server.pid) if pid not in workers]
            for pid in others:
                print(f"a process beside them, from which they are forked, {used_s(pid):.2f} s")
            memory = [memory_mib(pid) for pid in (*workers, *others)]
            proportional, private = (sum(each) for each in zip(*memory, strict=True))
            print(
                f"memory: {proportional:.0f} MiB, {proportional / len(workers):.1f} each; private"
            )
            print(f"{private / len(workers):.1f} MiB each\n")
            time.sleep(10.0)  # until all is quiet
            print(f"{'idle':14}{'% of a core':>12}{'wake-ups/s':>12}")
            total = 0.0
            for name, pids in (("front door", [server.pid]), ("workers", workers + others)):
                percent, woken = measured(pids, options.seconds)
                total += percent
                print(f"{name:14}{percent:12.2f}{woken:12.1f}")
            print(f"{'together':14}{total:12.2f}")
        finally:
            server.terminate()
            server.wait()
            log.close()


if __name__ == "__main__":
    main()
