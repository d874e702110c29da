"""Which workers are slow or sick, by comparison with the others that have the same models."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

Row = Mapping[str, Any]

STUCK = 10.0
"""A call that runs this many times longer than 99 % of the runs may never end."""

STUCK_FROM_S = 10.0
"""A younger call is not called stuck."""

SLOW = 2.0
"""A worker is slow if its median run is this many times that of the others."""

FEW_RUNS, FEW_OTHERS = 5, 2
"""A comparison needs so many runs of each worker, and so many other workers."""

FAILS = 3.0
"""A worker fails too often if its share of failed calls is this many times that of the others."""

FEW_FAILURES = 5

MANY_RESTARTS = 3


def troubles(rows: Sequence[Row]) -> list[list[str]]:
    """Return what is wrong with each worker, in words; empty for a healthy one.

    rows: of `workers` in a snapshot, with the facts of `workers.py`.
    """
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row["models"])].append(row)
    known = {models: _Usual(group) for models, group in groups.items()}
    return [list(known[tuple(row["models"])].found(row)) for row in rows]


class _Usual:
    """What is usual for the workers that have the same models."""

    def __init__(self, rows: Sequence[Row]) -> None:
        tried = [row["run_times_s"] for row in rows if row["run_times_s"]["count"] >= FEW_RUNS]
        self._p50s = len(tried)
        self._p50_s = median(times["p50"] for times in tried) if tried else 0.0
        self._p99_s = median(times["p99"] for times in tried) if tried else None
        self._failed = sum(row["failed"] for row in rows)
        self._calls = self._failed + sum(row["done"] for row in rows)

    def found(self, row: Row) -> list[str]:
        """Return what is wrong with one of these workers."""
        found = []
        times = row["run_times_s"]
        age_s, p99_s = row["running_s"], self._p99_s
        if age_s is not None and p99_s is not None and age_s > max(STUCK_FROM_S, STUCK * p99_s):
            found.append(f"its call runs {age_s / p99_s:.0f} times as long as others did")
        if times["count"] >= FEW_RUNS and self._p50s > FEW_OTHERS:
            ratio = times["p50"] / self._p50_s
            if ratio >= SLOW:
                found.append(f"its runs take {ratio:.2g} times as long as on other workers")
        calls = row["failed"] + row["done"]
        others, failed_there = self._calls - calls, self._failed - row["failed"]
        if row["failed"] >= FEW_FAILURES and others:
            share, usual = row["failed"] / calls, failed_there / others
            if share >= FAILS * usual:
                found.append(f"fails {share:.0%} of its calls, others {usual:.0%}")
        if row["restarts"] >= MANY_RESTARTS:
            found.append(f"was started again {row['restarts']} times")
        return found
