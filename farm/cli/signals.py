"""Signal handlers of commands, restored afterwards."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from farm.provision.batch.allocation import end_time, job_id
from farm.provision.batch.systems import usable

if TYPE_CHECKING:  # `farm worker` need not load what sweeps use
    from farm.provision.local.supervisor import Workers
    from farm.sweep.run.run import Stop


def ending() -> tuple[signal.Signals, ...]:
    """Return the signals that end a command in order.

    SIGHUP, as of a terminal that is closed, is one unless it was ignored at the start, as by nohup.
    """
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *(() if ignored else (signal.SIGHUP,)))


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Restore what the `ending` signals did, which uvloop leaves to a closed loop."""
    with _handlers({number: signal.getsignal(number) for number in ending()}):
        yield


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Make all `ending` signals end the block as Ctrl-C does: models stop and files are closed."""
    with _handlers(dict.fromkeys(ending(), signal.default_int_handler)):
        yield


@contextlib.contextmanager
def stopped_by_signals(stop: Stop) -> Iterator[None]:
    """Stop after the points in flight on Ctrl-C; at once on a second Ctrl-C, SIGTERM or SIGHUP.

    In a batch job the last two ask as Ctrl-C does, however often: SLURM sends SIGTERM to every
    process of a job, and its script may send another. At once is then when the job ends.
    """
    in_job = bool(job_id(systems=usable()))  # a handler must neither import packages nor fail

    def ask(number: int, frame: types.FrameType | None) -> None:
        if stop.asked:
            stop.ask_at_once()
        stop.ask()

    def end(number: int, frame: types.FrameType | None) -> None:
        if not in_job:
            stop.ask_at_once()
        stop.ask()
        threading.Thread(target=_stop_with_the_job, args=(stop,), daemon=True).start()

    handlers: dict[signal.Signals, Any] = dict.fromkeys(ending(), end)
    with _handlers(handlers | {signal.SIGINT: ask}):
        yield


def _stop_with_the_job(stop: Stop) -> None:
    end = end_time()
    if end is not None:
        time.sleep(max(0.0, end - time.time()))
        stop.ask_at_once()


@contextlib.contextmanager
def drained_by_signals(workers: Workers) -> Iterator[None]:
    """Drain `workers` on the `ending` signals, SIGUSR1 and SIGUSR2, and hurry on a second one.

    Grid Engine sends the last two before SIGSTOP and SIGKILL.
    """

    def drain(number: int, frame: types.FrameType | None) -> None:
        if workers.draining:
            workers.hurry()
        else:
            workers.drain()

    with _handlers(dict.fromkeys((*ending(), signal.SIGUSR1, signal.SIGUSR2), drain)):
        yield


@contextlib.contextmanager
def _handlers(handlers: dict[signal.Signals, Any]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
