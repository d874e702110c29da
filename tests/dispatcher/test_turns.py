"""When the dispatcher acts at a set time; test_dispatcher.py has who waits for a change."""

from __future__ import annotations

import time

from farm.dispatcher.turns import Timer
from tests.support.coroutines import until


async def test_it_rings_at_the_time_that_was_set_last() -> None:
    rung: list[float] = []
    timer = Timer(lambda: rung.append(time.monotonic()))
    began = time.monotonic()
    timer.set(began + 1000.0)
    timer.set(began + 0.05)
    timer.set(began + 0.05)
    await until(lambda: rung)
    assert rung[0] >= began + 0.04
    timer.set(began)  # a time that has passed, and one that it had before
    await until(lambda: len(rung) == 2)


async def test_a_cancelled_timer_does_not_ring_and_can_be_set_again() -> None:
    rung: list[str] = []
    first, second = (Timer(lambda n=name: rung.append(n)) for name in ("first", "second"))  # type: ignore[misc]  # mypy infers no type for the default
    now = time.monotonic()
    first.set(now)
    first.set(None)
    second.set(now + 1.0)
    second.set(None)
    second.set(now)
    await until(lambda: rung)
    assert rung == ["second"]
    first.set(now)
    await until(lambda: len(rung) == 2)
    assert rung == ["second", "first"]
