"""Summary of a finished sweep: counts, work, efficiency, idle gaps, overhead."""

from __future__ import annotations

from typing import Any

import numpy as np

from farm.call import Array
from farm.sweep.file.journal import NO_WORKER, PointStatus
from farm.sweep.file.point_columns import PointColumns

PERCENTILES = (50, 95, 99)


def summarise(known: PointColumns, wall_s: float) -> dict[str, Any]:
    """Return the attributes of /summary; times in seconds, NaN where unknown.

    wall_s: wall time of the last session. work_s: total time in the model; efficiency: work_s
    divided by the number of workers and the time between the first start and the last end.
    """
    ran = np.isfinite(known.t_start) & np.isfinite(known.t_run)
    work = float(np.sum(known.t_run[ran], dtype=np.float64))
    starts, ends = known.t_start[ran], known.t_start[ran] + known.t_run[ran]
    makespan = float(np.max(ends) - np.min(starts)) if len(starts) else float("nan")
    workers = len(np.unique(known.worker[known.worker != NO_WORKER]))
    summary: dict[str, Any] = {
        "points": len(known.status),
        **{status.name.lower(): known.count(status) for status in PointStatus},
        "wall_s": wall_s,
        "work_s": work,
        "makespan_s": makespan,
        "workers": workers,
        "efficiency": work / (workers * makespan) if workers and makespan > 0 else float("nan"),
    }
    for name, numbers in (("idle_gap", idle_gaps(known)), ("overhead", overheads(known))):
        for percent in PERCENTILES:
            value = float(np.percentile(numbers, percent)) if len(numbers) else float("nan")
            summary[f"{name}_p{percent}_s"] = value
    return summary


def overheads(known: PointColumns) -> Array:
    """Return the seconds of each finished point spent neither in the model nor in the queue."""
    rest = known.t_total - known.t_queue - known.t_run
    finite: Array = rest[np.isfinite(rest)]
    return np.maximum(finite, 0.0)


def idle_gaps(known: PointColumns) -> Array:
    """Return the seconds between consecutive runs of each worker."""
    ran = np.flatnonzero(
        (known.worker != NO_WORKER) & np.isfinite(known.t_start) & np.isfinite(known.t_run)
    )
    order = ran[np.lexsort((known.t_start[ran], known.worker[ran]))]
    worker, start = known.worker[order], known.t_start[order]
    gaps = start[1:] - (start[:-1] + known.t_run[order][:-1])
    same: Array = gaps[worker[1:] == worker[:-1]]
    return np.maximum(same, 0.0)
