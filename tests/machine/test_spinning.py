"""Short waits without sleep."""

from __future__ import annotations

import os
import select
from typing import cast

import pytest

from farm.machine.spinning import SPIN_S, ShortWaits, give_way


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
