"""Signal handlers for commands that run a sweep."""

from __future__ import annotations

import contextlib
import signal
import types
from collections.abc import Iterator
from typing import Any

from farm.sweep.run.run import Stop


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Make SIGTERM end the block as Ctrl-C does, so that models are stopped and files closed."""
    with _handlers({signal.SIGTERM: signal.default_int_handler}):
        yield


@contextlib.contextmanager
def stopped_by_signals(stop: Stop) -> Iterator[None]:
    """Stop after the points in flight on Ctrl-C; at once on a second Ctrl-C, SIGTERM or SIGHUP."""

    def ask(number: int, frame: types.FrameType | None) -> None:
        stop.ask()

    def at_once(number: int, frame: types.FrameType | None) -> None:
        stop.ask_at_once()

    handlers: dict[signal.Signals, Any] = {signal.SIGINT: ask, signal.SIGTERM: at_once}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        handlers[signal.SIGHUP] = at_once
    with _handlers(handlers):
        yield


@contextlib.contextmanager
def _handlers(handlers: dict[signal.Signals, Any]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
