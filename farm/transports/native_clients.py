"""The dispatcher's end for native clients: many calls per message, many answers per message."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from farm.call import Call, Hints, Operation, Result
from farm.dispatcher.backend import INTERNAL_ERROR
from farm.errors import FarmError, InvalidRequest, UnsupportedFeature, WorkerLost
from farm.machine.traffic import Traffic, size_of
from farm.model import check_call
from farm.scheduler.state import TaskId
from farm.transports.agenda import STEPS_A_TURN, Agenda, Steps
from farm.transports.native_rows import LEAST_ROWS, RUN_S, NativeRows
from farm.wire import messages as wire
from farm.wire.groups import CallGroup, groupable, row_results
from farm.wire.messages import Kind, Message, Outcome
from farm.wire.questions import AskedQuestion, decode_question, encode_told
from farm.wire.runs import A_PIECE

if TYPE_CHECKING:
    from farm.dispatcher.dispatcher import Dispatcher
    from farm.transports.peer_line import PeerLine

log = logging.getLogger(__name__)

ANSWERS_A_MESSAGE = 512
"""Larger messages cost no less per answer, and delay other answers while they are written."""

CANCEL_STEPS = 64
"""Number of calls accepted in the time in which `A_PIECE` are cancelled."""

ROWS_A_STEP = 16
"""Calls of a group that are accepted in the time in which one call by itself is."""

PATIENCE_PROBES = 3
"""A client is given up after this many failed probes in a row, sent one second apart."""


class _NativeClient:
    """The unanswered calls of one client, and answers about to be sent.

    groups: answers to many calls each, with a row for each. collected: is called when there are
    first answers to send.
    """

    __slots__ = (
        "acquaintance",
        "answers",
        "calls",
        "collected",
        "groups",
        "line",
        "missed",
        "name",
    )

    def __init__(
        self, line: PeerLine, acquaintance: int, collected: Callable[[_NativeClient], None]
    ) -> None:
        self.line = line
        # A client that was given up and returns gets another number: its calls were cancelled.
        self.acquaintance = acquaintance
        self.name = line.name.decode("utf-8", "replace")
        self.calls: dict[int, TaskId | NativeRows] = {}
        self.answers: list[tuple[int, Outcome]] = []
        self.groups: deque[tuple[list[int], Result]] = deque()
        self.collected = collected
        self.missed = 0

    def has_answers(self) -> bool:
        """Whether there are answers to send."""
        return bool(self.answers or self.groups)

    def call_done(self, call_id: int, outcome: Outcome) -> None:
        """Receive the outcome of a call."""
        self.calls.pop(call_id, None)
        if not self.has_answers():
            self.collected(self)
        self.answers.append((call_id, outcome))

    def run_done(self, ids: list[int], result: Result) -> None:
        """Receive the result of these calls, which has a row for each."""
        if len(ids) < LEAST_ROWS or not groupable(result):
            for call_id, one in zip(ids, row_results(result, len(ids)), strict=True):
                self.call_done(call_id, one)
            return
        for call_id in ids:
            self.calls.pop(call_id, None)
        if not self.has_answers():
            self.collected(self)
        self.groups.append((ids, result))

    def answered(self) -> set[int]:
        """Return the calls whose answers are about to be sent."""
        return {i for i, _ in self.answers} | {i for ids, _ in self.groups for i in ids}

    def are_few(self) -> bool:
        """Whether all answers fit in a message."""
        count = len(self.answers) + sum([len(ids) for ids, _ in self.groups])
        return count <= ANSWERS_A_MESSAGE

    def take(self) -> tuple[list[tuple[int, Outcome]], list[tuple[list[int], Result]]]:
        """Return the answers for the next message, which stay here until `sent`."""
        some = self.answers[:ANSWERS_A_MESSAGE]
        groups: list[tuple[list[int], Result]] = []
        room = ANSWERS_A_MESSAGE - len(some)
        for group in self.groups:
            room -= len(group[0])
            if room < 0 and (some or groups):
                break
            groups.append(group)
        return some, groups

    def sent(self, answers: int, groups: int) -> None:
        """Forget so many answers and groups of them, which have been sent."""
        del self.answers[:answers]
        for _ in range(groups):
            self.groups.popleft()


_PROBE = wire.encode(Kind.PROBE)


class NativeClients:
    """Passes messages of native clients to the dispatcher, and sends the answers."""

    def __init__(self, dispatcher: Dispatcher, agenda: Agenda, traffic: Traffic) -> None:
        self._dispatcher = dispatcher
        self._traffic = traffic
        self._agenda = agenda
        self._clients: dict[bytes, _NativeClient] = {}
        self._answered: list[_NativeClient] = []
        self._questions: set[asyncio.Task[None]] = set()
        dispatcher.after_acting(self.flush)
        # Never reuse a number after a restart: clients resend calls of the previous farm.
        self._acquaintances = secrets.randbits(48)

    def received(self, line: PeerLine, message: Message) -> Steps:
        """Process a client's message, step by step. Raises InvalidRequest."""
        client = self._clients.get(line.name)
        if client is None:
            self._acquaintances += 1
            client = _NativeClient(line, self._acquaintances, self._answered_first)
            self._clients[line.name] = client
            line.send(wire.encode(Kind.WELCOME, client.acquaintance))
        client.line = line  # the client may have dialed again
        if message.kind is Kind.CALLS or message.kind is Kind.CALLS_AGAIN:
            return self._calls(client, message)
        if message.kind is Kind.CANCEL:
            return self._cancel(client, message)
        if message.kind is Kind.ASK:
            return self._tell(client, message)
        if message.kind is Kind.LEAVE:
            return self._gone(client)
        if message.kind is not Kind.PROBE:
            hint = "; workers connect with workers.json" if message.kind is Kind.JOIN else ""
            raise InvalidRequest(f"a client does not send {message.kind.name}{hint}")
        line.send(wire.encode(Kind.WELCOME, client.acquaintance))
        return iter(())

    def _calls(self, client: _NativeClient, message: Message) -> Steps:
        said, calls = wire.decode_some_calls(message)
        hints = said or Hints()
        hints = replace(hints, client=hints.client or client.name, patient=True)
        again = message.kind is Kind.CALLS_AGAIN
        # A call that is sent again after a lost connection may be running or answered.
        answered = client.answered() if again else frozenset[int]()
        for some in calls:
            if isinstance(some, CallGroup) and not again and self._start_rows(client, some, hints):
                yield 1 + len(some) // ROWS_A_STEP
                continue
            for call_id, call in some:
                if call_id not in client.calls and call_id not in answered:
                    self._start(client, call_id, call, hints, again=again)
                yield 1
        if again:
            self._send_answers(client)

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
        if dispatcher.view.rows_in(call.model, RUN_S, more=count) < 2:
            return False
        if not calls.keys().isdisjoint(group.ids) or len(set(group.ids)) < count:
            return False
        if hints.deadline_s is not None and math.isnan(hints.deadline_s):
            return False
        info = dispatcher.description(call.model, call.config)
        if info is None:
            return False
        rows = NativeRows(group, client, partial(dispatcher.view.rows_in, call.model, RUN_S))
        try:
            check_call(call, info)
            calls.update(dict.fromkeys(group.ids, rows))
            rows.task = dispatcher.start_rows(rows, call.model, call.operation, hints)
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
    ) -> None:
        done = partial(client.call_done, call_id)
        try:
            if not isinstance(call, Call):
                raise call
            if call.operation is Operation.STREAM:
                raise UnsupportedFeature("streams are for HTTP and gRPC clients")
            if again:
                self._check_repeatable(call)
            if call.origin is not None:  # for the parts of a long call
                hints = replace(hints, call_id=call.origin.call_id)
            client.calls[call_id] = self._dispatcher.start_call(call, hints, done)
        except FarmError as error:
            done(error)

    def _cancel(self, client: _NativeClient, message: Message) -> Steps:
        for some in wire.decode_some_ids(message):
            found = [client.calls.pop(call_id, None) for call_id in some]
            self._cancel_all([task for task in found if task is not None])
            yield CANCEL_STEPS

    def _cancel_all(self, cancelled: Sequence[TaskId | NativeRows]) -> None:
        """Cancel calls that were removed from the client's."""
        for task in dict.fromkeys(cancelled):
            if not isinstance(task, NativeRows):
                self._dispatcher.cancel(task)
            elif task.task is not None:
                task.has_gaps = True
                self._dispatcher.drop_rows(task.task)

    def _check_repeatable(self, call: Call) -> None:
        """Raise WorkerLost for a call that may have run before and must not run twice."""
        info = self._dispatcher.models().get(call.model)
        runs = call.operation is not Operation.DESCRIBE
        if runs and info is not None and not info.repeatable:
            raise WorkerLost(
                "the answer may have been lost with the client's connection, and "
                f"model {call.model!r} is not repeatable"
            )

    def _answered_first(self, client: _NativeClient) -> None:
        self._answered.append(client)

    def flush(self) -> None:
        """Send the collected answers."""
        if not self._answered:
            return
        clients, self._answered = self._answered, []
        for client in clients:
            self._send_answers(client)

    def _send_answers(self, client: _NativeClient) -> None:
        if client.are_few():
            self._send_some(client)
        else:
            self._agenda.add((b"answers", client.line.name), self._all_sent(client))

    def _all_sent(self, client: _NativeClient) -> Steps:
        while client.has_answers() and self._send_some(client):
            yield ANSWERS_A_MESSAGE // 4

    def _send_some(self, client: _NativeClient) -> bool:
        """Send a message of answers; keep them if the client is briefly disconnected."""
        some, groups = client.take()
        if (some or groups) and client.line.send(frames := wire.encode_answers(some, groups)):
            self._traffic.sent += size_of(frames)
            client.sent(len(some), len(groups))
            return True
        return False

    def _tell(self, client: _NativeClient, message: Message) -> Steps:
        """Answer one question per turn: describing the whole farm may take milliseconds.

        Native clients are the owner's: they have read the keys in `farm.json`.
        """
        line = client.line
        asked = decode_question(message)
        if asked.what == "models":
            models = self._dispatcher.models().values()
            line.send(encode_told(asked, [info.to_json() for info in models]))
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
            if client.line.send(_PROBE):
                client.missed = 0
                self._send_answers(client)
                continue
            client.missed += not patient
            if client.missed >= PATIENCE_PROBES:
                self._agenda.drop(client.line.name)
                self._agenda.add(client.line.name, self._gone(client))

    def ended(self, line: PeerLine) -> None:
        """Cancel the calls of a client whose line has ended."""
        client = self._clients.get(line.name)
        if client is not None and client.line is line:
            self._agenda.drop(line.name)
            self._agenda.add(line.name, self._gone(client))

    def _gone(self, client: _NativeClient) -> Steps:
        self._clients.pop(client.line.name, None)
        calls = list(client.calls.values())
        client.calls.clear()
        for first in range(0, len(calls), A_PIECE):
            self._cancel_all(calls[first : first + A_PIECE])
            yield CANCEL_STEPS

    def close(self) -> None:
        """Send the remaining answers."""
        for client in self._clients.values():
            while self._send_some(client):
                pass
