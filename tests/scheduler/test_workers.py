"""The record of a worker: what it holds, and what it was asked to return."""

from __future__ import annotations

import pytest

from farm.scheduler.phases import HELD, RECALLED
from tests.scheduler.recorder import SHORT_S, Recorder, replied, sent


@pytest.fixture
def full(farm: Recorder) -> Recorder:
    """Worker "w" runs a call, and another one waits there."""
    farm.learn(SHORT_S)
    farm.join("w")
    first, second = farm.submit_many(2)
    farm.expect(sent("w", first, second))
    return farm


def test_the_tasks_that_run_and_those_that_wait_behind(full: Recorder) -> None:
    worker = full.worker("w")
    first, second = worker.held.values()
    assert worker.held_in_turn(1) == ([first], [second])
    assert worker.held_in_turn(2) == ([first, second], [])
    assert (worker.lots, worker.behind) == (2, 1)


def test_a_call_begins_when_the_one_before_it_is_answered(full: Recorder) -> None:
    worker = full.worker("w")
    first, second = worker.held.values()
    assert worker.running() == (first, first.attempt.sent_at)
    full.after(SHORT_S).finish("w", first.id, SHORT_S)
    full.expect(replied(first.id, SHORT_S, "w"))
    assert worker.running() == (second, full.now)
    assert worker.answers.last_at == worker.answers.run_ended_at == full.now
    assert worker.answers.done == 1


def test_a_recall_is_pending_until_it_is_answered_or_void(full: Recorder) -> None:
    worker = full.worker("w")
    _, second = worker.held.values()
    worker.recall([second])
    assert (worker.recall_pending, second.attempt.phase) == (True, RECALLED)
    worker.void_recall()
    assert (worker.recall_pending, second.attempt.phase) == (False, HELD)
    worker.recall([second])
    worker.end_recall()
    assert (worker.recall_pending, second.attempt.phase) == (False, RECALLED)
