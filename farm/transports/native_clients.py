"""Native clients at the dispatcher: many calls to a message, many answers to one."""

from __future__ import annotations

import logging
import secrets
from functools import partial
from typing import TYPE_CHECKING, Any

from farm.call import Call, Hints, Operation
from farm.errors import FarmError, InvalidRequest, UnsupportedFeature, WorkerLost
from farm.protocols import wire
from farm.protocols.wire import Kind, Message, Outcome
from farm.scheduler.state import TaskId

if TYPE_CHECKING:
    from farm.dispatcher import Dispatcher
    from farm.transports.peers import Line

log = logging.getLogger(__name__)

PATIENCE_PROBES = 3
"""A client is given up when so many probes in a row did not reach it; they come each second."""


class _Client:
    """One client's calls that have no answer yet, and answers about to leave."""

    __slots__ = ("acquaintance", "answers", "calls", "line", "missed", "name")

    def __init__(self, line: Line, acquaintance: int) -> None:
        self.line = line
        # A client that was given up and comes back sees another number: its calls were cancelled.
        self.acquaintance = acquaintance
        self.name = line.name.decode("utf-8", "replace")
        self.calls: dict[int, TaskId] = {}
        self.answers: list[tuple[int, Outcome]] = []
        self.missed = 0


_PROBE = wire.encode(Kind.PROBE)


class ClientDoor:
    """Takes the messages of native clients to the dispatcher, and answers back."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._clients: dict[bytes, _Client] = {}
        self._answered: list[_Client] = []
        dispatcher.after_acting(self.flush)
        # The numbers of two lives of a farm never meet: a client sends again what it asked before.
        self._acquaintances = secrets.randbits(48)

    def received(self, line: Line, message: Message) -> None:
        """Act on a client's message. Raises InvalidRequest."""
        client = self._clients.get(line.name)
        if client is None:
            self._acquaintances += 1
            client = self._clients[line.name] = _Client(line, self._acquaintances)
            line.send(wire.encode(Kind.WELCOME, client.acquaintance))
        if message.kind is Kind.CALLS:
            self._calls(client, message)
        elif message.kind is Kind.CALLS_AGAIN:
            self._calls(client, message)
            self._send_answers(client)
        elif message.kind is Kind.CANCEL:
            for call_id in wire.decode_ids(message):
                task_id = client.calls.pop(call_id, None)
                if task_id is not None:
                    self._dispatcher.cancel(task_id)
        elif message.kind is Kind.ASK:
            line.send(wire.encode(Kind.TELL, self._told(message.data)))
        elif message.kind is Kind.LEAVE:
            self._gone(client)
        elif message.kind is Kind.PROBE:
            line.send(wire.encode(Kind.WELCOME, client.acquaintance))
        else:
            raise InvalidRequest(f"a client does not send {message.kind.name}")

    def _calls(self, client: _Client, message: Message) -> None:
        said, calls = wire.decode_calls(message)
        hints = said or Hints()
        if not hints.client:
            hints = Hints(client.name, hints.priority, hints.deadline_s)
        answered = {call_id for call_id, _ in client.answers}
        for call_id, call in calls:
            if call_id in client.calls or call_id in answered:
                continue  # said again after a lost connection, with which it was not lost
            done = partial(self._done, client, call_id)
            try:
                if not isinstance(call, Call):
                    raise call
                if call.operation is Operation.STREAM:
                    raise UnsupportedFeature("streams are for HTTP and gRPC clients")
                if message.kind is Kind.CALLS_AGAIN:
                    self._check_repeatable(call)
                client.calls[call_id] = self._dispatcher.start_call(call, hints, done)
            except FarmError as error:
                done(error)

    def _check_repeatable(self, call: Call) -> None:
        """Raise WorkerLost for a call that may have run, with an answer that was lost, and must
        not run again."""
        info = self._dispatcher.models().get(call.model)
        if info is not None and not info.repeatable:
            raise WorkerLost(
                "the answer may have been lost with the client's connection, and "
                f"model {call.model!r} is not repeatable"
            )

    def _done(self, client: _Client, call_id: int, outcome: Outcome) -> None:
        client.calls.pop(call_id, None)
        if not client.answers:
            self._answered.append(client)
        client.answers.append((call_id, outcome))

    def flush(self) -> None:
        """Send the answers that have gathered."""
        clients, self._answered = self._answered, []
        for client in clients:
            self._send_answers(client)

    def _send_answers(self, client: _Client) -> None:
        # They are kept for a client that is away for a moment.
        if client.answers and client.line.send(wire.encode_answers(client.answers)):
            client.answers = []

    def _told(self, asked: Any) -> Any:
        what = asked.get("what") if isinstance(asked, dict) else None
        if what == "models":
            value: Any = [info.to_json() for info in self._dispatcher.models().values()]
        elif what == "status":
            value = self._dispatcher.snapshot()
        else:
            raise InvalidRequest(f"ASK wants 'models' or 'status', got {what!r}")
        return {"id": asked.get("id"), what: value}

    def probe(self) -> None:
        """Look after every client; the calls of those that are gone are cancelled."""
        for client in list(self._clients.values()):
            if client.line.send(_PROBE):
                client.missed = 0
                self._send_answers(client)
                continue
            client.missed += 1
            if client.missed >= PATIENCE_PROBES:
                self._gone(client)

    def _gone(self, client: _Client) -> None:
        self._clients.pop(client.line.name, None)
        calls, client.calls = client.calls, {}
        for task_id in calls.values():
            self._dispatcher.cancel(task_id)

    def close(self) -> None:
        """Send what is about to leave."""
        for client in self._clients.values():
            self._send_answers(client)
