"""Event-loop iterations with and without new calls."""

from __future__ import annotations

from farm.dispatcher.flush_policy import MOST_ITERATIONS, FlushPolicy


class Counter:
    calls_taken = 0


def test_a_flush_is_due_without_new_calls_or_in_the_end() -> None:
    counter = Counter()
    policy = FlushPolicy(counter)
    assert policy.is_due()
    counter.calls_taken += 1
    assert not policy.is_due()
    assert policy.is_due()
    answers = []
    for _ in range(2 * MOST_ITERATIONS + 2):
        counter.calls_taken += 1
        answers.append(policy.is_due())
    put_off = [False] * MOST_ITERATIONS
    assert answers == [*put_off, True, *put_off, True]
