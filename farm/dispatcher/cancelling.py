"""Cancels the waiting calls of a client, at the wish of the farm's owner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from farm.dispatcher.feeder import Feeder
from farm.dispatcher.flights import Flight
from farm.dispatcher.reuse import Reuse
from farm.dispatcher.statistics import calls_of
from farm.errors import Cancelled, InvalidInput
from farm.scheduler.accounts import Chain
from farm.scheduler.actions import Outcome
from farm.scheduler.state import TaskId
from farm.scheduler.view import View

AT_ONCE = 256
"""Calls that are cancelled in one iteration of the event loop, so that others get their turn."""

OnDone = Callable[[Outcome], None]


class Cancelling:
    """Answers the waiting calls of a client with Cancelled; those that run go on.

    open_calls: the callbacks of the calls without an outcome; cancel: cancels a call; reuse: the
    calls that wait for others; note: records an event.
    """

    def __init__(
        self,
        view: View,
        open_calls: Mapping[TaskId, OnDone],
        cancel: Callable[[TaskId], None],
        feeder: Feeder,
        reuse: Callable[[], Reuse | None],
        note: Callable[[str, str, str], None],
    ) -> None:
        self._view = view
        self._open_calls = open_calls
        self._cancel = cancel
        self._feeder = feeder
        self._reuse = reuse
        self._note = note

    async def answer(self, arguments: Mapping[str, str]) -> dict[str, Any]:
        """Cancel the calls of the argument `client`, and `chain` if given: return their number."""
        client = arguments.get("client")
        if client is None:
            raise InvalidInput("the argument 'client' is missing; it is empty for nameless clients")
        count = await self.waiting(client, arguments.get("chain"))
        self._note("cancelled", client, f"the owner cancelled {count} waiting calls")
        return {"cancelled": count}

    async def waiting(self, client: str, chain: Chain = None) -> int:
        """Cancel a client's waiting calls, of one chain or, for None, of all; return how many.

        Of a call of many rows, those rows are cancelled that no worker has; if the rows have one
        answer together, it is the error.
        """
        of_chain = "" if chain is None else f", chain {chain!r}"
        error = Cancelled(
            f"the owner of the farm cancelled the waiting calls of {client!r}{of_chain}"
        )
        count = 0
        for rows in self._feeder.open_of(client, chain):  # before their parts, which leave room
            count += rows.fail_waiting(error)
        waiting = [task.id for task in self._view.waiting(client, chain)]
        fails = [partial(self._fail, task_id, error) for task_id in waiting]
        reuse = self._reuse()
        if reuse is not None:  # those that wait for the evaluation of another call
            fails += [partial(reuse.fail, i, error) for i in reuse.waiting_of(client, chain)]
        for number, fail in enumerate(fails, 1):
            count += fail()
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        return count

    def _fail(self, task_id: TaskId, error: Cancelled) -> int:
        """Answer a call that still waits; return how many calls it counts as."""
        on_done = self._open_calls.get(task_id)
        task = self._view.task(task_id)
        if on_done is None or task is None or task.line is None:
            return 0
        calls = max(1, calls_of(on_done, task.rows))
        caller = on_done.on_done if isinstance(on_done, Flight) else on_done
        if caller is None:
            return 0  # only callers of other clients wait for it
        self._cancel(task_id)
        caller(error)
        return calls
