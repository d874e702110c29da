"""The watch over a silent farm, with made-up times."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest

from farm.call import NO_HINTS, Call, Hints, Operation
from farm.client import http_calls, http_watch
from farm.client.http_calls import HttpCalls, HttpJob, WaitingTask
from farm.client.http_watch import ASK_AFTER_S, LIVE, TICK_S, FarmWatch
from farm.client.line import Outcome
from farm.encoding.tensors import LONGEST_ANSWER
from farm.errors import Cancelled, DeadlineExceeded, FarmError, Unavailable
from farm.http1.client import Cancellation, HttpClient
from tests.support.scripted_lines import Inbox


class Stage(Inbox, HttpClient):
    """The farm, the clock and the threads of a watch; the test runs the watch's thread itself.

    answers: statuses of the farm's next answers; None hangs, an error is raised; empty: 200.
    steps: what happens at which times.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, patience_s: float) -> None:
        super().__init__()
        self.url = "http://farm:1"
        self.start = self.now = 1000.0
        self.answers: list[int | FarmError | None] = []
        self.steps: list[tuple[float, Callable[[], None]]] = []
        self.asked_at: list[float] = []
        self.hung: list[Cancellation] = []
        self.work: list[Callable[[], None]] = []
        self.then: list[Callable[[], None]] = []
        self.ended_at: dict[object, float] = {}
        self.calls = HttpCalls()
        for module in (http_calls, http_watch):
            monkeypatch.setattr(module, "time", self)
        self.watch = FarmWatch(self, self.calls, patience_s)
        monkeypatch.setattr(self.watch, "_pool", self)

    def passed_s(self) -> float:
        return self.now - self.start

    # The clock

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for step in [step for step in self.steps if step[0] <= self.passed_s()]:
            self.steps.remove(step)
            step[1]()

    # The pool

    def submit(self, work: Callable[[], None]) -> None:
        if not self.work:
            self.work.append(work)
            return
        assert isinstance(work, partial)  # a question, while the watch's thread runs
        self.asked_at.append(self.passed_s())
        if self.answers[:1] == [None]:
            self.answers.pop(0)
            self.hung.append(work.args[0])
        else:
            work()

    def run(self) -> None:
        """Run the watch's thread until nothing is open."""
        self.work[0]()
        self.work.clear()

    # The farm

    def ask(
        self,
        path: str,
        body: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        once: bool = False,
        most: int = LONGEST_ANSWER,
        cancellation: Cancellation | None = None,
    ) -> tuple[int, Mapping[str, str], bytes]:
        assert (path, body, once) == (LIVE, b"", True)
        assert cancellation is not None
        answer = self.answers.pop(0) if self.answers else 200
        if isinstance(answer, FarmError):
            raise answer
        assert answer is not None
        return answer, {}, b""

    # The caller

    def put(self, key: object, outcome: Outcome) -> None:
        super().put(key, outcome)
        self.ended_at[key] = self.passed_s()

    def flush(self) -> None:
        """Run what the caller does next."""
        if self.then:
            self.then.pop()()

    def call(self, key: int, hints: Hints = NO_HINTS) -> None:
        tasks = [(key, Call("m", Operation.EVALUATE, (np.ones(1),)))]
        self.calls.waiting[key] = WaitingTask(
            self, key, HttpJob(tasks, hints, self.calls.waiting, 9.0)
        )
        self.watch.begin()

    def at(self, passed_s: float, step: Callable[[], Any]) -> None:
        self.steps.append((passed_s, step))

    def reply(self, key: int) -> None:
        """Answer a call."""
        self.watch.heard()
        self.calls.settle([(key, FarmError("an answer"))])


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    """One with the patience of a minute."""
    return Stage(monkeypatch, 60.0)


def cancelled(question: Cancellation) -> bool:
    try:
        question.check()
    except Cancelled:
        return True
    return False


AWAY = Unavailable("refused")


def test_a_silent_farm_is_asked_twice_and_given_up(stage: Stage) -> None:
    stage.answers = [None, None]
    stage.call(1)
    stage.call(2)
    stage.run()
    assert stage.asked_at == pytest.approx([ASK_AFTER_S, ASK_AFTER_S + 25.0], abs=3 * TICK_S)
    assert all(cancelled(question) for question in stage.hung)
    assert {type(outcome) for outcome in stage.outcomes.values()} == {Unavailable}
    text = "no word from the server at http://farm:1 for 60 s; is it running?"
    assert str(stage.outcomes[1]).startswith(text)
    assert stage.ended_at == pytest.approx({1: 60.0, 2: 60.0}, abs=2 * TICK_S)


@pytest.mark.parametrize("patience_s", [1.0, 120.0])
def test_a_farm_that_answers_may_take_any_time(
    monkeypatch: pytest.MonkeyPatch, patience_s: float
) -> None:
    stage = Stage(monkeypatch, patience_s)
    stage.answers = [401, 500, 404, 503, 200]
    stage.call(1)
    stage.at(20 * patience_s, lambda: stage.reply(1))
    stage.run()
    assert str(stage.outcomes[1]) == "an answer"
    gap_s = min(ASK_AFTER_S, patience_s / 6)
    assert stage.asked_at[:3] == pytest.approx(
        [gap_s, 2 * gap_s, 3 * gap_s], abs=4 * min(TICK_S, gap_s / 2)
    )


@pytest.mark.parametrize("answer", [AWAY, 502, 504])
def test_a_farm_that_cannot_be_reached_is_asked_again(
    stage: Stage, answer: int | FarmError
) -> None:
    stage.answers = [answer] * 1000
    stage.call(1)
    stage.run()
    assert len(stage.asked_at) == pytest.approx(50.0 / TICK_S, abs=2)
    assert stage.ended_at[1] == pytest.approx(60.0, abs=2 * TICK_S)


def test_answers_to_other_calls_count(stage: Stage) -> None:
    stage.call(0)
    for key in range(1, 21):
        stage.call(key)
        stage.at(5.0 * key, lambda key=key: stage.reply(key))  # type: ignore[misc]
    stage.at(101.0, lambda: stage.reply(0))
    stage.run()
    assert stage.asked_at == []
    assert str(stage.outcomes[0]) == "an answer"


def test_a_question_ends_once_the_farm_is_heard(stage: Stage) -> None:
    stage.answers = [None, None, None]
    stage.call(0)
    stage.at(20.0, stage.watch.heard)
    stage.at(21.0, lambda: seen.append(cancelled(stage.hung[0])))
    stage.at(50.0, lambda: stage.reply(0))
    seen: list[bool] = []
    stage.run()
    assert seen == [True]
    assert stage.asked_at[1] == pytest.approx(30.0, abs=2 * TICK_S)
    assert cancelled(stage.hung[1])
    assert len(stage.hung) == 2


def test_time_in_which_the_client_was_stopped_does_not_count(stage: Stage) -> None:
    stage.answers = [None] * 3
    stage.call(1)

    def stop() -> None:
        stage.now += 1000.0

    stage.at(30.0, stop)
    stage.run()
    assert stage.ended_at[1] == pytest.approx(1060.0, abs=4 * TICK_S)


def test_deadlines_hold_while_the_farm_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, math.inf)
    stage.answers = [None]
    stage.call(1, Hints(deadline_s=2.0))
    stage.call(2, Hints(deadline_s=500.0))
    stage.run()
    assert {type(outcome) for outcome in stage.outcomes.values()} == {DeadlineExceeded}
    assert stage.ended_at == pytest.approx({1: ASK_AFTER_S, 2: 500.0}, abs=2 * TICK_S)


def test_later_calls_have_the_whole_patience(stage: Stage) -> None:
    stage.answers = [None] * 6
    stage.call(1)
    stage.run()
    ends_s = [stage.passed_s()]
    stage.now += 1000.0  # nothing is open, and the thread sleeps
    stage.call(2)
    stage.at(1100.0, lambda: stage.call(3))
    stage.run()
    assert stage.ended_at[2] == pytest.approx(ends_s[0] + 1060.0, abs=2 * TICK_S)
    assert stage.ended_at[3] == stage.ended_at[2]


def test_a_call_in_place_of_a_failed_one_has_the_whole_patience(stage: Stage) -> None:
    stage.answers = [None] * 6
    stage.call(1)
    stage.then.append(lambda: stage.call(2))
    stage.run()
    assert stage.ended_at == pytest.approx({1: 60.0, 2: 120.0}, abs=4 * TICK_S)


def test_no_question_outlives_the_calls(stage: Stage) -> None:
    stage.answers = [None]
    stage.call(1)
    stage.at(20.0, lambda: stage.calls.cancel([1]))
    stage.run()
    assert stage.passed_s() == pytest.approx(20.0, abs=TICK_S)
    assert [cancelled(question) for question in stage.hung] == [True]


def test_questions_of_the_client_are_given_up_too(stage: Stage) -> None:
    stage.answers = [None, None]

    def ask() -> None:
        with stage.watch.question() as question:
            stage.run()
            question.check()

    with pytest.raises(Unavailable, match="no word"):
        ask()


def test_a_forked_process_watches_its_own_calls(stage: Stage) -> None:
    stage.call(1)
    assert len(stage.work) == 1
    stage.work.clear()  # the thread is the parent's
    with stage.calls.question():
        stage.calls.renew()
        stage.watch.renew()
        assert not stage.calls.has_open()
    stage.answers = [None, None]
    stage.call(2)
    stage.run()
    assert list(stage.outcomes) == [2]
