"""The event loop between the steps of a lone caller."""

from __future__ import annotations

import asyncio

from farm.dispatcher.lone_caller import LoneCaller
from farm.machine.spinning import SPIN_S

SHORT_S, LONG_S = SPIN_S / 10, 10 * SPIN_S


class Farm:
    """A farm whose time passes only by `step`; counts the iterations that its loop spins."""

    def __init__(self) -> None:
        self.now = 0.0
        self.open = 0
        self.looks = 0
        self.caller = LoneCaller(lambda: self.open, self._clock)

    def _clock(self) -> float:
        self.looks += 1
        return self.now

    def step(self, after_s: float, calls_open: int) -> int:
        """After a time, act: then so many calls are open. Return how often the loop spins."""
        return asyncio.run(self._step(after_s, calls_open))

    async def _step(self, after_s: float, calls_open: int) -> int:
        self.now += after_s
        self.open = calls_open
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
