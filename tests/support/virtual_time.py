"""An event loop whose clock jumps to the next timer, so that simulated hours take seconds."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.SelectSelector):
    """Never waits: the time that it should have waited counts as gone by."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "all tasks wait, and no timer is set"
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop. Functions that should run in threads run at once, in this one."""

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now

    def run_in_executor(  # type: ignore[override]  # the base class is not generic
        self, executor: Any, function: Callable[..., T], *arguments: Any
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
