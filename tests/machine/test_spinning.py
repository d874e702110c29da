"""Short waits without sleep."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable
from typing import cast

import pytest

from farm.machine.spinning import SPIN_S, LoneCaller, ShortWaits, give_way


class Time:
    """A clock, and a poll object whose descriptor is ready at `ready_at`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ready_at = 0.0
        self.slept: list[int] = []

    def __call__(self) -> float:
        return self.now

    def poll(self, timeout_ms: int) -> list[tuple[int, int]]:
        if timeout_ms:
            self.slept.append(timeout_ms)
            self.now = min(self.now + timeout_ms / 1000, max(self.now, self.ready_at))
        else:
            self.now += 1e-6
        return [(3, select.POLLIN)] if self.now >= self.ready_at else []


def wait(waits: ShortWaits, clock: Time, takes_s: float) -> bool:
    """Wait for what is ready after `takes_s`; return whether that slept."""
    clock.ready_at = clock.now + takes_s
    clock.slept.clear()
    assert waits.poll(cast(select.poll, clock), 1.0) == [(3, select.POLLIN)]
    return bool(clock.slept)


def test_a_wait_after_a_short_one_does_not_sleep() -> None:
    clock = Time()
    waits = ShortWaits(clock)
    assert wait(waits, clock, SPIN_S / 2), "nothing is known yet"
    assert not wait(waits, clock, SPIN_S / 2)
    assert not wait(waits, clock, SPIN_S / 2)


def test_a_long_wait_is_slept_through_and_so_is_the_next() -> None:
    clock = Time()
    waits = ShortWaits(clock)
    wait(waits, clock, SPIN_S / 2)
    began = clock.now
    assert wait(waits, clock, 100 * SPIN_S)
    assert clock.now - began == pytest.approx(100 * SPIN_S, rel=0.1)
    assert wait(waits, clock, SPIN_S / 2)
    assert not wait(waits, clock, SPIN_S / 2)


def test_nothing_comes() -> None:
    clock = Time()
    waits = ShortWaits(clock)
    wait(waits, clock, SPIN_S / 2)
    clock.ready_at = clock.now + 5.0
    clock.slept.clear()
    assert waits.poll(cast(select.poll, clock), 0.5) == []
    assert clock.slept == [500]
    assert waits.poll(cast(select.poll, clock), 0.0) == [], "does not wait"


def test_a_real_descriptor() -> None:
    read_end, write_end = os.pipe()
    try:
        poll, waits = select.poll(), ShortWaits()
        poll.register(read_end, select.POLLIN)
        os.write(write_end, b"w")
        for _ in range(3):
            assert waits.poll(poll, 5.0) == [(read_end, select.POLLIN)]
        os.read(read_end, 1)
        assert waits.poll(poll, 0.01) == []
        give_way()
    finally:
        os.close(read_end)
        os.close(write_end)


SHORT_S, LONG_S = SPIN_S / 10, 10 * SPIN_S


class Farm:
    """A farm whose time passes only by `step`; counts the iterations that its loop spins."""

    def __init__(self) -> None:
        self.now = 0.0
        self.open = list[None]()
        self.looks = 0
        self.caller = LoneCaller(self.open, (), cast(asyncio.AbstractEventLoop, self), self._clock)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Stand for the loop that runs now."""
        asyncio.get_running_loop().call_soon(callback)

    def _clock(self) -> float:
        self.looks += 1
        return self.now

    def step(self, after_s: float, calls_open: int) -> int:
        """After a time, act: then so many calls are open. Return how often the loop spins."""
        return asyncio.run(self._step(after_s, calls_open))

    async def _step(self, after_s: float, calls_open: int) -> int:
        self.now += after_s
        self.open[:] = [None] * calls_open
        self.caller.acted()
        spins = await self.spins()
        self.now += 2 * SPIN_S
        assert await self.spins() <= 1, "a spin has an end"
        self.now -= 2 * SPIN_S
        return spins

    async def spins(self) -> int:
        """Return how often the loop spins in 20 iterations in which time stands still."""
        self.looks = 0
        for _ in range(20):
            await asyncio.sleep(0)
        return self.looks


def test_the_loop_spins_in_short_waits_of_a_lone_caller() -> None:
    farm = Farm()
    assert farm.step(LONG_S, 1) == 0
    assert farm.step(SHORT_S, 0) == 0, "no wait for a request is known"
    assert farm.step(SHORT_S, 1) >= 19
    assert farm.step(SHORT_S, 0) >= 19


def test_a_slow_model_is_not_spun_for_but_the_next_request_is() -> None:
    farm = Farm()
    for calls_open in (1, 0, 1, 0):
        farm.step(SHORT_S, calls_open)
    farm.step(SHORT_S, 1)
    assert farm.step(LONG_S, 0) >= 19, "the caller is as quick as before"
    assert farm.step(SHORT_S, 1) == 0, "the answer took long"


def test_several_callers_keep_the_loop_awake_themselves() -> None:
    farm = Farm()
    for calls_open in (1, 0, 1, 0):
        farm.step(SHORT_S, calls_open)
    assert farm.step(SHORT_S, 2) == 0
    assert farm.step(SHORT_S, 1) >= 19
