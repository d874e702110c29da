"""When the front door searches for garbage cycles, which holds up every caller.

The interpreter's own full search goes through all objects, and the calls that wait may be a million
objects: 0.6 to 1.3 s were measured with 100,000 calls. A call makes no cycles. So here only young
objects are searched as the program runs, and all others now and then while few calls are open.

The interpreter starts a search of young objects when the number of objects has grown by a
threshold. While as many calls end as begin the number does not grow, and the next search goes
through hundreds of thousands of young objects: 0.1 to 0.2 s. So a timer searches them as well.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable

YOUNG = 5_000
"""Objects made between two searches of the youngest. A call makes some fifty; the interpreter's own
700 cost a dispatcher with thousands of calls in it a fifth of its time."""

YOUNG_SEARCHES = 1
"""Searches of the youngest before those that were there are searched with them."""

NEVER = 1 << 30

YOUNG_EVERY_S, YOUNG_AT_MOST_EVERY_S = 0.25, 0.005
"""Intervals of the timer, at rest and under load. The heaviest load creates 50,000 objects in a
quarter second."""

QUICK_S = 0.002
"""The timer's interval shrinks while a search takes longer than this."""

SEARCH_EVERY_S = 60.0
"""How often all objects are searched."""

FEW_CALLS, FEW_OBJECTS = 4_000, 250_000
"""They are not searched while there are more. A connection has some thirty objects; a search of so
many takes 40 ms."""

LONG_S = 0.02
"""What is left after a search that took longer is not searched again."""


def search_young_only() -> None:
    """From now on search young objects only, and never those that are there already."""
    gc.freeze()
    gc.set_threshold(YOUNG, YOUNG_SEARCHES, NEVER)


def search_all(calls_open: int) -> bool:
    """Search all objects if that is quick; whether it was done."""
    if calls_open > FEW_CALLS or len(gc.get_objects()) > FEW_OBJECTS:
        return False
    start = time.perf_counter()
    gc.collect()
    if time.perf_counter() - start > LONG_S:
        gc.freeze()
    return True


async def search_now_and_then(calls_open: Callable[[], int]) -> None:
    """Search all objects every minute, until cancelled."""
    while True:
        await asyncio.sleep(SEARCH_EVERY_S)
        search_all(calls_open())


async def search_young_in_time() -> None:
    """Search young objects on a timer, until cancelled."""
    pause_s, generation = YOUNG_EVERY_S, 0
    while True:
        await asyncio.sleep(pause_s)
        start = time.perf_counter()
        gc.collect(generation)
        if time.perf_counter() - start > QUICK_S:
            pause_s = max(YOUNG_AT_MOST_EVERY_S, pause_s / 4)
        else:
            pause_s = min(YOUNG_EVERY_S, pause_s * 2)
        generation = 1 - generation  # each second time with those that the last search has left


def search_no_more() -> None:
    """Skip the interpreter's search at its exit, which takes 8 s with 100,000 open calls."""
    gc.freeze()
