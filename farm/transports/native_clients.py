"""The dispatcher's end for native clients: many calls per message, many answers per message."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from farm.call import RUN_S, Call, CancelCall, Hints, Operation, Result
from farm.dispatcher.partition import Rows, check_answer
from farm.errors import (
    INTERNAL_ERROR,
    Cancelled,
    FarmError,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    Unavailable,
    UnsupportedFeature,
    WorkerLost,
)
from farm.model import check_call
from farm.scheduler.state import TaskId
from farm.scheduler.view import View
from farm.transports.agenda import STEPS_A_TURN, Agenda, Steps
from farm.transports.begun import Begun
from farm.transports.identity import client_in
from farm.wire import messages as wire
from farm.wire.groups import CallGroup, groupable, row_results
from farm.wire.messages import Kind, Message, Outcome
from farm.wire.questions import AskedQuestion, decode_question, encode_told
from farm.wire.runs import A_PIECE

if TYPE_CHECKING:
    from farm.dispatcher.dispatcher import Dispatcher
    from farm.transports.peers import PeerLine

log = logging.getLogger(__name__)

ANSWERS_A_MESSAGE = 512
"""Larger messages cost no less per answer, and delay other answers while they are written."""

CANCEL_STEPS = 64
"""Number of calls accepted in the time in which `A_PIECE` are cancelled."""

ROWS_A_STEP = 16
"""Calls of a group that are accepted in the time in which one call by itself is."""

PATIENCE_PROBES = 3
"""A client is given up after this many failed probes in a row, sent one second apart."""

REFUSALS = (ModelNotFound, Overloaded, Unavailable)
"""Errors after which a client sends a call again, as one that has not begun."""

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

    def __init__(self, group: CallGroup, client: _NativeClient, view: View) -> None:
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
        self._task = dispatcher.start_rows(self, call.model, call.operation, hints)

    def cancelled(self, dispatcher: Dispatcher) -> None:
        """Cancel the parts of which no call is open any more, after some calls were cancelled."""
        self.has_gaps = True
        dispatcher.drop_rows(self._task)

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


class _NativeClient:
    """The unanswered calls of one client, and answers about to be sent.

    groups: answers to many calls each, with a row for each. answered: the clients that have answers
    to send.
    """

    def __init__(
        self, line: PeerLine, acquaintance: int, begun: Begun, answered: list[_NativeClient]
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


PROBE = wire.encode(Kind.PROBE)


class NativeClients:
    """Passes messages of native clients to the dispatcher, and sends the answers."""

    def __init__(self, dispatcher: Dispatcher, agenda: Agenda, traffic: dict[str, int]) -> None:
        self._dispatcher = dispatcher
        self._models = dispatcher.models()
        self._traffic = traffic
        self._agenda = agenda
        self._clients: dict[bytes, _NativeClient] = {}
        self.put_off: list[_NativeClient] = []
        self._questions: set[asyncio.Task[None]] = set()
        self._begun = Begun()
        dispatcher.turns.at_the_end(self)

    def received(self, line: PeerLine, message: Message) -> Steps | None:
        """Process a client's message; return what is left to do. Raises InvalidRequest."""
        client = self._clients.get(line.name)
        if client is None:
            # No number twice, not even after a restart: clients resend calls of the previous farm.
            number = secrets.randbits(48)
            client = _NativeClient(line, number, self._begun, self.put_off)
            self._clients[line.name] = client
            line.send(wire.encode(Kind.WELCOME, client.acquaintance))
        if client.line is not line:
            client.dialed_again(line)
        if message.kind is Kind.CALLS or message.kind is Kind.CALLS_AGAIN:
            return self._calls(client, message)
        if message.kind is Kind.CANCEL:
            return self._cancel(client, message)
        if message.kind is Kind.ASK:
            return self._tell(client, message)
        if message.kind is Kind.LEAVE:
            return self._gone(client, for_good=True)
        if message.kind is not Kind.PROBE:
            hint = "; workers connect with workers.json" if message.kind is Kind.JOIN else ""
            raise InvalidRequest(f"a client does not send {message.kind.name}{hint}")
        if message.data == client.acquaintance:
            self._begun.are_all(client.key)
        line.send(wire.encode(Kind.WELCOME, client.acquaintance))
        return None

    def _calls(self, client: _NativeClient, message: Message) -> Steps | None:
        """Start calls: a single one at once."""
        said, calls = wire.decode_some_calls(message, client.name)
        hints = said or Hints(client.name, patient=True)
        again = message.kind is Kind.CALLS_AGAIN
        if again or type(calls) is not list:
            return self._some_calls(client, calls, hints, again)
        for call_id, call in calls[0]:
            if call_id not in client.calls:
                self._start(client, call_id, call, hints, again=False)
        return None

    def _some_calls(
        self, client: _NativeClient, calls: Iterable[wire.SomeTasks], hints: Hints, again: bool
    ) -> Steps:
        answered = set[int]()
        if again:  # after a lost connection: a call may be running or answered
            answered.update(i for i, _ in client.answers)
            answered.update(i for ids, _ in client.groups for i in ids)
        for some in calls:
            if isinstance(some, CallGroup) and not again and self._start_rows(client, some, hints):
                yield 1 + len(some) // ROWS_A_STEP
                continue
            for call_id, call in some:
                if call_id not in client.calls and call_id not in answered:
                    self._start(client, call_id, call, hints, again=again)
                yield 1
        if again:
            self.put_off.append(client)

    def _start_rows(self, client: _NativeClient, group: CallGroup, hints: Hints) -> bool:
        """Start calls in runs, if these are short; False: each has to be started by itself.

        Calls of which each is a caller by itself are not rows. The error of a call that cannot be
        accepted comes from its own start.
        """
        count, call, calls = len(group), group.call, client.calls
        dispatcher = self._dispatcher
        if count < LEAST_ROWS or hints.chain is None:
            return False
        if dispatcher.on_answered:  # each call is logged or traced by itself
            return False
        if dispatcher.view.rows_in(call, RUN_S, more=count) < 2:
            return False
        if not calls.keys().isdisjoint(group.ids) or len(set(group.ids)) < count:
            return False
        if hints.deadline_s is not None and math.isnan(hints.deadline_s):
            return False
        info = dispatcher.description(call.model, call.config)
        if info is None:
            return False
        rows = NativeRows(group, client, dispatcher.view)
        try:
            check_call(call, info)
            calls.update(dict.fromkeys(group.ids, rows))
            rows.start(dispatcher, hints)
        except FarmError:
            for call_id in group.ids:
                calls.pop(call_id, None)
            return False
        return True

    def _start(
        self,
        client: _NativeClient,
        call_id: int,
        call: Call | InvalidRequest,
        hints: Hints,
        *,
        again: bool,
        waits: bool = True,
    ) -> None:
        """Start a call. waits: later, if its model is not known yet."""
        done = partial(client.call_done, call_id)
        try:
            if not isinstance(call, Call):
                raise call
            if call.operation is Operation.STREAM:
                raise UnsupportedFeature("streams are for HTTP and gRPC clients")
            if call.origin is not None:  # for the parts of a long call
                hints = replace(hints, call_id=call.origin.call_id)
            info = self._models.get(call.model)
            if info is None or (not info.repeatable and call.operation is not Operation.DESCRIBE):
                if again and not client.begun.are_all:
                    self._begun.add(client.key, call_id)
                if info is not None:
                    self._start_once(client, call_id, call, hints)
                    return
            client.calls[call_id] = self._dispatcher.start_call(call, hints, done)
        except FarmError as error:
            first = self._dispatcher.first_worker
            if waits and isinstance(call, Call) and first.expects(call.model):
                client.calls[call_id] = self._hold(client, call_id, call, hints, again=again)
            else:
                done(error)

    def _hold(
        self, client: _NativeClient, call_id: int, call: Call, hints: Hints, *, again: bool
    ) -> CancelCall:
        """Start a call once the farm knows its model; return the function that cancels the wait."""
        since = time.monotonic()

        def go() -> None:
            left = hints
            if hints.deadline_s is not None:
                left = replace(hints, deadline_s=hints.deadline_s - (time.monotonic() - since))
            info = dispatcher.description(call.model, call.config)
            if call.operation is Operation.DESCRIBE and info is not None:
                client.call_done(call_id, Result((), info=info))
            else:
                self._start(client, call_id, call, left, again=again, waits=False)

        dispatcher, models = self._dispatcher, self._models
        return dispatcher.first_worker.when_known(go, lambda: call.model in models)

    def _start_once(self, client: _NativeClient, call_id: int, call: Call, hints: Hints) -> None:
        """Start a call that must not run twice. Raises WorkerLost if it may have begun before."""

        def lost(why: str) -> WorkerLost:
            return WorkerLost(f"{why}, and model {call.model!r} is not repeatable")

        def done(outcome: Outcome) -> None:
            self._dispatcher.beginning.pop(task, None)
            if isinstance(outcome, REFUSALS) and call_id in client.begun:
                outcome = lost(f"{outcome.message}; it may have run")
            client.call_done(call_id, outcome)

        if call_id in client.begun:
            raise lost("the call may have run before a front door or its connection was lost")
        task = client.calls[call_id] = self._dispatcher.start_call(call, hints, done)
        self._dispatcher.beginning[task] = partial(self._begun.add, client.key, call_id)
        if task < 0:  # it runs in parts
            self._dispatcher.beginning.pop(task)()

    def _cancel(self, client: _NativeClient, message: Message) -> Steps:
        for some in wire.decode_some_ids(message):
            found = [client.calls.pop(call_id, None) for call_id in some]
            self._cancel_all([task for task in found if task is not None])
            yield CANCEL_STEPS

    def _cancel_all(self, cancelled: Sequence[Open]) -> None:
        """Cancel calls that were removed from the client's."""
        for task in dict.fromkeys(cancelled):
            if isinstance(task, int):
                self._dispatcher.beginning.pop(task, None)
                self._dispatcher.cancel(task)
            elif callable(task):
                task()
            else:
                task.cancelled(self._dispatcher)

    def turn(self) -> None:
        """Send the collected answers."""
        clients = self.put_off[:]
        del self.put_off[:]
        for client in clients:
            if client.send_some(self._traffic) and (client.answers or client.groups):
                self._agenda.add((b"answers", client.line.name), self._all_sent(client))

    def _all_sent(self, client: _NativeClient) -> Steps:
        while client.send_some(self._traffic):
            yield ANSWERS_A_MESSAGE // 4

    def _tell(self, client: _NativeClient, message: Message) -> Steps:
        """Answer one question per turn: describing the whole farm may take milliseconds.

        Native clients are the owner's: they have read the keys in `farm.json`.
        """
        line = client.line
        asked = decode_question(message)
        if asked.what == "models":
            line.send(encode_told(asked, [info.to_json() for info in self._models.values()]))
        elif asked.what == "status":
            line.send(encode_told(asked, {**self._dispatcher.snapshot(), "is_owner": True}))
        else:
            task = asyncio.get_running_loop().create_task(self._answer(client, asked))
            self._questions.add(task)
            task.add_done_callback(self._questions.discard)
        yield STEPS_A_TURN

    async def _answer(self, client: _NativeClient, asked: AskedQuestion) -> None:
        line = client.line
        try:
            told = await self._dispatcher.questions.ask(
                asked.what, asked.arguments, asker=client.name
            )
            frames = encode_told(asked, told)
        except FarmError as error:
            frames = encode_told(asked, error)
        except Exception:
            log.exception("answering the question %.60r", asked.what)
            frames = encode_told(asked, FarmError(INTERNAL_ERROR))
        line.send(frames)

    def probe(self, *, patient: bool) -> None:
        """Probe clients whose lines may come back; cancel the calls of those that are gone.

        patient: not now, because the clients have a reason to be disconnected.
        """
        for client in list(self._clients.values()):
            if not client.line.may_come_back:
                continue
            reached = client.line.send(PROBE)
            if reached:
                self.put_off.append(client)
            if client.is_gone(reached=reached, patient=patient):
                self._agenda.drop(client.line.name)
                self._agenda.add(client.line.name, self._gone(client))
        self.turn()

    def ended(self, line: PeerLine) -> None:
        """Cancel the calls of a client whose line has ended."""
        client = self._clients.get(line.name)
        if client is not None and client.line is line:
            self._agenda.drop(line.name)
            self._agenda.add(line.name, self._gone(client))

    def _gone(self, client: _NativeClient, *, for_good: bool = False) -> Steps:
        if self._clients.pop(client.line.name, None) is client:
            self._begun.left(client.key, for_good=for_good)
        calls = list(client.calls.values())
        client.calls.clear()
        for first in range(0, len(calls), A_PIECE):
            self._cancel_all(calls[first : first + A_PIECE])
            yield CANCEL_STEPS

    def close(self) -> None:
        """Send the remaining answers."""
        for client in self._clients.values():
            for _ in self._all_sent(client):
                pass
