"""Tells other parts of a farm about calls that failed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from farm.call import QUESTIONS, Call, Hints
from farm.errors import FarmError, Unavailable
from farm.scheduler.actions import Reply


@dataclass(frozen=True, slots=True)
class Failure:
    """Calls that failed with one error, which their callers get next.

    calls: their number; call: what the worker was asked, for them and perhaps for others; row: the
    row of it that failed, if that is known. worker: the last one that had it, or empty.
    """

    error: FarmError
    calls: int
    call: Call
    row: int | None
    worker: str
    client: str


OnFailed = Callable[[Failure], None]


def tell_refused(tell: Iterable[OnFailed], call: Call, hints: Hints, error: FarmError) -> None:
    """Report a call that the farm did not accept, unless it was a question about a model.

    Patient callers try again while the farm is unavailable; the call has not failed then.
    """
    if call.operation in QUESTIONS or (hints.patient and isinstance(error, Unavailable)):
        return
    for each in tell:
        each(Failure(error, 1, call, None, "", hints.client))


def tell_failed(tell: Iterable[OnFailed], reply: Reply, fails: int) -> None:
    """Report the calls that fail for good with a reply, if there are some, each call once.

    fails: how many these are.
    """
    if not fails:
        return
    outcome, task = reply.outcome, reply.task
    if isinstance(outcome, FarmError):
        error, row, worker = outcome, outcome.row, reply.worker or ""
    elif outcome.failed is not None:
        error, row = outcome.failed, outcome.rows_done(task.rows)
        worker = outcome.worker or reply.worker or ""
    else:
        return
    failure = Failure(error, fails, task.call, row, worker, task.account.client.name)
    for each in tell:
        each(failure)
