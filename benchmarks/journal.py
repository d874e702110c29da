"""Commits a second, and how long each takes: farm's journal beside SQLite, in turns in one run.

    .venv/bin/python benchmarks/journal.py

"on disk" is what experiments need: whoever waits goes on when a power cut can no longer undo it.
"16 wait" has 16 threads that each wait for their own. "in the page cache" is what sweeps need for
each outcome: the death of the process cannot undo it. Numbers are medians over the rounds, and the
ratio is the median of the ratios of the same round. The disk counts: name one by --folder.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from farm.storage.commits import Commits
from farm.storage.frames import Format, Record
from farm.storage.journal import Journal
from farm.storage.lock import Lock
from machine import versions

FORMAT = Format("benchmark journal", 1, kinds=b"B")
BODY = b"x" * 200
THREADS = 16

Times = list[float]


def timed(count: int, do: Callable[[], object]) -> Times:
    """Durations of some runs, in seconds."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        do()
        times.append(time.perf_counter() - began)
    return times


def ours(folder: Path, count: int) -> Times:
    """farm, on disk."""
    journal = Journal(folder / "j", FORMAT)
    times = timed(count, lambda: journal.append_all([Record(FORMAT.kinds[0], BODY)], durable=True))
    journal.close()
    return times


def ours_unsynced(folder: Path, count: int) -> Times:
    """farm, in the page cache."""
    journal = Journal(folder / "j", FORMAT)
    times = timed(count, lambda: journal.append(Record(FORMAT.kinds[0], BODY)))
    journal.close()
    return times


def ours_together(folder: Path, count: int) -> Times:
    """farm, on disk, many that wait: the time of each is that of all by their number."""
    journal, lock = Journal(folder / "j", FORMAT), Lock(folder / "j.lock")

    class Bodies(Commits[bytes]):
        def encode(self, item: bytes) -> Record:
            return Record(FORMAT.kinds[0], item)

        def explain(self, error: Exception) -> Exception:
            return error

    commits = Bodies(journal, lock)

    def wait() -> None:
        for _ in range(count // THREADS):
            commits.append(BODY).result()

    threads = [threading.Thread(target=wait) for _ in range(THREADS)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    commits.close()
    return [took / count] * count


def with_sqlite(mode: str, synchronous: str) -> Callable[[Path, int], Times]:
    """SQLite with a mode of its journal, one transaction each."""

    def run(folder: Path, count: int) -> Times:
        file = sqlite3.connect(folder / "s.db", isolation_level=None)
        file.execute(f"PRAGMA journal_mode = {mode}")
        file.execute(f"PRAGMA synchronous = {synchronous}")
        file.execute("CREATE TABLE event (sequence INTEGER PRIMARY KEY, body BLOB NOT NULL)")
        times = timed(count, lambda: file.execute("INSERT INTO event (body) VALUES (?)", (BODY,)))
        file.close()
        return times

    return run


CASES: dict[str, dict[str, Callable[[Path, int], Times]]] = {
    "on disk": {
        "farm": ours,
        "farm, 16 wait": ours_together,
        "SQLite, WAL": with_sqlite("WAL", "FULL"),
        "SQLite, rollback journal": with_sqlite("DELETE", "FULL"),
        "SQLite, rollback journal kept": with_sqlite("PERSIST", "FULL"),
    },
    "in the page cache": {
        "farm": ours_unsynced,
        "SQLite, WAL": with_sqlite("WAL", "OFF"),
        "SQLite, rollback journal": with_sqlite("DELETE", "OFF"),
    },
}


def measure(where: Path | None, count: int, rounds: int) -> None:
    """Print a table for each kind of durability."""
    for durability, runs in CASES.items():
        rates: dict[str, Times] = {name: [] for name in runs}
        times: dict[str, Times] = {name: [] for name in runs}
        for _ in range(rounds):
            for name, run in runs.items():
                with tempfile.TemporaryDirectory(dir=where) as folder:
                    found = run(Path(folder), count)
                rates[name].append(len(found) / sum(found))
                times[name] += found
        print(f"\n{durability}: {count} commits of {len(BODY)} bytes, {rounds} rounds")
        for name, rate in rates.items():
            ordered = sorted(times[name])
            ratios = [a / b for a, b in zip(rates["farm"], rate, strict=True)]
            print(
                f"  {name:30} {statistics.median(rate):9,.0f}/s"
                f"   median {1e6 * ordered[len(ordered) // 2]:6.0f} µs"
                f"   99 % {1e6 * ordered[int(0.99 * len(ordered))]:6.0f} µs"
                f"   farm is {statistics.median(ratios):6.2f} times as fast"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commits", type=int, default=800)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--folder", type=Path, help="where to write; a temporary folder unless said"
    )
    options = parser.parse_args()
    print(f"{versions('numpy')}, SQLite {sqlite3.sqlite_version}, {os.cpu_count()} processors")
    measure(options.folder, options.commits, options.rounds)


if __name__ == "__main__":
    main()
