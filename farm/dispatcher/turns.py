"""When the dispatcher acts: at the end of a turn of the event loop, or at a set time.

A turn is an iteration of the event loop. The calls and answers that arrive in one turn are acted on
together, so that they share messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sized
from typing import TYPE_CHECKING, Protocol

from farm.scheduler.core import Scheduler

if TYPE_CHECKING:
    from farm.dispatcher.dispatcher import Dispatcher


class Late(Protocol):
    """A part of the dispatcher that puts off work to the end of the turn."""

    @property
    def put_off(self) -> Sized:
        """The work to do; `turn` is only called while there is some."""

    def turn(self) -> None:
        """Do this work, or a part of it that does not hold up the event loop."""


class LoopTurns:
    """Acts once at the end of each turn in which there is something to act on.

    acts_soon: whether it will, without being asked again.
    """

    def __init__(self, scheduler: Scheduler, dispatcher: Dispatcher) -> None:
        self._scheduler = scheduler
        self._dispatcher = dispatcher
        self._late: tuple[Late, ...] = ()
        self._last: list[Late] = []
        self._after: list[Callable[[], None]] = []
        self._timer = Timer(self.act)
        self.acts_soon = False
        self._late_again = False

    def each_turn(self, *late: Late) -> None:
        """Let these do what they have put off, in this order, before every action."""
        self._late = late

    def at_the_end(self, late: Late) -> None:
        """Let this do what it has put off after every action."""
        self._last.append(late)

    def after_acting(self, callback: Callable[[], None]) -> None:
        """Call `callback` each time after actions, which may include outcomes, are carried out."""
        self._after.append(callback)

    def later(self) -> None:
        """Act on what a `Late` has put off, in a further turn if they are at work now."""
        self._late_again = True
        self.soon()

    def soon(self) -> None:
        """Act in the next turn, or at the end of this one."""
        # Calls that arrive in one iteration of the event loop are sent together in one message.
        if not self.acts_soon:
            self.acts_soon = True
            asyncio.get_running_loop().call_soon(self._act_in_turn)

    def act_on(self, tell: Callable[[], None]) -> None:
        """Run `tell`, which reports facts, and carry out the resulting actions at once.

        Facts reported outside `act_on` are acted on in the next iteration of the event loop.
        """
        self.acts_soon = True
        try:
            tell()
        finally:
            self.act()

    def _act_in_turn(self) -> None:
        if self.acts_soon:  # else another call of `act` has done it
            self.act()

    def act(self) -> None:
        """Have everything carried out that the scheduler requests now."""
        self.acts_soon = True  # no new callback: the calls that start here are acted on below
        self._late_again = False
        for late in self._late:
            if late.put_off:
                late.turn()
        self.acts_soon = False
        while actions := self._scheduler.actions(now := time.monotonic()):
            self._dispatcher.carry_out(actions, now)
            if not self.acts_soon:  # no fact was reported meanwhile
                break
        for late in self._last:
            if late.put_off:
                late.turn()
        for callback in self._after:
            callback()
        if self._late_again:
            self.soon()
        if (at := self._scheduler.wakeup()) != self._timer.at:
            self._timer.set(at)

    def end(self) -> None:
        """Act at no set time any more."""
        self._timer.set(None)


class Timer:
    """Calls `on_time` at the time that was set last, on the running event loop.

    at: that time; None: never.
    """

    def __init__(self, on_time: Callable[[], None]) -> None:
        self._on_time = on_time
        self._handle: asyncio.TimerHandle | None = None
        self.at: float | None = None

    def set(self, at: float | None) -> None:
        """Set the time, by time.monotonic(); None: never."""
        if at == self.at:
            return
        if self._handle is not None:
            self._handle.cancel()
        self._handle, self.at = None, at
        if at is not None:
            delay = max(0.0, at - time.monotonic())
            self._handle = asyncio.get_running_loop().call_later(delay, self._ring)

    def _ring(self) -> None:
        self._handle = self.at = None
        self._on_time()


class Changes:
    """Wakes those who wait for a condition, to check it again."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.tell = self._event.set

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until the condition is true; return whether it is after `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self._event.clear()
                    await self._event.wait()
        return condition()
