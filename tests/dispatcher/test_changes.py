"""A wait ends when its condition is true at a change, or when its time is over."""

from __future__ import annotations

import asyncio

from farm.dispatcher.changes import Changes
from tests.support.coroutines import on_loop


@on_loop
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


@on_loop
async def test_the_wait_ends_with_its_time() -> None:
    assert not await Changes().until(lambda: False, 0.001)
    assert await Changes().until(lambda: True, 0.0)
