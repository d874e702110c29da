"""Long messages in slices: so many calls, answers or ids in each turn of the event loop.

A message of a million calls is legal, and must not hold up other peers for the seconds that it
takes to act on. So acting on a message is an iterator that says after each step how much it has
done, and peers take turns.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator

STEPS_A_TURN = 64
"""Calls taken in, or as much other work, before the event loop gets its turn again."""

STEPS_IN_A_ROW = 32
"""The same of one peer, before the next one has its turn."""

Steps = Iterator[int]
"""Does a part of some work at each step, and says how many calls' worth of work that was."""


class Agenda:
    """What is to be done for each of many peers, in the order in which it came.

    within: runs what it is given, and then whatever has to follow at once (`Dispatcher.act_on`).
    """

    def __init__(self, within: Callable[[Callable[[], None]], None]) -> None:
        self._within = within
        self._waiting: OrderedDict[Hashable, deque[Steps]] = OrderedDict()
        self._left = STEPS_A_TURN
        self._is_due = False

    def __len__(self) -> int:
        return len(self._waiting)

    def waits(self, peer: Hashable) -> bool:
        """Whether something of the peer is not done yet."""
        return peer in self._waiting

    def add(self, peer: Hashable, steps: Steps) -> None:
        """Do this now if there is time in this turn and nothing of the peer waits; else later."""
        waiting = self._waiting.get(peer)
        if waiting is not None:
            waiting.append(steps)
            return
        if not self._has_ended(steps, self._left):
            self._waiting[peer] = deque([steps])
        if not self._is_due and (self._waiting or self._left < STEPS_A_TURN):
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def finish(self, peer: Hashable) -> None:
        """Do at once what waits for a peer, as it will not be there any more."""
        for steps in self._waiting.pop(peer, ()):
            for _ in steps:
                pass

    def drop(self, peer: Hashable) -> None:
        """Leave undone what waits for a peer."""
        self._waiting.pop(peer, None)

    def _has_ended(self, steps: Steps, most: int) -> bool:
        """Do some of it; whether that was all."""
        while most > 0:
            count = next(steps, None)
            if count is None:
                return True
            most -= count
            self._left -= count
        return False

    def _turn(self) -> None:
        self._is_due = False
        self._left = STEPS_A_TURN
        if self._waiting:
            self._within(self._work)
        if self._waiting and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _work(self) -> None:
        while self._waiting and self._left > 0:
            peer, waiting = next(iter(self._waiting.items()))
            ended = self._has_ended(waiting[0], min(self._left, STEPS_IN_A_ROW))
            if self._waiting.get(peer) is not waiting:
                continue  # what was done has dropped the rest
            if ended:
                waiting.popleft()
            if waiting:
                self._waiting.move_to_end(peer)
            else:
                del self._waiting[peer]
