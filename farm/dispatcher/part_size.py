"""How many rows of a call become one task, and how many such tasks are open at once."""

from __future__ import annotations

from farm.call import RUN_BYTES, RUN_S, Operation
from farm.scheduler.queues import Queue

RUNS_A_WORKER = 4
"""Least number of runs of a call per worker, so that all workers finish at about the same time."""

QUICK_RUN_S = 1e-4
"""Rows that take no longer than this together run on one worker, even if others are idle: to
schedule and send another run takes about as long."""

MOST_ALIVE = 4096
"""Most parts of one call in the scheduler at once, in addition to two for each slot."""


def part_rows(queue: Queue, rows: int, left: int, row_bytes: int) -> int:
    """Return how many of the next `left` rows of a call of `rows` rows become one task of `queue`.

    For a model with batches: at most a batch, in parts of about equal size. For one without: a run
    of rows that takes about `RUN_S`, or one row while the run time is unknown.
    """
    if queue.max_batch > 1:
        return -(-left // -(-left // queue.max_batch))
    times = queue.run_times
    if not queue.repeatable or not times.count or queue.operation is not Operation.EVALUATE:
        return 1
    share = max(rows, queue.to_come) // (RUNS_A_WORKER * max(1, queue.model.slots()))
    row_s = times.of_rows(1)
    share = max(share, int(QUICK_RUN_S / row_s))
    return max(1, min(left, share, int(RUN_S / row_s), RUN_BYTES // max(1, row_bytes)))


def most_alive(queue: Queue, rows: int) -> int:
    """Return how many parts of `rows` rows the workers can use, plus one per slot in reserve."""
    times = queue.run_times
    slots = max(1, queue.model.slots())
    if not times.count:
        lots = 2 * slots
    elif queue.max_batch == 1:
        lots = slots * (2 + times.prefetch_for(times.of_rows(rows)))
    else:
        lots = slots * (2 + times.prefetch) * max(1, queue.max_batch // rows)
    return min(lots, MOST_ALIVE + 2 * slots)
