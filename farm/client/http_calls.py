"""The open calls and questions of a line over HTTP, and when a request is sent again.

Callers' threads and the threads of the line share them without a lock: each single step on the
dicts is atomic, and the thread that removes an entry settles it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from farm.call import Call, Hints, Result
from farm.client.line import Outcome, Receiver
from farm.errors import Cancelled, DeadlineExceeded, FarmError
from farm.http1.client import Cancellation

PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.5)
"""Pauses before a request without an answer is sent again; the last one is repeated."""

Task = tuple[int, Call]


class Silence:
    """Measures how long a request has had no answer, and when to send it again.

    patience_s: after this time, not again.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self.end()

    def end(self) -> None:
        """Report an answer."""
        self._since: float | None = None
        self._pauses = 0

    def pause_s(self) -> float | None:
        """Return how long to wait before asking again; None if there was no answer for too long."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        left_s = self._since + self._patience_s - now
        if left_s <= 0:
            return None
        pause_s = PAUSES_S[min(self._pauses, len(PAUSES_S) - 1)]
        self._pauses += 1
        return min(pause_s, left_s)


class HttpJob:
    """The calls of one request, which is sent again without those that have an outcome."""

    def __init__(
        self,
        tasks: Sequence[Task],
        hints: Hints,
        waiting: Mapping[int, WaitingTask],
        patience_s: float,
    ) -> None:
        self.hints = hints
        self.silence = Silence(patience_s)
        self.model = tasks[0][1].model
        self.cancellation = Cancellation()
        self._since = time.monotonic()
        self._tasks = tasks
        self._waiting = waiting

    def tasks(self) -> list[Task]:
        """Return the calls that are neither cancelled nor answered."""
        return [task for task in self._tasks if task[0] in self._waiting]

    def left_s(self) -> float | None:
        """Return the time to the calls' deadline; None if they have none."""
        if self.hints.deadline_s is None:
            return None
        return self.hints.deadline_s - (time.monotonic() - self._since)

    def late(self) -> DeadlineExceeded:
        """Return the error of calls whose deadline has passed without an answer."""
        waited_s = time.monotonic() - self._since
        return DeadlineExceeded(f"no answer within {waited_s:.3g} s; the server was away")

    def wanted(self) -> bool:
        """Whether any call is neither cancelled nor answered."""
        return bool(self.tasks())


class WaitingTask(NamedTuple):
    """A call without an outcome, and the receiver of its outcome."""

    receiver: Receiver
    key: Any
    job: HttpJob


class HttpCalls:
    """The calls without an outcome, by id, and the questions that are being asked."""

    def __init__(self) -> None:
        self.ids = itertools.count(1)
        self.renew()

    def renew(self) -> None:
        """Leave the open calls to the parent; called in a forked process."""
        self.waiting: dict[int, WaitingTask] = {}
        self._questions: dict[Cancellation, FarmError | None] = {}  # an error ends it

    def has_open(self) -> bool:
        """Whether any call or question has no outcome."""
        return bool(self.waiting) or None in self._questions.copy().values()

    @contextmanager
    def question(self) -> Iterator[Cancellation]:
        """Keep a question open within the block; its request uses the Cancellation.

        Raises the error of `fail_all` in place of the request's Cancelled.
        """
        question = Cancellation()
        self._questions[question] = None
        try:
            yield question
        except Cancelled:
            error = self._questions[question]
            if error is None:
                raise
            raise error from None
        finally:
            self._questions.pop(question, None)

    def settle(self, outcomes: Iterable[tuple[int, Outcome]]) -> None:
        """Deliver outcomes; those of calls that are not open are ignored."""
        receivers = set()
        for number, outcome in outcomes:
            waiting = self.waiting.pop(number, None)
            if waiting is not None:
                call_id = waiting.job.hints.call_id
                if call_id and not isinstance(outcome, Result):
                    outcome = outcome.of_call(call_id)
                waiting.receiver.put(waiting.key, outcome)
                receivers.add(waiting.receiver)
        for receiver in receivers:
            receiver.flush()

    def cancel(self, ids: Iterable[int]) -> bool:
        """End requests all of whose calls are settled or among these; False if all calls were."""
        taken = [w for i in ids if (w := self.waiting.pop(i, None)) is not None]
        for job in {waiting.job for waiting in taken}:
            if not job.wanted():
                job.cancellation.cancel()
        return bool(taken)

    def fail_late(self) -> None:
        """Fail calls whose deadline has passed, while there is no farm to do so."""
        for job in {waiting.job for waiting in self.waiting.copy().values()}:
            left_s = job.left_s()
            if left_s is not None and left_s <= 0:
                self._fail(job, job.late())

    def fail_all(self, error: FarmError) -> None:
        """Settle all calls and answer all questions with this error, and end their requests."""
        for job in {waiting.job for waiting in self.waiting.copy().values()}:
            self._fail(job, error)
        for question in self._questions.copy():
            if question in self._questions:
                self._questions[question] = error
                question.cancel()

    def _fail(self, job: HttpJob, error: FarmError) -> None:
        self.settle([(call_id, error) for call_id, _ in job.tasks()])
        job.cancellation.cancel()
