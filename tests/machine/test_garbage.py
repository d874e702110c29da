"""The searches for garbage cycles: what they find, and when they are skipped."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref
from collections import deque

import pytest

from farm.machine import garbage
from farm.machine.garbage import (
    FEW_CALLS,
    search_all,
    search_no_more,
    search_now_and_then,
    search_young_in_time,
)
from tests.support.coroutines import until
from tests.support.time_limits import scaled


class Node:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.me = self


def lost_cycle() -> weakref.ref[Node]:
    return weakref.ref(Node())


@pytest.fixture
def few_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow full searches, however many objects other tests have left."""
    monkeypatch.setattr(garbage, "FEW_OBJECTS", 1 << 40)


@pytest.mark.usefixtures("few_objects")
def test_cycles_are_found_unless_many_calls_are_open() -> None:
    gc.disable()
    try:
        lost = lost_cycle()
        assert not search_all(FEW_CALLS + 1)
        assert lost() is not None
        assert search_all(FEW_CALLS)
        assert lost() is None
    finally:
        gc.enable()


@pytest.mark.slow
@pytest.mark.usefixtures("few_objects")
@pytest.mark.parametrize("long_s", [-1.0, 1e9])
def test_what_takes_long_to_search_is_searched_once(
    long_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "LONG_S", long_s)
    gc.collect()  # from Python 3.12 on it freezes objects that never end
    before = gc.get_freeze_count()
    try:
        assert search_all(0)
        assert (gc.get_freeze_count() > before) == (long_s < 0)
    finally:
        gc.unfreeze()


async def test_it_goes_on_until_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "SEARCH_EVERY_S", 0.001)
    searches = []

    def calls_open() -> int:
        searches.append(1)
        return FEW_CALLS + 1

    task = asyncio.create_task(search_now_and_then(calls_open))
    await until(lambda: len(searches) > 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_hundreds_of_thousands_of_objects_are_never_searched_in_one_go() -> None:
    """No search visits more than the young objects, however many objects there are."""
    program = (
        "import gc\n"
        "from farm.machine import garbage\n"
        "garbage.search_young_only()\n"
        "most = 0\n"
        "def seen(phase, info):\n"
        "    global most\n"
        "    if phase == 'start':\n"
        "        most = max(most, info['generation'])\n"
        "gc.callbacks.append(seen)\n"
        "kept = [[i] for i in range(300_000)]\n"
        "assert most == 1, most\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=scaled(60.0))


async def test_where_as_many_objects_end_as_begin_the_young_are_searched_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The interpreter counts the growth in objects only, and so never searches them."""
    for pause in ("YOUNG_EVERY_S", "YOUNG_AT_MOST_EVERY_S"):
        monkeypatch.setattr(garbage, pause, 0.0)
    kept = deque[list[int]]([[i] for i in range(100_000)])
    thresholds = gc.get_threshold()
    gc.collect()
    gc.set_threshold(5_000, 1, 1 << 30)
    task = asyncio.create_task(search_young_in_time())
    most = made = 0
    try:
        while made < 200_000:
            for i in range(100):
                kept.popleft()
                kept.append([i])
            made += 100
            if made % 10_000 == 0:
                most = max(most, len(gc.get_objects(generation=0)))
                for _ in range(3):
                    await asyncio.sleep(0)
        assert most < 20_000  # otherwise as many as are kept
    finally:
        gc.set_threshold(*thresholds)
        task.cancel()


def test_at_the_end_nothing_is_searched() -> None:
    try:
        lost = lost_cycle()
        search_no_more()
        gc.collect()
        assert lost() is not None
    finally:
        gc.unfreeze()
        gc.collect()
    assert lost() is None


@pytest.mark.slow
def test_many_objects_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example those of thousands of connections without calls."""
    gc.disable()
    try:
        lost = lost_cycle()
        monkeypatch.setattr(garbage, "FEW_OBJECTS", len(gc.get_objects()) - 1000)
        assert not search_all(0)
        assert lost() is not None
        monkeypatch.setattr(garbage, "FEW_OBJECTS", len(gc.get_objects()) + 1000)
        assert search_all(0)
        assert lost() is None
    finally:
        gc.unfreeze()
        gc.enable()
