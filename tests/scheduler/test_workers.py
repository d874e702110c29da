"""The record of a worker: what it holds, and what it was asked to return."""

from __future__ import annotations

from tests.support.scheduler_recorder import SHORT_S, Recorder, prefetched


def test_a_call_begins_when_the_one_before_it_is_answered(farm: Recorder) -> None:
    prefetched(farm)
    worker = farm.worker("w")
    first, second = worker.held.values()
    assert worker.running() == (first, first.attempt.sent_at)
    farm.after(SHORT_S).answer("w", first.id, SHORT_S)
    assert worker.running() == (second, farm.now)
    assert worker.answers.last_at == worker.answers.run_ended_at == farm.now
    assert worker.answers.done == 1
