"""Calls of a native client that run as the rows of one request, many to a task.

A map of a fast model sends hundreds of calls in a message that differ only in their numbers. Each
is a call of its own to the client, which may cancel it and gets one answer to it; but they are
scheduled, run, answered and counted in runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from farm.call import Call, Result
from farm.dispatcher.rows import check_answer
from farm.errors import Cancelled, FarmError
from farm.scheduler.state import TaskId
from farm.wire.groups import CallGroup, row_results

RUN_S = 0.002
"""Longest expected run of rows: it delays the answers to its first rows, and calls behind it."""

ROWS_A_RUN = 128
"""Most rows of a run: its overhead, too, takes time, and hardly more than these save (measured)."""

LEAST_ROWS = 16
"""Fewer calls than this in a group are started one by one."""


class OpenRows(Protocol):
    """The calls of a client as its rows see them: by id, with what each belongs to."""

    calls: dict[int, TaskId | NativeRows]

    def run_done(self, ids: list[int], result: Result) -> None:
        """Receive the result of these calls, which has a row for each."""

    def call_done(self, call_id: int, outcome: Result | FarmError) -> None:
        """Receive the outcome of one call."""


class NativeRows:
    """The calls of a group, as `Rows`; those that are open have this object in `client.calls`.

    most_a_run: returns how many rows may run as one task now. task: the id of all rows; has_gaps:
    some were cancelled.
    """

    is_one_call = are_callers = False
    rows_a_step = 1 << 60  # a part is made of views

    def __init__(self, group: CallGroup, client: OpenRows, most_a_run: Callable[[], int]) -> None:
        self._ids = group.ids
        self._call = group.call
        self._client = client
        self._most_a_run = most_a_run
        self.row_bytes = sum([array[:1].nbytes for array in group.call.inputs])
        self.task: TaskId | None = None
        self.has_gaps = False

    def __len__(self) -> int:
        return len(self._ids)

    def most_open(self) -> int:
        """Return the number of all rows: they may be open together."""
        return len(self._ids)

    def part(self, first: int, most: int) -> Call:
        """Return a call of views of the rows. Raises Cancelled for a row that was cancelled."""
        call = self._call
        most = max(1, min(most, ROWS_A_RUN, self._most_a_run()))
        end = min(first + most, len(self._ids))
        if self.has_gaps:
            open_rows = self._are_open(first, end)
            if not open_rows[0]:
                raise Cancelled("the call was cancelled before it ran")
            if False in open_rows:
                end = first + open_rows.index(False)
        inputs = tuple([array[first:end] for array in call.inputs])
        return Call(call.model, call.operation, inputs, call.config, rows=end - first)

    def done(self, first: int, end: int, result: Result) -> None:
        """Answer the calls of these rows that are open. Raises InvalidOutput."""
        count = end - first
        check_answer(result, count)
        ids = self._ids[first:end]
        if not self.has_gaps:
            self._client.run_done(ids, result)
            return
        are_open = self._are_open(first, end)
        for call_id, is_open, one in zip(ids, are_open, row_results(result, count), strict=True):
            if is_open:
                self._client.call_done(call_id, one)

    def failed(self, first: int, end: int, error: FarmError) -> bool:
        """Answer these calls with the error; the others go on."""
        for call_id, is_open in zip(self._ids[first:end], self._are_open(first, end), strict=True):
            if is_open:
                self._client.call_done(call_id, error)
        return True

    def finished(self) -> None:
        """Do nothing: each call has its own answer."""

    def is_wanted(self, first: int, end: int) -> bool:
        """Whether one of these calls is open."""
        return True in self._are_open(first, end)

    def _are_open(self, first: int, end: int) -> list[bool]:
        calls = self._client.calls
        return [calls.get(call_id) is self for call_id in self._ids[first:end]]
