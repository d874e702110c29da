"""Reservations for large bodies: within the limit, in order, and without deadlock."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from farm.bodies.held import HeldBytes, Share


def nothing() -> None:
    pass


def test_what_fits_is_granted_at_once_and_what_does_not_waits_in_order() -> None:
    held, granted = HeldBytes(100), list[str]()
    first = held.reserve(60, lambda: granted.append("first"))
    second = held.reserve(60, lambda: granted.append("second"))
    third = held.reserve(10, lambda: granted.append("third"))
    assert (first.granted, second.granted, third.granted) == (True, False, False)
    assert held.contended
    first.release()
    assert granted == ["second", "third"]  # those granted at once are not called
    assert held.used == 70


def test_a_share_that_is_larger_than_the_limit_is_granted_alone() -> None:
    held = HeldBytes(100)
    small = held.reserve(1, nothing)
    large = held.reserve(1000, nothing)
    assert [large.granted, small.granted] == [False, True]
    small.release()
    assert large.granted
    assert not held.reserve(1, nothing).granted


def test_a_share_may_turn_out_smaller() -> None:
    held = HeldBytes(100)
    unknown = held.reserve(100, nothing)
    waits = held.reserve(50, nothing)
    unknown.resize(50)
    assert waits.granted
    unknown.release()
    assert held.used == 50


def test_who_leaves_while_waiting_holds_up_nobody_behind() -> None:
    held = HeldBytes(100)
    first, large, small = (
        held.reserve(50, nothing),
        held.reserve(60, nothing),
        held.reserve(50, nothing),
    )
    large.release()
    assert small.granted
    large.release()  # releasing twice is harmless
    assert held.used == first.size + small.size


def test_what_is_there_already_is_counted_whether_it_fits_or_not() -> None:
    held = HeldBytes(100)
    there = held.hold(500)
    assert there.granted
    assert not held.reserve(1, nothing).granted
    there.release()
    assert held.used == 1


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_everybody_gets_room_in_the_end(seed: int) -> None:
    """For any use of shares by clients, the limit holds and shares are granted in order."""
    chance = random.Random(seed)
    held, order, granted = HeldBytes(100), list[int](), list[int]()
    shares: dict[int, Share] = {}
    for number in range(30):
        size = chance.randint(1, 130)
        shares[number] = held.reserve(size, lambda number=number: granted.append(number))  # type: ignore[misc]  # bound early
        (granted if shares[number].granted else order).append(number)
        for share in chance.sample(list(shares.values()), min(2, len(shares))):
            if share.granted and chance.random() < 0.5:
                share.release()
        usage = [share.size for share in shares.values() if share.granted and share.size]
        assert held.used == sum(usage)
        assert held.used <= 100 or len(usage) == 1
    while held.contended:
        next(share for share in shares.values() if share.granted and share.size).release()
    assert sorted(granted) == granted == list(range(30))
