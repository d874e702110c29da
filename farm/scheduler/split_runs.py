"""Runs of rows that their workers split because one row takes long.

The worker answers the rows before that one at once and leaves those behind it to others. The task
goes on as the call of that row. The worker's last answer contains all rows up to it, as does one of
a worker that has, or had, the whole run: the task notes which row counts. Only answers to runs tell
the times of their rows.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace

from farm.call import Call, Result
from farm.errors import FarmError
from farm.scheduler.actions import Outcome
from farm.scheduler.state import Attempt, Task


def split_run(task: Task, attempt: Attempt, done: Result) -> Task:
    """Leave a task the row that its worker runs; return another, already over, of those before it.

    done: the worker's first answer, with those rows.
    """
    call, count = task.call, len(done.row_times_s)
    over = copy(task)
    over.keep(_some_rows(call, 0, count))
    gone = task.keep_row(count, _some_rows(call, count, count + 1))
    answered = count if task.phase.has_caller else 0
    task.queue.counts.split(gone, answered, copied=task.copy is not None)
    attempt.split(done.run_time_s)
    attempt.worker.answers.add_rows(count)
    if count:
        task.times.add(done.run_time_s / count)
    return over


def _some_rows(call: Call, first: int, end: int) -> Call:
    inputs = tuple([array[first:end] for array in call.inputs])
    return replace(call, inputs=inputs, rows=end - first)


def of_row(outcome: Outcome, row: int) -> Outcome | None:
    """Return the outcome of row `row` of a run; None: the run has ended before it.

    outcome: an answer to the run, or to the call of the row.
    """
    if isinstance(outcome, FarmError):
        return outcome
    times = outcome.row_times_s
    if not times and outcome.failed is None:
        return outcome
    if row >= len(times):
        return outcome.failed if row == len(times) else None
    outputs = tuple([array[row : row + 1] for array in outcome.outputs])
    return replace(
        outcome, outputs=outputs, run_time_s=times[row], row_times_s=(times[row],), failed=None
    )
