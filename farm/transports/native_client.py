"""A native client at the dispatcher: its open calls, those of a map as rows, and their answers."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from farm.call import RUN_S, Call, CancelCall, Hints, Result
from farm.dispatcher.partition import Rows, check_answer
from farm.errors import BEFORE_IT_RAN, Cancelled, FarmError
from farm.scheduler.state import TaskId
from farm.scheduler.view import View
from farm.transports.begun import Begun
from farm.transports.identity import client_in
from farm.wire import messages as wire
from farm.wire.groups import CallGroup, groupable, row_results
from farm.wire.messages import Outcome

if TYPE_CHECKING:
    from farm.dispatcher.dispatcher import Dispatcher
    from farm.transports.peers import PeerLine

ANSWERS_A_MESSAGE = 512
"""Larger messages cost no less per answer, and delay other answers while they are written."""

PATIENCE_PROBES = 3
"""A client is given up after this many failed probes in a row, sent one second apart."""

ROWS_A_RUN = 128
"""Most rows of a run: its overhead, too, takes time, and hardly more than these save (measured)."""

LEAST_ROWS = 16
"""Fewer calls than this in a group are started one by one."""

Open: TypeAlias = "TaskId | NativeRows | CancelCall"
"""A call of a client: a task, a row, or a wait until its model is known, which this cancels."""


class NativeRows(Rows):
    """The calls of a group: calls that run as the rows of one request, many to a task.

    A map of a fast model sends hundreds of calls in a message that differ only in their numbers.
    Each is a call of its own to the client, which may cancel it and gets one answer to it; but they
    are scheduled, run, answered and counted in runs. Those that are open have this object in the
    client's `calls`.
    """

    def __init__(self, group: CallGroup, client: NativeClient, view: View) -> None:
        self._ids = group.ids
        self._call = group.call
        self.config = group.call.config
        self._client = client
        self._view = view
        self.row_bytes = sum([array[:1].nbytes for array in group.call.inputs])
        self.has_gaps = False  # some were cancelled

    def start(self, dispatcher: Dispatcher, hints: Hints) -> None:
        """Start the calls. Raises FarmError if the first ones cannot be accepted."""
        call = self._call
        self.task = dispatcher.start_rows(self, call.model, call.operation, hints)

    def cancelled(self, dispatcher: Dispatcher) -> None:
        """Cancel the parts of which no call is open any more, after some calls were cancelled."""
        self.has_gaps = True
        dispatcher.feeder.drop(self.task)

    def __len__(self) -> int:
        return len(self._ids)

    def most_open(self) -> int:
        """Return the number of all rows: they may be open together."""
        return len(self._ids)

    def part(self, first: int, most: int) -> Call:
        """Return a call of views of the rows. Raises Cancelled for a row that was cancelled."""
        call = self._call
        most = max(1, min(most, ROWS_A_RUN, self._view.rows_in(call, RUN_S)))
        end = min(first + most, len(self._ids))
        if self.has_gaps:
            open_rows = self._are_open(first, end)
            if not open_rows[0]:
                raise Cancelled(BEFORE_IT_RAN)
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


class NativeClient:
    """The unanswered calls of one client, and answers about to be sent.

    groups: answers to many calls each, with a row for each. answered: the clients that have answers
    to send.
    """

    def __init__(
        self, line: PeerLine, acquaintance: int, begun: Begun, answered: list[NativeClient]
    ) -> None:
        self.line = line
        self.key = line.name.hex()
        self.begun = begun.of(self.key)
        # A client that was given up and returns gets another number: its calls were cancelled.
        self.acquaintance = acquaintance
        self.name = client_in(line.name)
        self.calls: dict[int, Open] = {}
        self.answers: list[tuple[int, Outcome]] = []
        self.groups: deque[tuple[list[int], Result]] = deque()
        self.answered = answered
        self.missed = 0

    def dialed_again(self, line: PeerLine) -> None:
        """Answer on another line from now on."""
        self.line = line

    def is_gone(self, *, reached: bool, patient: bool) -> bool:
        """Note a probe; return whether the client is given up. patient: it may be away for now."""
        self.missed = 0 if reached else self.missed + (not patient)
        return self.missed >= PATIENCE_PROBES

    def call_done(self, call_id: int, outcome: Outcome) -> None:
        """Receive the outcome of a call."""
        self.calls.pop(call_id, None)
        if not (self.answers or self.groups):
            self.answered.append(self)
        self.answers.append((call_id, outcome))

    def run_done(self, ids: list[int], result: Result) -> None:
        """Receive the result of these calls, which has a row for each."""
        if len(ids) < LEAST_ROWS or not groupable(result):
            for call_id, one in zip(ids, row_results(result, len(ids)), strict=True):
                self.call_done(call_id, one)
            return
        for call_id in ids:
            self.calls.pop(call_id, None)
        if not (self.answers or self.groups):
            self.answered.append(self)
        self.groups.append((ids, result))

    def send_some(self, traffic: dict[str, int]) -> bool:
        """Send a message of answers; keep them if the client is briefly disconnected."""
        some = self.answers[:ANSWERS_A_MESSAGE]
        groups: list[tuple[list[int], Result]] = []
        room = ANSWERS_A_MESSAGE - len(some) if self.groups else 0
        for group in self.groups:
            room -= len(group[0])
            if room < 0 and (some or groups):
                break
            groups.append(group)
        if not (some or groups) or not self.line.send(frames := wire.encode_answers(some, groups)):
            return False
        traffic["sent"] += sum(map(len, frames))
        del self.answers[:ANSWERS_A_MESSAGE]
        for _ in groups:
            self.groups.popleft()
        return True
