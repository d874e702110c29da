"""Waiting for the outcome of one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from farm.call import Result
from farm.errors import FarmError
from farm.scheduler.actions import Outcome
from farm.scheduler.state import TaskId


async def outcome_of(
    start: Callable[[Callable[[Outcome], None]], TaskId], cancel: Callable[[TaskId], None]
) -> Result:
    """Start a call and return its result; cancelling the wait cancels the call.

    start: begins it, with a callback for its outcome. Raises the call's FarmError.
    """
    future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

    def done(outcome: Outcome) -> None:
        if future.done():
            return
        if isinstance(outcome, FarmError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    task_id = start(done)
    try:
        return await future
    except asyncio.CancelledError:
        cancel(task_id)
        raise
