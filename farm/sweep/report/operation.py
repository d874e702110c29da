"""The data of the figures about the farm that ran a sweep: progress, workers and overhead."""

from __future__ import annotations

from typing import Any

import numpy as np

from farm.call import Array
from farm.report.interactive import packed
from farm.sweep.file.journal import NO_WORKER
from farm.sweep.file.point_columns import PointColumns
from farm.sweep.file.summary import overheads

MOST_WORKERS = 60
"""Most workers whose runs are shown."""

MOST_STEPS = 500
"""Most steps of the curve of progress."""

FINEST = 600
"""Runs of a worker that are closer than this part of the sweep's time are shown as one."""

BINS = 40


def operation_of(known: PointColumns) -> dict[str, Any]:
    """Return the data of the figures about the farm; times in seconds since the first start."""
    ran = np.isfinite(known.t_start) & np.isfinite(known.t_run)
    begin = float(np.min(known.t_start[ran])) if np.any(ran) else 0.0
    ends = np.sort(known.t_start[ran] + known.t_run[ran]) - begin
    steps = np.unique(np.linspace(0, max(len(ends) - 1, 0), MOST_STEPS).astype(int))[: len(ends)]
    return {
        "begin": begin,
        "size": len(known.status),
        "progress": {"times": packed(ends[steps]), "counts": packed(steps + 1, "i4")},
        "gantt": _gantt(known, ran, begin),
        "overhead": _overhead(overheads(known)),
    }


def _gantt(known: PointColumns, ran: Array, begin: float) -> dict[str, Any]:
    listed = np.flatnonzero(ran & (known.worker != NO_WORKER))
    workers = np.unique(known.worker[listed])
    starts = known.t_start[listed] - begin
    gap = float(np.max(starts + known.t_run[listed])) / FINEST if len(listed) else 0.0
    bars: list[list[float]] = []
    for line, worker in enumerate(workers[:MOST_WORKERS]):
        own = known.worker[listed] == worker
        runs = np.stack([starts[own], known.t_run[listed][own]], axis=1)
        merged = joined_runs(runs[np.argsort(runs[:, 0])], gap)
        bars += [[line, begin_s, length_s] for begin_s, length_s in merged]
    return {
        "workers": [int(worker) for worker in workers[:MOST_WORKERS]],
        "more": max(len(workers) - MOST_WORKERS, 0),
        "bars": packed(np.array(bars)),
    }


def joined_runs(runs: Array, gap: float) -> list[list[float]]:
    """Return runs (start, length), joined where the gap is below `gap`, too small to see."""
    merged: list[list[float]] = []
    for start, length in runs.tolist():
        if merged and start - sum(merged[-1]) < gap:
            merged[-1][1] = max(start + length - merged[-1][0], merged[-1][1])
        else:
            merged.append([start, length])
    return merged


def _overhead(times: Array) -> dict[str, Any]:
    """Return a histogram over log10 of milliseconds."""
    times = np.log10(1e3 * times[times > 0])
    if not len(times):
        return {"counts": packed(np.array([]), "i4"), "low": 0.0, "high": 0.0, "median": None}
    low, high = float(np.min(times)), float(np.max(times))
    counts, edges = np.histogram(times, BINS, (low, max(high, low + 0.01)))
    return {
        "counts": packed(counts, "i4"),
        "low": float(edges[0]),
        "high": float(edges[-1]),
        "median": float(10 ** np.median(times)),
    }
