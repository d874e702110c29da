"""What a finished sweep says of itself: counts, work, efficiency, idle gaps, overhead."""

from __future__ import annotations

from typing import Any

import numpy as np

from farm.call import Array
from farm.sweep.journal import NO_WORKER, Status
from farm.sweep.known import Known

PERCENTILES = (50, 95, 99)


def summarise(known: Known, wall_s: float) -> dict[str, Any]:
    """The attributes of /summary; times in seconds, NaN where nothing is known.

    wall_s: of the last session. work_s: time in the model of all points; efficiency: work over
    workers times the time between the first start and the last end.
    """
    ran = np.isfinite(known.t_start) & np.isfinite(known.t_run)
    work = float(np.sum(known.t_run[ran], dtype=np.float64))
    starts, ends = known.t_start[ran], known.t_start[ran] + known.t_run[ran]
    makespan = float(np.max(ends) - np.min(starts)) if len(starts) else float("nan")
    workers = len(np.unique(known.worker[known.worker != NO_WORKER]))
    summary: dict[str, Any] = {
        "points": len(known.status),
        **{status.name.lower(): known.count(status) for status in Status},
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


def overheads(known: Known) -> Array:
    """Seconds of each finished point that were neither in the model nor in the farm's queue."""
    rest = known.t_total - known.t_queue - known.t_run
    finite: Array = rest[np.isfinite(rest)]
    return np.maximum(finite, 0.0)


def idle_gaps(known: Known) -> Array:
    """Seconds between one run of a worker and its next."""
    ran = np.flatnonzero(
        (known.worker != NO_WORKER) & np.isfinite(known.t_start) & np.isfinite(known.t_run)
    )
    order = ran[np.lexsort((known.t_start[ran], known.worker[ran]))]
    worker, start = known.worker[order], known.t_start[order]
    gaps = start[1:] - (start[:-1] + known.t_run[order][:-1])
    same: Array = gaps[worker[1:] == worker[:-1]]
    return np.maximum(same, 0.0)
