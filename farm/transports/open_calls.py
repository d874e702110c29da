"""A native client's calls that have no outcome yet, and what becomes of them when the farm is lost.

Callers' threads and the client's thread share them without a lock: each single step on the dict is
atomic, and whichever thread removes an entry settles it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from farm.call import Call, Hints, Operation, Result
from farm.errors import DeadlineExceeded, FarmError, ModelNotFound, Unavailable, WorkerLost
from farm.transports.line import Outcome, Receiver

AGAIN_EVERY_S = 0.5
"""Interval at which calls that a starting farm refused are sent again."""

Task = tuple[int, Call]


class Waiting(NamedTuple):
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
        self._repeatable = repeatable
        self._patience_s = patience_s
        self._refused: list[int] = []  # to be sent again
        self._refused_at: dict[int, float] = {}  # when each was refused first
        self._refusals: dict[int, FarmError] = {}  # and why
        self._again_at = 0.0

    def settle(self, outcomes: Iterable[tuple[int, Outcome]]) -> None:
        """Deliver outcomes; those of calls that are not open are ignored."""
        touched: list[Receiver] = []
        last: Receiver | None = None
        for call_id, outcome in outcomes:
            entry = self.waiting.pop(call_id, None)
            if entry is None:
                continue  # cancelled, or answered twice after a lost connection
            _, hints, _, receiver, key = entry
            if hints.call_id and not isinstance(outcome, Result):
                outcome = outcome.of_call(hints.call_id)
            receiver.put(key, outcome)
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

    def give_up(self, error: FarmError) -> None:
        """Settle all calls: with the reason of the farm if it refused them, else with `error`."""
        self.settle([(i, self._refusals.get(i, error)) for i in list(self.waiting)])

    def fail_late(self, now: float) -> None:
        """Fail calls whose deadline has passed, while there is no farm to do so."""
        self.settle(
            [
                (i, DeadlineExceeded(f"no answer within {now - since:.3g} s; the farm was away"))
                for i, (_, hints, since, _, _) in self.waiting.copy().items()
                if hints.deadline_s is not None and now - since > hints.deadline_s
            ]
        )

    # Calls that a farm refuses while it starts or stops

    def _is_refusal(self, call_id: int, error: FarmError) -> bool:
        """Whether the farm may accept the call later; if so, `refused` returns it.

        A farm that starts may not have its models yet. Models that it never had are not awaited.
        """
        entry = self.waiting.get(call_id)
        if entry is None or not isinstance(error, Unavailable | ModelNotFound):
            return False
        if entry.call.model not in self._repeatable or self._runs_once(entry.call):
            return False
        now = time.monotonic()
        if now - self._refused_at.setdefault(call_id, now) >= self._patience_s:
            return False
        self._refusals[call_id] = error
        self._refused.append(call_id)
        return True

    def refused(self, now: float) -> dict[int, Waiting]:
        """Return, every AGAIN_EVERY_S, the refused calls that are to be sent again."""
        if not self._refused_at or now - self._again_at < AGAIN_EVERY_S:
            return {}
        self._again_at = now
        refused, self._refused = self._refused, []
        waiting = self.waiting.copy()
        self._refused_at = {i: at for i, at in self._refused_at.items() if i in waiting}
        self._refusals = {i: self._refusals[i] for i in self._refused_at}
        return {i: waiting[i] for i in refused if i in waiting}

    # Calls that must not run twice

    def may_repeat(self, call: Call) -> bool:
        """Whether the farm has said that the call may run twice."""
        return self._repeatable.get(call.model, False)

    def _runs_once(self, call: Call) -> bool:
        repeatable = self._repeatable.get(call.model, True)
        return not repeatable and call.operation is not Operation.DESCRIBE

    def once_only(self) -> Collection[int]:
        """Return the calls that must not run twice."""
        if all(self._repeatable.values()):
            return ()
        return [i for i, entry in self.waiting.copy().items() if self._runs_once(entry.call)]

    def fail_once_only(self, unsent: Container[int], farm: str) -> None:
        """Fail the calls that a lost dispatcher may have run and that must not run twice.

        farm: its address.
        """
        for call_id in self.once_only():
            entry = self.waiting.get(call_id)
            if entry is not None and call_id not in unsent:
                text = (
                    f"the connection to the farm at {farm} was lost while the call may have been "
                    f"running, and model {entry.call.model!r} is not repeatable"
                )
                self.settle([(call_id, WorkerLost(text))])


def messages(
    calls: Mapping[int, Waiting], unsent: Container[int] = frozenset()
) -> Iterator[tuple[Sequence[Task], Hints, bool]]:
    """Yield the tasks that can share a message, with hints, and whether they are among `unsent`.

    The hints have the rest of the time to the deadline.
    """
    now = time.monotonic()
    for (hints, since, new), group in itertools.groupby(
        calls.items(), key=lambda item: (item[1].hints, item[1].since, item[0] in unsent)
    ):
        if hints.deadline_s is not None:
            hints = replace(hints, deadline_s=hints.deadline_s - (now - since))
        yield [(i, entry.call) for i, entry in group], hints, new
