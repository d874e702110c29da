"""The record of a worker: what it holds, and what it was asked to return."""

from __future__ import annotations

import pytest

from tests.scheduler.recorder import SHORT_S, Recorder, sent


@pytest.fixture
def full(farm: Recorder) -> Recorder:
    """Worker "w" runs a call, and another one waits there."""
    farm.learn(SHORT_S)
    farm.join("w")
    first, second = farm.submit_many(2)
    farm.expect(sent("w", first, second))
    return farm


def test_a_call_begins_when_the_one_before_it_is_answered(full: Recorder) -> None:
    worker = full.worker("w")
    first, second = worker.held.values()
    assert worker.running() == (first, first.attempt.sent_at)
    full.after(SHORT_S).answer("w", first.id, SHORT_S)
    assert worker.running() == (second, full.now)
    assert worker.answers.last_at == worker.answers.run_ended_at == full.now
    assert worker.answers.done == 1
