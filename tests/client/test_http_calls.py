"""Open calls and questions of a line over HTTP."""

from __future__ import annotations

import numpy as np
import pytest

from farm.call import NO_HINTS, Call, Hints, Operation
from farm.client import http_calls
from farm.client.http_calls import HttpCalls, HttpJob, Silence, Task, WaitingTask
from farm.errors import Cancelled, DeadlineExceeded, FarmError, Unavailable
from tests.support.scripted_lines import Inbox


class Clock:
    """The time that the calls read, in place of their module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(http_calls, "time", clock)
    return clock


def opened(calls: HttpCalls, inbox: Inbox, ids: range, hints: Hints = NO_HINTS) -> HttpJob:
    """Open calls whose keys are their ids, in one request."""
    tasks: list[Task] = [(i, Call("m", Operation.EVALUATE, (np.ones(1),))) for i in ids]
    job = HttpJob(tasks, hints, calls.waiting, 60.0)
    for call_id, _ in tasks:
        calls.waiting[call_id] = WaitingTask(inbox, call_id, job)
    return job


def test_pauses_grow_until_the_patience_ends(clock: Clock) -> None:
    silence = Silence(4.0)
    pauses_s = []
    while (pause_s := silence.pause_s()) is not None:
        pauses_s.append(pause_s)
        clock.now += pause_s
    assert pauses_s[:5] == [0.1, 0.2, 0.4, 0.8, 1.5]
    assert sum(pauses_s) == pytest.approx(4.0)
    silence.end()
    assert silence.pause_s() == 0.1


def test_a_request_ends_with_its_last_call() -> None:
    calls, inbox = HttpCalls(), Inbox()
    job = opened(calls, inbox, range(3))
    error = Unavailable("away")
    calls.settle([(0, error), (0, error), (7, error)])
    assert calls.cancel([1, 1])
    job.cancellation.check()
    assert calls.cancel([2])
    with pytest.raises(Cancelled):
        job.cancellation.check()
    assert not calls.cancel([0, 1, 2])
    assert inbox.outcomes == {0: error}
    assert not calls.has_open()


def test_only_calls_whose_deadline_has_passed_are_late(clock: Clock) -> None:
    calls, inbox = HttpCalls(), Inbox()
    late = opened(calls, inbox, range(2), Hints(deadline_s=2.0))
    opened(calls, inbox, range(2, 3), Hints(deadline_s=3.0))
    opened(calls, inbox, range(3, 4))
    clock.now += 2.5
    calls.fail_late()
    assert {key: type(y) for key, y in inbox.outcomes.items()} == dict.fromkeys(
        range(2), DeadlineExceeded
    )
    assert "within 2.5 s" in str(inbox.outcomes[0])
    assert not late.wanted()
    with pytest.raises(Cancelled):
        late.cancellation.check()


def test_all_that_is_open_fails_with_the_same_error() -> None:
    calls, inbox = HttpCalls(), Inbox()
    jobs = [opened(calls, inbox, range(2)), opened(calls, inbox, range(2, 3))]
    calls.settle([(0, FarmError("earlier"))])
    error = Unavailable("away")

    def ask() -> None:
        with calls.question() as question:
            calls.fail_all(error)
            question.check()

    with pytest.raises(Unavailable, match="away"):
        ask()
    assert [str(inbox.outcomes[key]) for key in range(3)] == ["earlier", "away", "away"]
    for job in jobs:
        with pytest.raises(Cancelled):
            job.cancellation.check()
    assert not calls.has_open()


def test_a_question_is_open_until_its_end() -> None:
    calls = HttpCalls()

    def ask() -> None:
        with calls.question() as question:
            assert calls.has_open()
            question.cancel()
            question.check()

    with pytest.raises(Cancelled, match="was cancelled"):
        ask()
    assert not calls.has_open()
