"""Schedules the search for garbage cycles, which stops the front door while it runs.

The interpreter's own full search visits all objects, and waiting calls may be a million objects:
0.6 to 1.3 s were measured with 100,000 calls. A call creates no cycles. So only young objects are
searched regularly, and all others occasionally, while few calls are open.

The interpreter starts a search of young objects when the number of objects has grown by a
threshold. While as many calls end as begin, that number does not grow, and the next search visits
hundreds of thousands of young objects: 0.1 to 0.2 s. So a timer searches them as well.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable

YOUNG = 5_000
"""Objects created between two searches of the youngest generation. A call creates some fifty; the
interpreter's own 700 cost a dispatcher with thousands of calls a fifth of its time."""

YOUNG_SEARCHES = 1
"""Searches of the youngest generation per search of the middle one."""

NEVER = 1 << 30

YOUNG_EVERY_S, YOUNG_AT_MOST_EVERY_S = 0.25, 0.005
"""Intervals of the timer, at rest and under load. The heaviest load creates 50,000 objects in a
quarter second."""

QUICK_S = 0.002
"""The timer's interval shrinks while a search takes longer than this."""

SEARCH_EVERY_S = 60.0
"""Interval between searches of all objects."""

FEW_CALLS, FEW_OBJECTS = 4_000, 250_000
"""All objects are searched only below these numbers. A connection has some thirty objects; a search
of 250,000 takes 40 ms."""

LONG_S = 0.02
"""Objects that survive a search longer than this are not searched again."""


def search_young_only() -> None:
    """Search only young objects from now on, and never those that exist already."""
    gc.freeze()
    gc.set_threshold(YOUNG, YOUNG_SEARCHES, NEVER)


def search_all(calls_open: int) -> bool:
    """Search all objects if that is quick; return whether the search was made."""
    if calls_open > FEW_CALLS or len(gc.get_objects()) > FEW_OBJECTS:
        return False
    start = time.perf_counter()
    gc.collect()
    if time.perf_counter() - start > LONG_S:
        gc.freeze()
    return True


async def search_now_and_then(calls_open: Callable[[], int]) -> None:
    """Search all objects every minute if few calls are open; runs until cancelled."""
    while True:
        await asyncio.sleep(SEARCH_EVERY_S)
        search_all(calls_open())


async def search_young_in_time() -> None:
    """Search young objects on a timer; runs until cancelled."""
    pause_s, generation = YOUNG_EVERY_S, 0
    while True:
        await asyncio.sleep(pause_s)
        start = time.perf_counter()
        gc.collect(generation)
        if time.perf_counter() - start > QUICK_S:
            pause_s = max(YOUNG_AT_MOST_EVERY_S, pause_s / 4)
        else:
            pause_s = min(YOUNG_EVERY_S, pause_s * 2)
        generation = 1 - generation  # every second search includes the middle generation


def search_no_more() -> None:
    """Skip the interpreter's search at its exit, which takes 8 s with 100,000 open calls."""
    gc.freeze()
