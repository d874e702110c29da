"""Turns of a loop in which calls come in, and those in which none does."""

from __future__ import annotations

from farm.scheduler.lull import MOST_TURNS, Lull


class Taker:
    calls_taken = 0


def test_a_lull_is_a_turn_without_calls_or_comes_in_the_end() -> None:
    taker = Taker()
    lull = Lull(taker)
    assert lull.is_now()
    taker.calls_taken += 1
    assert not lull.is_now()
    assert lull.is_now()
    said = []
    for _ in range(2 * MOST_TURNS + 2):
        taker.calls_taken += 1
        said.append(lull.is_now())
    put_off = [False] * MOST_TURNS
    assert said == [*put_off, True, *put_off, True]
