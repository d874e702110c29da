"""Processing of long messages in slices, so that the event loop serves all peers in turn.

A message with a million calls is legal, but must not delay other peers for the seconds that it
takes to process. So processing a message is an iterator that yields after each step how much work
the step was, and the peers take turns.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator

from farm.dispatcher.turns import LoopTurns

STEPS_A_TURN = 64
"""Work per event-loop iteration, in calls or equivalent work."""

SPARE_STEPS = 8
"""Work after which the budget is renewed in the next iteration. Most messages carry one call, and a
callback for each would cost more than the rest of the agenda."""

STEPS_IN_A_ROW = 32
"""Work for one peer before the next one has its turn, in the same unit."""

Steps = Iterator[int]
"""Does part of some work at each step, and yields how many calls' worth of work that was."""


class Agenda:
    """Pending work for many peers, in order of arrival for each.

    The work happens within `act_on` of the turns, which then follow up on all of it.

    waiting: the unfinished work of each peer. left: how much may be done in this iteration.
    """

    def __init__(self, turns: LoopTurns) -> None:
        self._turns = turns
        self.waiting: OrderedDict[Hashable, deque[Steps]] = OrderedDict()
        self.left = STEPS_A_TURN
        self._is_due = False

    def __len__(self) -> int:
        return len(self.waiting)

    def add(self, peer: Hashable, steps: Steps) -> None:
        """Process this now if time is left and the peer has nothing pending; else queue it."""
        waiting = self.waiting.get(peer)
        if waiting is not None:
            waiting.append(steps)
            return
        if not self._has_ended(steps, self.left):
            self.waiting[peer] = deque([steps])
        self._renew()

    def did(self, work: int) -> None:
        """Count work that was done without being added, for a peer with nothing pending."""
        self.left -= work
        if self.left <= STEPS_A_TURN - SPARE_STEPS:
            self._renew()

    def _renew(self) -> None:
        if not self._is_due and (self.waiting or self.left <= STEPS_A_TURN - SPARE_STEPS):
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def finish(self, peer: Hashable) -> None:
        """Finish the peer's pending work at once, because the peer is about to be removed."""
        for steps in self.waiting.pop(peer, ()):
            for _ in steps:
                pass

    def drop(self, peer: Hashable) -> None:
        """Discard the peer's pending work."""
        self.waiting.pop(peer, None)

    def _has_ended(self, steps: Steps, most: int) -> bool:
        """Do up to `most` units of the work; return whether it is finished."""
        while most > 0:
            count = next(steps, None)
            if count is None:
                return True
            most -= count
            self.left -= count
        return False

    def _turn(self) -> None:
        self._is_due = False
        self.left = STEPS_A_TURN
        if self.waiting:
            self._turns.act_on(self._work)
        if self.waiting and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _work(self) -> None:
        while self.waiting and self.left > 0:
            peer, waiting = next(iter(self.waiting.items()))
            ended = self._has_ended(waiting[0], min(self.left, STEPS_IN_A_ROW))
            if self.waiting.get(peer) is not waiting:
                continue  # the step dropped the peer's remaining work
            if ended:
                waiting.popleft()
            if waiting:
                self.waiting.move_to_end(peer)
            else:
                del self.waiting[peer]
