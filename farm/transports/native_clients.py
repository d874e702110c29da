"""The dispatcher's end for native clients: many calls per message, many answers per message."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from farm.call import RUN_S, Call, CancelCall, Hints, Operation, Result
from farm.errors import (
    BEFORE_IT_RAN,
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
from farm.transports.agenda import STEPS_A_TURN, Agenda, Steps
from farm.transports.begun import Begun
from farm.transports.native_client import (
    ANSWERS_A_MESSAGE,
    LEAST_ROWS,
    NativeClient,
    NativeRows,
    Open,
)
from farm.wire import messages as wire
from farm.wire.groups import CallGroup
from farm.wire.messages import Kind, Message, Outcome
from farm.wire.questions import AskedQuestion, decode_question, encode_told
from farm.wire.runs import A_PIECE

if TYPE_CHECKING:
    from farm.dispatcher.dispatcher import Dispatcher
    from farm.transports.peers import PeerLine

log = logging.getLogger(__name__)

CANCEL_STEPS = 64
"""Number of calls accepted in the time in which `A_PIECE` are cancelled."""

ROWS_A_STEP = 16
"""Calls of a group that are accepted in the time in which one call by itself is."""

REFUSALS = (ModelNotFound, Overloaded, Unavailable)
"""Errors after which a client sends a call again, as one that has not begun."""


PROBE = wire.encode(Kind.PROBE)


class NativeClients:
    """Passes messages of native clients to the dispatcher, and sends the answers."""

    def __init__(self, dispatcher: Dispatcher, agenda: Agenda, traffic: dict[str, int]) -> None:
        self._dispatcher = dispatcher
        self._models = dispatcher.models()
        self._traffic = traffic
        self._agenda = agenda
        self._clients: dict[bytes, NativeClient] = {}
        self.put_off: list[NativeClient] = []
        self._questions: set[asyncio.Task[None]] = set()
        self._begun = Begun()
        dispatcher.turns.at_the_end(self)

    def received(self, line: PeerLine, message: Message) -> Steps | None:
        """Process a client's message; return what is left to do. Raises InvalidRequest."""
        client = self._clients.get(line.name)
        if client is None:
            # No number twice, not even after a restart: clients resend calls of the previous farm.
            number = secrets.randbits(48)
            client = NativeClient(line, number, self._begun, self.put_off)
            self._clients[line.name] = client
            line.send(wire.encode(Kind.WELCOME, client.acquaintance))
        if client.line is not line:
            client.dialed_again(line)
        if message.kind is Kind.CALLS or message.kind is Kind.CALLS_AGAIN:
            return self._calls(client, message)
        if message.kind is Kind.CANCEL:
            return self._cancel(client, message)
        if message.kind is Kind.CANCEL_WAITING:
            return self._cancel_waiting(client, message)
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

    def _calls(self, client: NativeClient, message: Message) -> Steps | None:
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
        self, client: NativeClient, calls: Iterable[wire.SomeTasks], hints: Hints, again: bool
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

    def _start_rows(self, client: NativeClient, group: CallGroup, hints: Hints) -> bool:
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
        client: NativeClient,
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
        self, client: NativeClient, call_id: int, call: Call, hints: Hints, *, again: bool
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

    def _start_once(self, client: NativeClient, call_id: int, call: Call, hints: Hints) -> None:
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

    def _cancel(self, client: NativeClient, message: Message) -> Steps:
        for some in wire.decode_some_ids(message):
            found = [client.calls.pop(call_id, None) for call_id in some]
            self._cancel_all([task for task in found if task is not None])
            yield CANCEL_STEPS

    def _cancel_waiting(self, client: NativeClient, message: Message) -> Steps:
        error = Cancelled(BEFORE_IT_RAN)
        for some in wire.decode_some_ids(message):
            for task, call_id in {client.calls.get(each): each for each in some}.items():
                if callable(task):
                    task()
                    client.call_done(call_id, error)
                elif task is not None:
                    call = task if isinstance(task, int) else task.task
                    self._dispatcher.stages.cancel_if_waiting(call, error)
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

    def _all_sent(self, client: NativeClient) -> Steps:
        while client.send_some(self._traffic):
            yield ANSWERS_A_MESSAGE // 4

    def _tell(self, client: NativeClient, message: Message) -> Steps:
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

    async def _answer(self, client: NativeClient, asked: AskedQuestion) -> None:
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

    def _gone(self, client: NativeClient, *, for_good: bool = False) -> Steps:
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
