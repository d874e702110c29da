"""Signal handlers of commands, restored afterwards."""

from __future__ import annotations

import contextlib
import signal
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `farm worker` need not load what sweeps use
    from farm.provision.local.supervisor import Workers
    from farm.sweep.run.run import Stop


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Restore what SIGINT and SIGTERM did, which uvloop leaves to a closed loop."""
    with _handlers(
        {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    ):
        yield


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
def drained_by_signals(workers: Workers) -> Iterator[None]:
    """Drain `workers` on SIGTERM, SIGINT, SIGUSR1 and SIGUSR2, and hurry on a second one.

    Grid Engine sends the last two before SIGSTOP and SIGKILL.
    """

    def drain(number: int, frame: types.FrameType | None) -> None:
        if workers.draining:
            workers.hurry()
        else:
            workers.drain()

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
    with _handlers(dict.fromkeys(numbers, drain)):
        yield


@contextlib.contextmanager
def _handlers(handlers: dict[signal.Signals, Any]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
