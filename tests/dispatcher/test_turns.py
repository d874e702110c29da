"""When the dispatcher acts, at a set time, and who waits for a change."""

from __future__ import annotations

import asyncio
import time

from farm.dispatcher.turns import Changes, Timer
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


async def test_a_change_makes_those_who_wait_check_again() -> None:
    changes = Changes()
    there: list[int] = []
    waits = asyncio.create_task(changes.until(lambda: len(there) > 1, 30.0))
    for n in range(2):
        there.append(n)
        changes.tell()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert waits.done() == (n == 1)
    assert await waits


async def test_the_wait_ends_with_its_time() -> None:
    assert not await Changes().until(lambda: False, 0.001)
    assert await Changes().until(lambda: True, 0.0)
