"""Tests that are coroutines, and waiting for a condition with a limit."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

import uvloop

from tests.patience import scaled

P = ParamSpec("P")

LIMIT_S = scaled(20.0)
"""How long a test waits for what should come at once; only a failing test waits so long."""


GRPC_CLIENT = "PollerCompletionQueue"
"""Part of grpcio's client, one for all loops of a process: it tells loops of earlier tests, too,
and complains to this one that they are closed."""


def on_loop(
    test: Callable[P, Coroutine[Any, Any, None]],
    runner: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run,
) -> Callable[P, None]:
    """Decorator: run the coroutine on an event loop of its own; what goes wrong there fails it."""

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


async def until(condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Let the loop run until `condition()` is true; TimeoutError after `limit_s` seconds."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110
            # The condition may be anything, so that nothing tells of its change.
            await asyncio.sleep(0.001)


def wait_until(condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """The same where there is no loop."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {limit_s} s")
        time.sleep(0.001)
