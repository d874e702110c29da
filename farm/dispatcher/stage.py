"""The interface of the stages that a call passes between its endpoint and the scheduler.

A call passes those that have something to do for it, in this order:

    checked   refuses calls that no worker could run, and starts calls of many rows in parts, which
              go on behind the gathered calls (`stages.py`, `feeder.py`)
    gathered  joins calls that arrive together; not if calls are reused (`gathering.py`)
    pairs     runs a value_and_gradient as two calls, if its model must (`stages.py`)
    reusing   answers calls from memory; only if there is one (`reuse.py`)
    tasks     submits calls to the scheduler (`stages.py`)

Reuse comes after the parts and pairs so that each part of a call may be answered from memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from farm.call import Call, Hints, Result
from farm.dispatcher.call_statistics import Chains
from farm.dispatcher.descriptions import Descriptions
from farm.dispatcher.events import Listeners
from farm.dispatcher.turns import LoopTurns
from farm.scheduler.actions import Outcome
from farm.scheduler.core import Scheduler
from farm.scheduler.state import TaskId

OnDone = Callable[[Outcome], tuple[int, int] | None]
"""Receives the outcome of a call or task.

Returns how many calls end with it, and how many of these fail for good; None: it is one call.
"""


def tell(on_done: OnDone | None, outcome: Outcome, rows: int) -> tuple[int, int]:
    """Report an outcome of `rows` rows; return how many calls end with it, and how many fail.

    on_done: None: the call was cancelled.
    """
    if on_done is None:
        return int(isinstance(outcome, Result)), 0
    ends = on_done(outcome)
    if ends is not None:
        return (ends[0] if ends[0] < rows else rows), ends[1]
    return 1, int(not isinstance(outcome, Result) or outcome.failed is not None)


class CallStage(Protocol):
    """A stage: it has an outcome for each call it accepts, or hands the call to the next stage."""

    def start(
        self, call: Call, hints: Hints, done: OnDone, now: float, lost_on: tuple[str, ...] = ()
    ) -> TaskId:
        """Start a call; `done` receives its outcome later, once. Raises FarmError instead.

        now: when it was submitted, from which its deadlines count. lost_on: see `Span`.
        """

    def cancel(self, task_id: TaskId) -> bool:
        """Cancel a call: its outcome is not reported. False if it is not open."""


class StageContext(NamedTuple):
    """The objects that the stages of one dispatcher share.

    ids: ids below 0, for calls that are not tasks; ids of tasks are positive.
    """

    scheduler: Scheduler
    turns: LoopTurns
    descriptions: Descriptions
    chains: Chains
    listeners: Listeners
    ids: Iterator[TaskId]
