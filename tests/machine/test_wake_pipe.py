"""A wake-up can be read until it is cleared, and does nothing after the end."""

from __future__ import annotations

import os
import select

from farm.machine.wake_pipe import WakePipe


def has_wake_up(wakes: WakePipe) -> bool:
    return bool(select.select([wakes.read_end], [], [], 0.0)[0])


def test_wake_ups_are_seen_until_they_are_cleared() -> None:
    wakes = WakePipe()
    assert not has_wake_up(wakes)
    wakes.clear()  # there is none
    for _ in range(3):
        wakes.wake()
    assert has_wake_up(wakes)
    wakes.clear()
    assert not has_wake_up(wakes)
    wakes.close()


def test_a_full_pipe_takes_more_wake_ups() -> None:
    wakes = WakePipe()
    for _ in range(70_000):
        wakes.wake()
    assert has_wake_up(wakes)
    wakes.close()


def test_after_the_end_a_wake_up_reaches_no_other_file() -> None:
    wakes = WakePipe()
    wakes.close()
    wakes.close()
    read_end, write_end = os.pipe()  # they get the numbers of the closed ends
    os.set_blocking(read_end, False)
    wakes.wake()
    assert not select.select([read_end], [], [], 0.0)[0]
    os.close(read_end)
    os.close(write_end)
