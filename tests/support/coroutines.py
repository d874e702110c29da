"""Tests that are coroutines, and waiting for a condition with a limit.

`tests/conftest.py` runs every such test by `on_loop`, without a decorator.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec

import uvloop

from tests.support.time_limits import scaled

P = ParamSpec("P")

LIMIT_S = scaled(20.0)
"""Limit for events that should happen at once; only a failing test waits this long."""


GRPC_CLIENT = "PollerCompletionQueue"
"""A part of grpcio's client, shared by all loops of a process: it notifies the closed loops of
earlier tests, too, and reports these errors to the current loop.
"""


def on_loop(
    test: Callable[P, Coroutine[Any, Any, None]],
    runner: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run,
) -> Callable[P, None]:
    """Return a test that runs the coroutine on a loop of its own; uncaught errors there fail it."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        wrong: list[dict[str, Any]] = []

        def note(_: asyncio.AbstractEventLoop, what: dict[str, Any]) -> None:
            if GRPC_CLIENT not in repr(what.get("handle")):
                wrong.append(what)

        async def watched() -> None:
            asyncio.get_running_loop().set_exception_handler(note)
            await test(*args, **kwargs)

        runner(watched())
        assert wrong == [], f"went wrong on the loop: {wrong}"

    return run


def on_uvloop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """The same on the loop that servers run on."""
    return on_loop(test, uvloop.run)


class LoopTurns:
    """Counts the turns of an event loop. number: of the present turn."""

    number = 0
    _next: asyncio.Handle

    def count(self) -> None:
        """Count from now on, until `stop`."""
        self.number += 1
        self._next = asyncio.get_running_loop().call_soon(self.count)

    def stop(self) -> None:
        """Count no more."""
        self._next.cancel()


async def until(condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Run the loop until `condition()` is true; TimeoutError after `limit_s` seconds."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110
            # Poll: the condition may be anything, so there is no event to wait for.
            await asyncio.sleep(0.001)


@contextmanager
def loop_in_thread(
    make: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
) -> Iterator[asyncio.AbstractEventLoop]:
    """Run an event loop in a thread for the length of the block."""
    loop = make()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def wait_until(
    condition: Callable[[], object],
    limit_s: float = LIMIT_S,
    *,
    what: str = "",
    every_s: float = 0.001,
) -> None:
    """Wait likewise, outside an event loop. what: words for the condition."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {limit_s} s: {what}")
        time.sleep(every_s)
