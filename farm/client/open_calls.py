"""A native client's calls and questions without an outcome, and what becomes of them at a loss.

Callers' threads and the client's thread share them without a lock: each single step on the dict is
atomic, and whichever thread removes an entry settles it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from farm.call import Buffer, Call, Hints, Operation, Result, immutable
from farm.client.line import Outcome, Receiver
from farm.errors import DeadlineExceeded, FarmError, ModelNotFound, Unavailable, WorkerLost
from farm.wire.messages import Message
from farm.wire.questions import AskedQuestion, decode_told, encode_question

AGAIN_EVERY_S = 0.5
"""Interval at which calls that a starting farm refused are sent again."""

Task = tuple[int, Call]


@immutable
class Waiting:
    """A call without an outcome, and the receiver of its outcome."""

    call: Call
    hints: Hints
    since: float
    receiver: Receiver
    key: Any


class OpenCalls:
    """The calls without an outcome, by id. Its methods are for the client's thread.

    repeatable: of the models that the farm has described, whether their calls may run again;
    patience_s: seconds for which refused calls are kept.
    """

    def __init__(self, repeatable: Mapping[str, bool], patience_s: float) -> None:
        self.waiting: dict[int, Waiting] = {}
        self.repeatable = repeatable
        self._patience_s = patience_s
        self._refused: list[int] = []  # to be sent again
        self._refusals: dict[int, tuple[float, FarmError]] = {}  # since when, and why the last time
        self._again_at = 0.0
        self.again: set[int] = set()  # that an earlier front door, or connection, was sent

    def settle(self, outcomes: Iterable[tuple[int, Outcome]]) -> None:
        """Deliver outcomes; those of calls that are not open are ignored."""
        touched: list[Receiver] = []
        last: Receiver | None = None
        for call_id, outcome in outcomes:
            entry = self.waiting.pop(call_id, None)
            if entry is None:
                continue  # cancelled, or answered twice after a lost connection
            receiver, call_name = entry.receiver, entry.hints.call_id
            if call_name and not isinstance(outcome, Result):
                outcome = outcome.of_call(call_name)
            receiver.put(entry.key, outcome)
            if receiver is not last:
                last = receiver
                touched.append(receiver)
        for receiver in touched:
            receiver.flush()

    def answered(self, outcomes: Iterable[tuple[int, Outcome]]) -> None:
        """Deliver the outcomes that the farm sent; refused calls may stay open."""
        self.settle(
            [
                (call_id, outcome)
                for call_id, outcome in outcomes
                if isinstance(outcome, Result) or not self._is_refusal(call_id, outcome)
            ]
        )

    def fail_all(self, error: FarmError) -> None:
        """Settle all calls with this error."""
        self.settle([(call_id, error) for call_id in list(self.waiting)])

    def give_up(self, error: FarmError, unsent: Container[int] = frozenset()) -> None:
        """Settle all calls: with the reason of the farm if it refused them, else with `error`.

        unsent: calls that no farm can have run.
        """
        for i in list(self.waiting):
            _, refusal = self._refusals.get(i, (0.0, None))
            if i not in self.again and (refusal is not None or i in unsent):
                self.settle([(i, refusal or error)])
            else:
                self._fail_sent(i, refusal or error)

    def _fail_sent(self, call_id: int, error: FarmError) -> None:
        """Fail a call that a lost front door may have run."""
        entry = self.waiting.get(call_id)
        if entry is not None and self._runs_once(entry.call):
            error = WorkerLost(
                "the front door was lost while the call may have been running, and model "
                f"{entry.call.model!r} is not repeatable; {error.message}"
            )
        self.settle([(call_id, error)])

    def fail_late(self, now: float) -> None:
        """Fail calls whose deadline has passed, while there is no farm to do so."""
        for i, entry in self.waiting.copy().items():
            limit_s, waited_s = entry.hints.deadline_s, now - entry.since
            if limit_s is not None and waited_s > limit_s:
                text = f"no answer within {waited_s:.3g} s; the farm was away"
                self.settle([(i, DeadlineExceeded(text))])

    # Calls that a farm refuses while it starts or stops

    def _is_refusal(self, call_id: int, error: FarmError) -> bool:
        """Whether the farm may accept the call later; if so, `refused` returns it.

        A farm that starts may not have its models yet. Models that it never had are not awaited.
        """
        entry = self.waiting.get(call_id)
        if entry is None or not isinstance(error, Unavailable | ModelNotFound):
            return False
        if entry.call.model not in self.repeatable:
            return False
        now = time.monotonic()
        since, _ = self._refusals.get(call_id, (now, error))
        if now - since >= self._patience_s:
            if call_id in self.again:
                self._fail_sent(call_id, error)
            return False
        self._refusals[call_id] = since, error
        self._refused.append(call_id)
        return True

    def refused(self, now: float) -> dict[int, Waiting]:
        """Return, every AGAIN_EVERY_S, the refused calls that are to be sent again."""
        if not self._refusals or now - self._again_at < AGAIN_EVERY_S:
            return {}
        self._again_at = now
        refused, self._refused = self._refused, []
        waiting = self.waiting.copy()
        self._refusals = {i: refusal for i, refusal in self._refusals.items() if i in waiting}
        return {i: waiting[i] for i in refused if i in waiting}

    # Calls that must not run twice

    def _runs_once(self, call: Call) -> bool:
        repeatable = self.repeatable.get(call.model, True)
        return not repeatable and call.operation is not Operation.DESCRIBE

    def lost(self, unsent: Container[int]) -> None:
        """Note that a connection was lost which all calls were sent over, but for `unsent`.

        From now on only a front door knows which of them have begun.
        """
        self.again = {i for i in self.waiting.copy() if i in self.again or i not in unsent}


class OpenQuestions:
    """Questions about the farm that it has not answered yet, by number."""

    def __init__(self) -> None:
        self.asked: dict[int | str, tuple[AskedQuestion, Future[Any]]] = {}

    def add(self, question: AskedQuestion) -> Future[Any]:
        """Return the future of the answer."""
        future: Future[Any] = Future()
        self.asked[question.number] = question, future
        return future

    def told(self, message: Message) -> None:
        """Deliver an answer. Raises InvalidRequest."""
        question, future = self.asked.pop(message.data["id"], (None, None))
        if question is not None and future is not None:
            told = decode_told(message, question.what)
            if isinstance(told, FarmError):
                future.set_exception(told)
            else:
                future.set_result(told)

    def fail(self, error: FarmError) -> None:
        """Answer all of them with an error."""
        for number in list(self.asked):
            _, future = self.asked.pop(number, (None, None))
            if future is not None:
                future.set_exception(error)

    def frames(self) -> list[list[Buffer]]:
        """Return the messages that ask all of them again."""
        return [encode_question(question) for question, _ in list(self.asked.values())]


def messages(
    calls: Mapping[int, Waiting], again: Container[int] = frozenset()
) -> Iterator[tuple[Sequence[Task], Hints, bool]]:
    """Yield the tasks that can share a message, with hints, and whether they are among `again`.

    The hints have the rest of the time to the deadline.
    """
    now = time.monotonic()
    for (hints, since, is_again), group in itertools.groupby(
        calls.items(), key=lambda item: (item[1].hints, item[1].since, item[0] in again)
    ):
        if hints.deadline_s is not None:
            hints = replace(hints, deadline_s=hints.deadline_s - (now - since))
        yield [(i, entry.call) for i, entry in group], hints, is_again
