"""When is a good time for what is done for many calls at once: told by turns, without a clock."""

from __future__ import annotations

from typing import Protocol

MOST_TURNS = 8
"""Turns of the loop that what can wait is put off while calls keep coming in."""


class TakesCalls(Protocol):
    """Whoever takes calls in, and counts them."""

    calls_taken: int


class Lull:
    """Says when no call has come in for a turn of the loop, or they have kept coming for long.

    On a busy loop what is done for each message, and not for each call, is best done rarely; on an
    idle one at once. So no clock is needed to tell the one from the other.
    """

    def __init__(self, taker: TakesCalls) -> None:
        self._taker = taker
        self._seen = 0
        self._turns = 0

    def is_now(self) -> bool:
        """To be asked once in a turn; False: ask again in the next."""
        calls = self._taker.calls_taken
        busy = calls != self._seen and self._turns < MOST_TURNS
        self._seen = calls
        self._turns = self._turns + 1 if busy else 0
        return not busy
