"""When the dispatcher acts: at a set time, and after a lone caller; and who waits for a change."""

from __future__ import annotations

import asyncio
import time

from farm.dispatcher.turns import Changes, LoneCaller, Timer
from farm.machine.spinning import SPIN_S
from tests.support.coroutines import on_loop, until

SHORT_S, LONG_S = SPIN_S / 10, 10 * SPIN_S


class Farm:
    """A farm whose time passes only by `step`; counts the iterations that its loop spins."""

    def __init__(self) -> None:
        self.now = 0.0
        self.open = list[None]()
        self.looks = 0
        self.caller = LoneCaller(self.open, (), self._clock)

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


@on_loop
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


@on_loop
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
